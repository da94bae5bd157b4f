//! Advisory locks on a server that does not answer: down is never busy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{Corner, locks, server};
use distlock_core::{ErrorKind, Options};
use distlock_testkit::proxy::Proxy;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_is_not_contention_to_a_second_attempt_of_the_process() {
    let (corner, proxy) = (Corner::new(), Proxy::start(server().addr()));
    let url = corner.url("postgres+advisory", &proxy.through(&server().url()));
    let short = Options::new().request_timeout(Duration::from_millis(500)).unwrap();
    let locks = locks(&url).await.with_options(short);
    locks.rw_lock("warm").write().await.unwrap().release().await.unwrap();

    proxy.pause();
    // Reader-writer locks have no local queue: both attempts reach the store.
    let first = tokio::spawn(locks.rw_lock("a").write().into_future());
    tokio::task::yield_now().await;
    let tried = locks.rw_lock("a").try_write().await;
    let kind = tried.map(|guard| guard.is_some()).map_err(|error| error.kind());
    assert_eq!(kind, Err(ErrorKind::Unavailable));
    proxy.resume();
    drop(first.await);

    let held = locks.rw_lock("a").write().await.unwrap();
    assert!(locks.rw_lock("a").try_write().await.unwrap().is_none(), "held is contention");
    held.release().await.unwrap();
}
