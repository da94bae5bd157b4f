//! Cancellation at any moment leaves nothing held and no waiter behind.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::common::{MS, SECOND, World, begin, options, until};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{ErrorKind, LossReason, ReleaseError};

/// Polls a future so many times, then drops it. True if it completed before.
async fn poll_times<F: Future + Unpin>(mut future: F, times: usize) -> bool {
    for _ in 0..times {
        let done = std::future::poll_fn(|context: &mut Context<'_>| {
            Poll::Ready(Pin::new(&mut future).poll(context).is_ready())
        })
        .await;
        if done {
            return true;
        }
        tokio::time::sleep(MS).await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_at_any_await_leaves_nothing_behind() {
    for contended in [false, true] {
        for times in 0..12 {
            let world = World::new();
            let (locks, _clock, faults) = world.process();
            let other = world.locks();
            let holder = if contended { Some(other.mutex("a").acquire().await.unwrap()) } else { None };
            let readers = if contended { Some(other.rw_lock("a").read().await.unwrap()) } else { None };
            faults.always(Verb::Acquire, Fault::none().delay_before(MS * 2).delay_after(MS * 2));
            poll_times(locks.mutex("a").acquire().into_future(), times).await;
            poll_times(locks.mutex("a").fair().acquire().into_future(), times).await;
            poll_times(locks.rw_lock("a").write().into_future(), times).await;
            drop((holder, readers));
            world.until_clean("a").await;
            assert!(
                other.mutex("a").try_acquire().await.unwrap().is_some(),
                "contended {contended}, polls {times}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_callers_were_cancelled_is_undone() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_after(100 * MS));
    let asking: Vec<_> = (0..20)
        .map(|n| {
            let mutex = locks.mutex(format!("m{n}"));
            tokio::spawn(async move { mutex.acquire().await })
        })
        .collect();
    tokio::time::sleep(150 * MS).await;
    asking.iter().for_each(tokio::task::JoinHandle::abort);
    drop(asking);
    for n in 0..20 {
        world.until_clean(&format!("m{n}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_reply_was_lost_is_recognised_as_ours() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.next(Verb::Acquire, 1, Fault::lost_reply());
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert_eq!(world.store.stats().acquire.requests, 2);
    guard.release().await.unwrap();
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_acquire_ends_as_an_error_and_its_late_grant_is_undone() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_after(2 * SECOND));
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_outcome_unknown() && error.to_string().contains("memory"), "{error}");
    faults.heal();
    world.until_clean("a").await;
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_request_does_not_block_the_next_ones() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.next(Verb::Acquire, 1, Fault::hang_before());
    let stuck = tokio::spawn({
        let mutex = locks.mutex("stuck");
        async move { mutex.acquire().await }
    });
    tokio::task::yield_now().await;
    // Queued behind the unanswered one, and sent when that times out.
    let guard = locks.mutex("b").acquire().await;
    assert!(guard.is_ok() || locks.mutex("b").acquire().await.is_ok());
    assert!(stuck.await.unwrap().is_ok(), "the second attempt acquires it");
}

#[tokio::test(start_paused = true)]
async fn a_very_late_answer_is_undone_although_the_engine_was_dropped() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    // Applied after its time-out and its withdrawals, and answered much later.
    faults.always(Verb::Acquire, Fault::none().delay_before(4 * SECOND).delay_after(10 * SECOND));
    let long = options().expiry(60 * SECOND).unwrap();
    let error = locks.mutex("a").options(long).acquire().await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    drop(locks);
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!(world.records("a").await.len(), 1, "it was applied, and is not answered yet");
    tokio::time::sleep(14 * SECOND).await;
    assert!(world.records("a").await.is_empty(), "left to its expiry: {:?}", world.records("a").await);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_applied_after_its_withdrawal_and_never_answered_is_withdrawn_again() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let long = locks.with_options(options().expiry(60 * SECOND).unwrap());
    faults.next(Verb::Acquire, 1, Fault::hang_after().delay_before(100 * MS));
    let mut asking = Box::pin(long.mutex("a").acquire().into_future());
    assert!(!begin(&mut asking).await);
    drop(asking);
    tokio::time::sleep(200 * MS).await;
    assert_eq!(world.records("a").await.len(), 1, "the withdrawal arrived before it was applied");
    tokio::time::sleep(2 * SECOND).await;
    assert!(world.records("a").await.is_empty(), "left to its expiry: {:?}", world.records("a").await);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_answered_blocks_neither_shutdown_nor_the_end_of_the_engine() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::hang_after());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let with_engine = tasks();
    locks.mutex("a").acquire().await.unwrap_err();
    let begun = tokio::time::Instant::now();
    locks.shutdown().await.unwrap();
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    drop(locks);
    tokio::time::sleep(10 * SECOND).await;
    assert!(tasks() < with_engine, "the engine waits for an answer that never comes");
}

#[tokio::test(start_paused = true)]
async fn unanswered_requests_in_every_slot_do_not_block_the_next_ones() {
    let world = World::wide(2);
    let (locks, _clock, faults) = world.process();
    faults.next(Verb::Acquire, 2, Fault::hang_before());
    let stuck = ["a", "b"].map(|name| tokio::spawn(locks.mutex(name).acquire().into_future()));
    tokio::task::yield_now().await;
    let guard = locks.mutex("c").acquire().await;
    assert!(guard.is_ok() || locks.mutex("c").acquire().await.is_ok());
    for one in stuck {
        assert!(one.await.unwrap().is_ok(), "the second attempt acquires it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_frees_its_slot_for_pending_items() {
    let world = World::wide(2);
    let (locks, _clock, faults) = world.process();
    // The first two are never answered. The third gets a slot as soon as one of them is cancelled.
    faults.next(Verb::Acquire, 2, Fault::hang_before());
    let [first, second] = ["a", "b"].map(|name| tokio::spawn(locks.mutex(name).acquire().into_future()));
    tokio::task::yield_now().await;
    let third = tokio::spawn(locks.mutex("c").acquire().into_future());
    tokio::task::yield_now().await;
    let begun = tokio::time::Instant::now();
    first.abort();
    assert!(!third.await.unwrap().unwrap().is_lost());
    assert!(begun.elapsed() < 100 * MS, "{:?}: it waited for a time-out", begun.elapsed());
    assert!(!second.await.unwrap().unwrap().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_guard_dropped_off_the_runtime_is_released() {
    let world = World::new();
    let locks = world.locks();
    let guard = locks.mutex("a").acquire().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_release_is_completed_in_the_background() {
    for times in 0..4 {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let guard = locks.mutex("a").acquire().await.unwrap();
        faults.always(Verb::Release, Fault::none().delay_before(2 * MS).delay_after(2 * MS));
        poll_times(Box::pin(guard.release()), times).await;
        world.until_clean("a").await;
        // The next task of this process can acquire it too.
        assert!(locks.mutex("a").try_acquire().timeout(SECOND).await.unwrap().is_some(), "polls {times}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_release_is_reported_and_retried() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let guard = locks.mutex("a").acquire().await.unwrap();
    faults.next(Verb::Release, 3, Fault::fail());
    let ended = guard.release().await;
    assert!(matches!(&ended, Err(ReleaseError::Unknown { until, .. }) if *until == 3 * SECOND), "{ended:?}");
    let before = tokio::time::Instant::now();
    world.until_clean("a").await;
    assert!(before.elapsed() < 2 * SECOND, "released by a retry, not by its expiry");
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_may_be_dropped_while_releases_are_in_flight() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let guard = locks.mutex("a").acquire().await.unwrap();
    faults.next(Verb::Release, 2, Fault::fail());
    drop(guard);
    drop(locks);
    let before = tokio::time::Instant::now();
    world.until_clean("a").await;
    assert!(before.elapsed() < 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn shutdown_releases_everything_and_ends_all_waiting() {
    let world = World::new();
    let (locks, other) = (world.locks(), world.locks());
    let held = locks.mutex("held").acquire().await.unwrap();
    let dropped = locks.mutex("dropped").acquire().await.unwrap();
    let theirs = other.mutex("theirs").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let mutex = locks.mutex("theirs");
        async move { mutex.acquire().await }
    });
    until(|| async { world.records("theirs").await.iter().any(|record| !record.waiters.is_empty()) }).await;
    drop(dropped);
    locks.shutdown().await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(held.loss(), Some(LossReason::ShutDown));
    assert_eq!(locks.mutex("x").acquire().await.unwrap_err().kind(), ErrorKind::ShutDown);
    for name in ["held", "dropped"] {
        assert!(world.records(name).await.iter().all(|record| record.holders.is_empty()), "{name}");
    }
    until(|| async { world.records("theirs").await.iter().all(|record| record.waiters.is_empty()) }).await;
    theirs.release().await.unwrap();
}

#[test]
fn a_runtime_that_ends_leaves_only_leases_that_expire() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let store = distlock_core::memory::MemoryStore::new();
    let (locks, guard) = runtime.block_on(async {
        let backend = distlock_core::store::Backend::lease(store.clone());
        let short = options().expiry(200 * MS).unwrap();
        let locks = distlock_core::Locks::builder(backend).options(short).build().unwrap();
        let guard = locks.mutex("a").acquire().await.unwrap();
        (locks, guard)
    });
    runtime.shutdown_timeout(SECOND);
    let begun = std::time::Instant::now();
    while !guard.is_lost() {
        assert!(begun.elapsed() < 5 * SECOND);
        std::thread::yield_now();
    }
    drop(guard);
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    other.block_on(async {
        assert_eq!(locks.mutex("a").acquire().await.unwrap_err().kind(), ErrorKind::ShutDown);
        let again = distlock_core::Locks::new(distlock_core::store::Backend::lease(store)).unwrap();
        assert!(again.mutex("a").acquire().timeout(5 * SECOND).await.is_ok());
    });
}

#[tokio::test(start_paused = true)]
async fn the_late_answer_of_a_timed_out_attempt_does_not_free_the_next_one() {
    for (applied_late, queued) in [(false, false), (true, false), (false, true), (true, true)] {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let other = world.locks();
        // The request time-out is 500 ms: the answer arrives while the second attempt is held.
        let late = if applied_late {
            Fault::none().delay_before(700 * MS)
        } else {
            Fault::none().delay_after(700 * MS)
        };
        if queued {
            // Sent as part of a batch, behind another request.
            faults.next(Verb::Acquire, 1, Fault::none().delay_before(10 * MS));
        }
        faults.next(Verb::Acquire, 1, late);
        let first =
            queued.then(|| tokio::spawn(std::future::IntoFuture::into_future(locks.mutex("x").acquire())));
        tokio::task::yield_now().await;
        let guard = locks.mutex("m").acquire().await.unwrap();
        for _ in 0..30 {
            tokio::time::sleep(100 * MS).await;
            let theirs = other.mutex("m").try_acquire().await.unwrap();
            assert!(
                theirs.is_none() && !guard.is_lost(),
                "two holders: applied late {applied_late}, queued {queued}"
            );
        }
        guard.release().await.unwrap();
        world.until_clean("m").await;
        drop(first);
    }
}
