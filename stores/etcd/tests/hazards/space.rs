//! A full database, and what `doctor` says.

use distlock_core::ErrorKind;
use distlock_core::store::Level;
use distlock_testkit::servers::EtcdServer;

use crate::support::{locks, ms};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_is_told_as_such_by_acquire_and_by_doctor() {
    let server = EtcdServer::configure().args(["--quota-backend-bytes", "400000"]).start();
    let ours = locks(&server.url(), ms(30_000)).await;
    let warnings = async || {
        let findings = ours.doctor().await.unwrap();
        let warnings = findings.into_iter().filter(|finding| finding.level == Level::Warning);
        warnings.map(|finding| finding.what).collect::<Vec<_>>().join("; ")
    };
    let before = warnings().await;
    assert!(before.contains("single member") && before.contains("authentication is off"), "{before}");
    assert!(!before.contains("NOSPACE"), "{before}");
    let value = "x".repeat(50_000);
    for number in 0..20 {
        // The alarm is raised by the first write that exceeds the quota; later ones fail.
        if warnings().await.contains("NOSPACE") {
            break;
        }
        let _ = server.try_etcdctl(&["put", &format!("noise{number}"), &value]);
    }
    let error = ours.mutex("m").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    let after = warnings().await;
    assert!(after.contains("NOSPACE"), "{after}");
}
