//! Forced releases, and keys that other programs delete.

use std::time::Instant;

use distlock_core::{Kind, LossReason};
use distlock_testkit::servers::EtcdServer;

use crate::support::{LIMIT, keys, locks, loss_of, ms, until_waiters};

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_learns_of_a_forced_release_at_once_and_the_waiter_gets_a_higher_token() {
    let server = EtcdServer::start();
    let (ours, other) = (locks(&server.url(), ms(60_000)).await, locks(&server.url(), ms(60_000)).await);
    let held = ours.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.mutex("m").acquire().timeout(LIMIT).await }
    });
    until_waiters(&other, Kind::Mutex, "m", 1).await;
    let begun = Instant::now();
    let broken = other.break_lock(Kind::Mutex, "m").await.unwrap();
    assert_eq!(broken.len(), 1);
    assert_eq!(broken[0].lock_id, *held.lock_id());
    assert!(matches!(loss_of(&held).await, LossReason::NotYours));
    // The next renewal is due after twenty seconds.
    assert!(begun.elapsed() < ms(10_000), "{:?}", begun.elapsed());
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > held.token());
    assert!(held.release().await.is_err());
    assert!(!next.is_lost(), "the release of a lost guard");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_another_program_deletes_is_noticed_by_the_next_renewal() {
    let server = EtcdServer::start();
    let ours = locks(&server.url(), ms(3000)).await;
    let (held, kept) =
        (ours.mutex("m").acquire().await.unwrap(), ours.mutex("kept").acquire().await.unwrap());
    let key = keys(&server, "distlock/mutex/m/").remove(0).key;
    server.etcdctl(&["del", &key]);
    assert!(matches!(loss_of(&held).await, LossReason::NotYours));
    assert!(!kept.is_lost());
    // Deleting the session's key ends the whole session.
    server.etcdctl(&["del", "--prefix", "distlock/session/"]);
    assert!(matches!(loss_of(&kept).await, LossReason::SessionEnded(_)));
    let again = ours.mutex("kept").acquire().timeout(LIMIT).await.unwrap();
    assert!(again.token() > kept.token());
}
