//! Revisions are compacted while clients wait.

use distlock_core::Kind;
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::EtcdServer;

use crate::support::{LIMIT, locks, ms, until_waiters};

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_granted_although_the_revision_it_waits_from_was_compacted() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.addr());
    let ours = locks(&proxy.through(&server.url()), ms(30_000)).await;
    let other = locks(&server.url(), ms(30_000)).await;
    let held = other.semaphore("m", 1).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { ours.semaphore("m", 1).acquire().timeout(LIMIT).await }
    });
    until_waiters(&other, Kind::Semaphore, "m", 1).await;
    // The waiter's stream breaks, and what it could go on from is gone when it returns. Meanwhile the lock is released.
    proxy.disconnect();
    let token = held.token();
    held.release().await.unwrap();
    for number in 0..20 {
        server.etcdctl(&["put", "noise", &number.to_string()]);
    }
    let now = server.etcdctl(&["get", "noise", "-w", "fields"]);
    let revision = now.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
    server.etcdctl(&["compact", revision]);
    proxy.heal();
    let granted = waiting.await.unwrap().unwrap();
    assert!(granted.token() > token);
    granted.release().await.unwrap();
}
