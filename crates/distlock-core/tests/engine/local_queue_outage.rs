//! The local wait queue during an outage: if the store does not answer the head, the lock is unavailable, not contended,
//! for the waiters behind it. If the store answers, the lock is contended.

use std::future::IntoFuture;
use std::time::Duration;

use crate::common::{MS, SECOND, World, options, until};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{ErrorKind, Guard, Locks, Result};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How much longer than its time limit a waiter may take to distinguish contention from an outage.
const FIRST_ANSWER: Duration = SECOND;

/// An acquisition without a time limit that has been polled.
async fn waiter(locks: &Locks) -> JoinHandle<Result<Guard>> {
    let waiting = tokio::spawn(locks.mutex("a").acquire().into_future());
    tokio::time::sleep(MS).await;
    waiting
}

async fn unavailable_behind_the_head(locks: &Locks) {
    let begun = Instant::now();
    let error = locks.mutex("a").try_acquire().await.map(|guard| guard.is_some()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.store().is_some() && error.resource().is_some() && error.can_retry(), "{error}");
    assert!(begun.elapsed() <= 2 * SECOND, "{:?}", begun.elapsed());
    for limit in [MS, 300 * MS] {
        let begun = Instant::now();
        let error = locks.mutex("a").acquire().timeout(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "after {limit:?}: {error}");
        assert!(begun.elapsed() <= limit + FIRST_ANSWER, "{:?} for {limit:?}", begun.elapsed());
        let tried = locks.mutex("a").try_acquire().timeout(limit).await;
        assert_eq!(tried.map(|guard| guard.is_some()).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_unavailable_to_the_waiters_behind_the_head() {
    for fault in [Fault::hang_before(), Fault::hang_after()] {
        let world = World::new();
        // A long request time-out keeps the first waiter at the head.
        let (patient, _clock, faults) = world.process_with(options().request_timeout(60 * SECOND).unwrap());
        let locks = patient.with_options(options());
        faults.always(Verb::Acquire, fault);
        let front = waiter(&patient).await;
        unavailable_behind_the_head(&locks).await;
        assert!(!front.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stopped_answering_is_unavailable_although_it_answered_busy_before() {
    for fault in [Fault::hang_before(), Fault::fail()] {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let _theirs = world.locks().mutex("a").acquire().await.unwrap();
        let front = waiter(&locks).await;
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none(), "held, by the store's last answer");
        faults.always(Verb::Acquire, fault);
        tokio::time::sleep(4 * SECOND).await;
        unavailable_behind_the_head(&locks).await;
        // The head survives the outage and acquires the lock.
        faults.heal();
        until(|| async { locks.mutex("a").try_acquire().await.is_ok_and(|guard| guard.is_none()) }).await;
        assert!(!front.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_lone_waiter_that_ends_in_an_outage_is_unavailable() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let slow = options().request_timeout(60 * SECOND).unwrap();
    let polls_rarely = slow.clone().busy_wait_sleep(59 * SECOND, 60 * SECOND).unwrap();
    let _theirs = world.locks().mutex("a").acquire().await.unwrap();
    for (options, subscribes) in [(slow, true), (polls_rarely, false)] {
        faults.always(Verb::Subscribe, if subscribes { Fault::none() } else { Fault::fail() });
        let asking = locks.mutex("a").options(options).acquire().timeout(10 * SECOND);
        let waiting = tokio::spawn(asking.into_future());
        tokio::time::sleep(2 * SECOND).await;
        faults.always(Verb::Acquire, Fault::hang_before());
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "subscribes: {subscribes}: {error}");
        faults.heal();
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_hangs_is_unavailable_and_not_contention() {
    let world = World::new();
    let (slow, _clock, faults) = world.process_with(options().request_timeout(60 * SECOND).unwrap());
    let locks = slow.with_options(options());
    let held = slow.mutex("a").acquire().await.unwrap();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    faults.always_all(Fault::hang_before());
    let releasing = tokio::spawn(held.release());
    tokio::time::sleep(MS).await;
    unavailable_behind_the_head(&locks).await;
    assert!(!releasing.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_slow_release_lets_the_next_attempt_acquire() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let held = locks.mutex("a").acquire().await.unwrap();
    faults.next(Verb::Release, 1, Fault::none().delay_before(100 * MS));
    let releasing = tokio::spawn(held.release());
    tokio::time::sleep(MS).await;
    let guard = locks.mutex("a").try_acquire().await.unwrap();
    assert!(guard.is_some_and(|guard| !guard.is_lost()));
    releasing.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_contended_and_not_unavailable() {
    for free in [true, false] {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let theirs = world.locks();
        let theirs = if free { None } else { Some(theirs.mutex("a").acquire().await.unwrap()) };
        faults.always(Verb::Acquire, Fault::none().delay_after(200 * MS));
        for limit in [Duration::ZERO, 170 * MS, 300 * MS] {
            let front = waiter(&locks).await;
            let begun = Instant::now();
            assert!(locks.mutex("a").try_acquire().timeout(limit).await.unwrap().is_none());
            assert!(begun.elapsed() <= limit.max(200 * MS), "{:?} for {limit:?}", begun.elapsed());
            front.abort();
            let _ = front.await;
            tokio::time::sleep(5 * SECOND).await;
        }
        drop(theirs);
    }
}

/// Contention inside one process costs the store no extra requests.
#[tokio::test(start_paused = true)]
async fn concurrent_attempts_share_one_answer() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let _theirs = world.locks().mutex("a").acquire().await.unwrap();
    faults.always(Verb::Acquire, Fault::none().delay_after(10 * MS));
    let before = world.store.stats().acquire.items;
    let tries: Vec<_> =
        (0..100).map(|_| tokio::spawn(locks.mutex("a").try_acquire().into_future())).collect();
    for tried in tries {
        assert!(tried.await.unwrap().unwrap().is_none());
    }
    assert!(world.store.stats().acquire.items <= before + 2, "{}", world.store.stats().acquire.items);
}

/// The head may belong to a task that does not poll it. Then the others ask the store themselves.
#[tokio::test(start_paused = true)]
async fn a_head_that_is_not_polled_does_not_make_the_store_look_unavailable() {
    let world = World::new();
    let locks = world.locks();
    let (slow, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_after(10 * MS));
    let theirs = locks.mutex("a").acquire().await.unwrap();
    let mut front = Box::pin(slow.mutex("a").acquire().into_future());
    assert!(tokio::time::timeout(MS, &mut front).await.is_err());
    let tried = slow.mutex("a").try_acquire().await;
    assert!(tried.unwrap().is_none(), "contended, by the store's answer");
    theirs.release().await.unwrap();
    front.await.unwrap().release().await.unwrap();
}

/// Alone, each waiter would fail after two attempts. In a queue they must not fail one after the other.
#[tokio::test(start_paused = true)]
async fn an_outage_fails_all_waiters_of_a_process_at_once() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::hang_before());
    let begun = Instant::now();
    let waiters: Vec<_> = (0..20).map(|_| tokio::spawn(locks.mutex("a").acquire().into_future())).collect();
    for waiting in waiters {
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(begun.elapsed() <= 5 * SECOND, "{:?}", begun.elapsed());
}

/// In a busy process the lock is being released or acquired at most moments. A time limit that ends then is contention.
#[tokio::test(start_paused = true)]
async fn a_time_limit_that_ends_during_a_handoff_is_contention() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always_all(Fault::none().delay_before(20 * MS));
    let others: Vec<_> = (0..8)
        .map(|_| {
            let mutex = locks.mutex("a");
            tokio::spawn(async move {
                for _ in 0..200 {
                    let guard = mutex.acquire().await.unwrap();
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    tokio::time::sleep(100 * MS).await;
    // Each has eight waiters ahead of it, and each of them needs 40 ms.
    for limit in 200..280 {
        let begun = Instant::now();
        let error = locks.mutex("a").acquire().timeout(limit * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "after {limit} ms: {error}");
        assert!(begun.elapsed() <= (limit + 45) * MS, "{:?} for {limit} ms", begun.elapsed());
    }
    for other in others {
        other.await.unwrap();
    }
}
