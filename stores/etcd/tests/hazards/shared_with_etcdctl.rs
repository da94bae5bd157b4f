//! A mutex that `etcdctl lock` uses too.

use std::process::Command;

use distlock_core::Kind;
use distlock_testkit::servers::program::ETCDCTL;
use distlock_testkit::servers::{DataFolder, EtcdServer};

use crate::support::{LIMIT, keys, locks, ms, until, until_waiters};

#[tokio::test(flavor = "multi_thread")]
async fn distlock_and_etcdctl_wait_in_one_queue() {
    let server = EtcdServer::start();
    let ours = locks(&server.url(), ms(30_000)).await;
    let folder = DataFolder::create();
    let end = folder.path().join("end");
    let until_end = format!("while [ ! -e {} ]; do sleep 0.02; done", end.display());
    let held = ours.mutex("a/b").acquire().await.unwrap();
    let mut etcdctl = Command::new(ETCDCTL.find())
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints=http://{}", server.addr()))
        .args(["lock", "distlock/mutex/a%2Fb", "--", "sh", "-c", until_end.as_str()])
        .spawn()
        .unwrap();
    until_waiters(&ours, Kind::Mutex, "a/b", 1).await;
    let behind = tokio::spawn({
        let ours = ours.clone();
        async move { ours.mutex("a/b").fair().acquire().timeout(LIMIT).await }
    });
    until_waiters(&ours, Kind::Mutex, "a/b", 2).await;
    let token = held.token();
    held.release().await.unwrap();
    // etcdctl holds now, until its command ends.
    until("two claims", async || keys(&server, "distlock/mutex/a%2Fb/").len() == 2).await;
    tokio::time::sleep(ms(200)).await;
    assert!(!behind.is_finished(), "two holders");
    std::fs::write(&end, "").unwrap();
    let next = behind.await.unwrap().unwrap();
    assert!(next.token() > token);
    assert!(etcdctl.wait().unwrap().success());
}
