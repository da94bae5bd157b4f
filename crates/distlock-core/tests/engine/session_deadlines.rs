//! Guards on a session store: they are lost when their session ends, and live on with every heartbeat, without a call on
//! the guard.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::sessions::SessionServer;
use crate::common::{MS, SECOND};
use distlock_core::store::{Backend, Session};
use distlock_core::{CancellationToken, Clock, Locks, LossReason, Moment, VirtualClock};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_reaches_its_guards_without_a_call_on_them() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
    server.share_session(&Session::new());
    let locks = server.locks(&clock);
    let guards = [locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap()];
    let signals = guards.each_ref().map(distlock_core::Guard::cancellation_token);
    // A waiter of this process is behind the guard in the local queue, and proceeds after the loss.
    let next = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(MS).await;
    assert!(!next.is_finished() && signals.iter().all(|signal| !signal.is_cancelled()));
    server.share_session(&Session::new());
    server.end_all();
    assert!(signals.iter().all(CancellationToken::is_cancelled), "cancelled at once");
    let next = next.await.unwrap().unwrap();
    assert!(
        !next.is_lost() && guards[0].loss() == Some(LossReason::SessionEnded("ended by the server".into()))
    );
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_a_guard_until_the_deadline_of_the_last_one() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
    let session = Session::until(clock.now().after(10 * SECOND));
    server.share_session(&session);
    let guard = server.locks(&clock).mutex("a").acquire().await.unwrap();
    let begun = Instant::now();
    let signal = guard.cancellation_token();
    for _ in 0..10 {
        tokio::time::sleep(5 * SECOND).await;
        session.keep_until(clock.now().after(10 * SECOND));
        // A late heartbeat does not shorten the session.
        session.keep_until(clock.now().after(SECOND));
        assert_eq!(guard.time_left(), Some(10 * SECOND));
    }
    assert!(!signal.is_cancelled());
    signal.cancelled().await;
    assert!(
        begun.elapsed() >= 60 * SECOND && begun.elapsed() <= 60 * SECOND + 2 * MS,
        "{:?}",
        begun.elapsed()
    );
    assert!(matches!(guard.loss(), Some(LossReason::SessionEnded(_))));
}

/// A clock that counts how often it is read.
#[derive(Clone, Debug)]
struct CountingClock(VirtualClock, Arc<AtomicUsize>);

impl Clock for CountingClock {
    fn now(&self) -> Moment {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.now()
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_whose_session_is_kept_alive_does_not_wake_the_process_all_the_time() {
    let (server, clock) = (SessionServer::default(), CountingClock(VirtualClock::new(), Arc::default()));
    let session = Session::until(clock.now().after(10 * SECOND));
    server.share_session(&session);
    let locks = Locks::builder(Backend::session(server)).clock(Arc::new(clock.clone())).build().unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    session.keep_until(clock.now().after(1000 * SECOND));
    tokio::time::sleep(20 * SECOND).await;
    let before = clock.1.load(Ordering::SeqCst);
    tokio::time::sleep(100 * SECOND).await;
    // No sleep of the engine is longer than a second.
    let reads = clock.1.load(Ordering::SeqCst) - before;
    assert!(reads <= 300, "{reads} times in 100 s");
    assert!(!guard.is_lost());
}
