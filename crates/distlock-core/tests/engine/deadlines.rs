//! The local deadline of a guard, to the millisecond: it counts from the moment of sending, keeps a margin, and moves only
//! with an answer. A guard that is lost by it is released in the store.

use std::time::Duration;

use crate::common::{MS, SECOND, World, options};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{LossReason, Options, ReleaseError};
use tokio::time::Instant;

/// One per cent, for clocks of different speeds, and two milliseconds, for clocks that count in milliseconds.
fn margin(expiry: Duration) -> Duration {
    expiry / 100 + 2 * MS
}

fn without_renewal(expiry: Duration) -> Options {
    options().expiry(expiry).unwrap().auto_extend(false)
}

#[tokio::test(start_paused = true)]
async fn a_grant_counts_from_its_sending_and_ends_before_it_expires_in_the_store() {
    for expiry in [100 * MS, 3 * SECOND, 100 * SECOND] {
        for (there, back) in [(0, 0), (10, 0), (0, 10), (20, 30)] {
            let world = World::new();
            let (locks, _clock, faults) = world.process();
            faults.next(Verb::Acquire, 1, Fault::none().delay_before(there * MS).delay_after(back * MS));
            let sent = Instant::now();
            let guard = locks.mutex("a").options(without_renewal(expiry)).acquire().await.unwrap();
            let deadline = expiry - margin(expiry);
            assert_eq!(guard.time_left().unwrap() + sent.elapsed(), deadline);
            guard.lost().await;
            assert!(sent.elapsed() >= deadline && sent.elapsed() <= deadline + MS, "{:?}", sent.elapsed());
            let left = world.records("a").await[0].holders[0].expires_in.unwrap();
            assert!(left >= margin(expiry) - MS, "it expires in the store {left:?} later");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_from_its_sending_and_not_from_its_answer() {
    let expiry = 3 * SECOND;
    // The last one is longer than an attempt: its answers arrive late, while the next attempt is in flight.
    for (there, back) in [(0, 0), (300, 0), (0, 300), (200, 250), (0, 900)] {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        faults.always(Verb::Renew, Fault::none().delay_before(there * MS).delay_after(back * MS));
        let guard = locks.mutex("a").options(options().expiry(expiry).unwrap()).acquire().await.unwrap();
        let mut left = guard.time_left().unwrap();
        let mut renewals = 0;
        while renewals < 5 {
            tokio::time::sleep(MS).await;
            let now = guard.time_left().unwrap();
            if now > left {
                renewals += 1;
                // The answer arrived between the previous check and this one.
                let exact = expiry - margin(expiry) - (there + back) * MS;
                assert!(now <= exact && now + MS >= exact, "{now:?} instead of {exact:?}");
            }
            left = now;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_gets_as_many_renewals_as_a_fast_one() {
    for delay in [0, 200, 400] {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        faults.always(Verb::Renew, Fault::none().delay_after(delay * MS));
        let _guard = locks.mutex("a").options(options().expiry(3 * SECOND).unwrap()).acquire().await.unwrap();
        let (mut seen, mut last) = (0, Instant::now());
        while seen < 10 {
            tokio::time::sleep(MS).await;
            let requests = world.store.stats().renew.requests;
            if requests > seen {
                // A third of the expiry, and less by up to an eighth of that.
                let apart = last.elapsed();
                assert!(apart <= SECOND + 2 * MS && apart >= 850 * MS, "{apart:?} apart, {delay} ms away");
                (seen, last) = (requests, Instant::now());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_engine_reports_the_loss_at_the_deadline_whatever_renewals_do() {
    for expiry in [100 * MS, 333 * MS, SECOND, 7 * SECOND, 45 * SECOND] {
        for fault in [Fault::hang_before(), Fault::hang_after(), Fault::fail()] {
            let world = World::new();
            let (locks, _clock, faults) = world.process();
            let options = options().expiry(expiry).unwrap().request_timeout(600 * SECOND).unwrap();
            let guard = locks.mutex("a").options(options).acquire().await.unwrap();
            let sent = Instant::now();
            faults.always(Verb::Renew, fault);
            // The engine reports it without a call on the guard.
            guard.cancellation_token().cancelled().await;
            let deadline = expiry - margin(expiry);
            assert!(
                sent.elapsed() >= deadline && sent.elapsed() <= deadline + 2 * MS,
                "{:?} instead of {deadline:?}",
                sent.elapsed()
            );
        }
    }
}

/// Its renewals are applied, but no answer arrives: it is lost here, and held in the store until its last expiry.
#[tokio::test(start_paused = true)]
async fn a_lost_guard_is_released_in_the_store_and_not_left_to_its_expiry() {
    for explicit in [true, false] {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let guard = locks.mutex("a").acquire().await.unwrap();
        faults.always(Verb::Renew, Fault::lost_reply());
        let reason = guard.lost().await;
        assert!(matches!(reason, LossReason::Expired { last_error: Some(_) }), "{reason:?}");
        let left = world.records("a").await[0].holders[0].expires_in.unwrap();
        assert!(left > SECOND, "{left:?}");
        if explicit {
            assert!(matches!(guard.release().await, Err(ReleaseError::Lost { .. })));
        } else {
            drop(guard);
        }
        tokio::time::sleep(MS).await;
        assert!(world.records("a").await.is_empty(), "explicit: {explicit}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_renewal_of_a_lock_leaves_time_for_more_attempts() {
    let world = World::new();
    let locks = world.locks();
    for expiry in [100 * MS, 3 * SECOND, 30 * SECOND] {
        let before = world.store.stats().renew.requests;
        let _guard = locks.mutex("a").options(options().expiry(expiry).unwrap()).acquire().await.unwrap();
        let begun = Instant::now();
        while world.store.stats().renew.requests == before {
            tokio::time::sleep(MS).await;
        }
        assert!(begun.elapsed() >= expiry / 4 && begun.elapsed() <= expiry / 3 + MS, "{:?}", begun.elapsed());
    }
}
