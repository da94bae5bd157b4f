//! Logins and access lists.

use distlock_core::ErrorKind;
use distlock_core::store::{Level, StoreUrl};
use distlock_testkit::servers::ZookeeperServer;
use distlock_zookeeper::DRIVER;

use crate::support::{client, locks, ms};

fn with_login(server: &ZookeeperServer, login: &str, rest: &str) -> String {
    format!("zookeeper://{login}@{}{rest}", server.addr())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_of_a_user_are_closed_to_others() {
    let server = ZookeeperServer::start();
    let ours = locks(&with_login(&server, "locks:s3cret", ""), ms(8000)).await;
    let guard = ours.mutex("m").acquire().await.unwrap();
    // Another program cannot read, write or delete our nodes.
    let bare = client(&server.url()).await;
    assert_eq!(bare.list_children("/distlock/mutex/m").await.unwrap_err(), zookeeper_client::Error::NoAuth);
    for other in [server.url(), with_login(&server, "locks:wrong", "")] {
        let other = locks(&other, ms(8000)).await;
        for error in [
            other.mutex("m").try_acquire().await.unwrap_err(),
            other.mutex("new").acquire().await.unwrap_err(),
            other.break_lock(distlock_core::Kind::Mutex, "m").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(!error.to_string().contains("wrong"), "{error}");
        }
    }
    let same = locks(&with_login(&server, "locks:s3cret", ""), ms(8000)).await;
    assert!(same.mutex("m").try_acquire().await.unwrap().is_none());
    let findings = same.doctor().await.unwrap();
    assert!(
        !findings.iter().any(|found| found.level == Level::Warning && found.what.contains("every client")),
        "{findings:?}"
    );
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_may_leave_its_nodes_open_and_a_password_is_never_shown() {
    let server = ZookeeperServer::start();
    let url = with_login(&server, "locks:s3cret", "/apps/shared?distlock.acl=open");
    let ours = locks(&url, ms(8000)).await;
    let other = locks(&format!("{}/apps/shared", server.url()), ms(8000)).await;
    let guard = ours.mutex("m").acquire().await.unwrap();
    assert!(other.mutex("m").try_acquire().await.unwrap().is_none());
    assert!(other.mutex("other").try_acquire().await.unwrap().is_some());
    guard.release().await.unwrap();
    assert!(!ours.store().contains("s3cret") && ours.store().contains("/apps/shared"), "{}", ours.store());
    server.kill();
    let error = DRIVER.connect(StoreUrl::parse(&url).unwrap()).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
}
