//! Stores that answer late or not at all: what a time limit means then, and who is told when.

use std::future::IntoFuture;

use crate::common::sessions::SessionServer;
use crate::common::{MS, SECOND, World, begin, options, until};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{ErrorKind, VirtualClock};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_time_limit_ends_on_time_although_a_later_attempt_hangs() {
    let world = World::new();
    let _held = world.locks().mutex("a").acquire().await.unwrap();
    let (ours, _clock, faults) = world.process_with(options().request_timeout(20 * SECOND).unwrap());
    let begun = Instant::now();
    let waiter = tokio::spawn(async move { ours.mutex("a").acquire().timeout(1_500 * MS).await });
    until(|| async { world.records("a").await[0].waiters.len() == 1 }).await;
    faults.always(Verb::Acquire, Fault::hang_before());
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "the store said a moment ago that it is held: {error}");
    assert!(begun.elapsed() <= 1_510 * MS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_is_told_at_the_time_limit_however_long_a_request_may_take() {
    let world = World::new();
    let (ours, _clock, faults) = world.process_with(options().request_timeout(20 * SECOND).unwrap());
    faults.always(Verb::Acquire, Fault::hang_before());
    let begun = Instant::now();
    let error = ours.mutex("a").acquire().timeout(200 * MS).await.unwrap_err();
    assert_eq!((error.kind(), begun.elapsed()), (ErrorKind::Unavailable, 300 * MS), "{error}");
}

#[tokio::test(start_paused = true)]
async fn grants_that_arrive_after_their_expiry_are_an_error_after_the_third() {
    let world = World::new();
    let short = options().expiry(SECOND).unwrap().request_timeout(20 * SECOND).unwrap();
    let (ours, _clock, faults) = world.process_with(short);
    faults.always(Verb::Acquire, Fault::none().delay_after(1_500 * MS));
    let error = ours.mutex("a").acquire().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("expiry"), "{error}");
    assert_eq!(world.store.stats().acquire.requests, 3);
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn attempts_behind_a_waiter_without_an_answer_share_the_failure_of_one_attempt() {
    let world = World::wide(4);
    let (locks, _clock, faults) = world.process_with(options().request_timeout(20 * SECOND).unwrap());
    faults.next(Verb::Acquire, 1, Fault::hang_before());
    let front = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").acquire().await }
    });
    tokio::task::yield_now().await;
    faults.always(Verb::Acquire, Fault::fail().delay_before(100 * MS));
    let begun = Instant::now();
    let attempts: Vec<_> = (0..5)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.mutex("a").try_acquire().await })
        })
        .collect();
    for attempt in attempts {
        assert_eq!(attempt.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    // Half a second for the answer to the waiter in front, and one request.
    assert_eq!(begun.elapsed(), 600 * MS);
    front.abort();
}

#[tokio::test(start_paused = true)]
async fn behind_a_waiter_without_an_answer_a_short_request_time_out_is_kept() {
    let world = World::wide(4);
    let patient = options().request_timeout(20 * SECOND).unwrap();
    let (locks, _clock, faults) = world.process_with(patient);
    faults.next(Verb::Acquire, 1, Fault::hang_before());
    let front = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").acquire().await }
    });
    tokio::task::yield_now().await;
    // A store that hangs for all: told one request time-out after the time limit.
    let hasty = options().request_timeout(200 * MS).unwrap();
    faults.next(Verb::Acquire, 1, Fault::hang_before());
    let begun = Instant::now();
    let error = locks.mutex("a").options(hasty).acquire().timeout(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(begun.elapsed() <= 1_250 * MS, "{:?}", begun.elapsed());
    // A store that answers again: asked after half the request time-out, and not after the whole.
    let hasty = options().request_timeout(400 * MS).unwrap();
    let begun = Instant::now();
    assert!(locks.mutex("a").options(hasty).try_acquire().await.unwrap().is_some());
    assert!(begun.elapsed() <= 250 * MS, "{:?}", begun.elapsed());
    front.abort();
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_hangs_ends_at_the_time_limit_and_not_at_the_request_timeout() {
    let world = World::new();
    let (locks, _clock, faults) = world.process_with(options().request_timeout(20 * SECOND).unwrap());
    faults.always(Verb::Acquire, Fault::hang_before());
    let begun = Instant::now();
    let error = locks.mutex("a").acquire().timeout(2 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // Without the slack that an acquisition has after its limit to hear of contention: no attempt is in flight any more.
    assert!(begun.elapsed() <= 2 * SECOND + 2 * MS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_granted_to_a_future_that_is_dropped_unread_is_released() {
    let server = SessionServer::default();
    let locks = server.locks(&VirtualClock::new());
    let mut acquiring = locks.mutex("a").acquire().into_future();
    assert!(!begin(&mut acquiring).await);
    until(|| async { !server.is_free() }).await;
    tokio::time::sleep(50 * MS).await;
    drop(acquiring);
    until(|| async { server.is_free() }).await;
}
