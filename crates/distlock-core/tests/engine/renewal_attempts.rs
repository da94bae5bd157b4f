//! Renewals that hang or are answered late: each attempt has a share of the time left, so that one that hangs loses no lock.

use crate::common::{MS, SECOND, World, options};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{ErrorKind, LossReason, Options};
use tokio::time::Instant;

/// The request time-out is at least as long as the expiry, so that it does not limit an attempt by itself.
fn long_requests() -> Options {
    Options::new().expiry(5 * SECOND).unwrap().request_timeout(5 * SECOND).unwrap()
}

#[tokio::test(start_paused = true)]
async fn renewals_that_hang_are_retried_before_the_deadline() {
    for fault in [Fault::hang_before(), Fault::hang_after()] {
        for hung in 1..=2 {
            for request in [5, 600] {
                let world = World::new();
                let (locks, _clock, faults) = world.process();
                let options = long_requests().request_timeout(request * SECOND).unwrap();
                let guard = locks.mutex("a").options(options).acquire().await.unwrap();
                faults.next(Verb::Renew, hung, fault);
                for _ in 0..40 {
                    tokio::time::sleep(500 * MS).await;
                    assert!(!guard.is_lost(), "{hung} hung, request timeout {request} s: {:?}", guard.loss());
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_at_once_is_retried_even_with_the_longest_cadence() {
    for expiry in [100 * MS, SECOND, 10 * SECOND] {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let options = Options::new().expiry(expiry).unwrap().extension_cadence(expiry / 4 * 3).unwrap();
        let guard = locks.mutex("a").options(options).acquire().await.unwrap();
        for fault in [Fault::fail(), Fault::lost_reply(), Fault::hang_before()] {
            faults.next(Verb::Renew, 1, fault);
            tokio::time::sleep(3 * expiry).await;
            assert!(!guard.is_lost(), "expiry {expiry:?}, {fault:?}: {:?}", guard.loss());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_its_attempt_timed_out_still_renews_and_costs_few_requests() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let guard = locks.mutex("a").options(long_requests()).acquire().await.unwrap();
    // An attempt gets about 1.1 s.
    faults.always(Verb::Renew, Fault::none().delay_after(2 * SECOND));
    tokio::time::sleep(100 * SECOND).await;
    assert!(!guard.is_lost());
    let requests = world.store.stats().renew.requests;
    assert!(requests <= 120, "{requests} renewals in 100 s at a cadence of 1.7 s");
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_its_attempt_timed_out_still_reports_the_loss() {
    let world = World::new();
    let (ours, _clock, faults) = world.process();
    let theirs = world.locks();
    let guard = ours.mutex("a").options(long_requests()).acquire().await.unwrap();
    let begun = Instant::now();
    faults.always(Verb::Renew, Fault::none().delay_after(1_500 * MS));
    theirs.break_lock(distlock_core::Kind::Mutex, "a").await.unwrap();
    assert_eq!(guard.lost().await, LossReason::NotYours);
    // The first renewal is sent after a third of the expiry at the latest.
    assert!(begun.elapsed() <= 5 * SECOND / 3 + 1_500 * MS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_lost_at_its_deadline_although_every_renewal_hangs() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let guard = locks.mutex("a").options(long_requests().request_timeout(600 * SECOND).unwrap());
    let guard = guard.acquire().await.unwrap();
    let begun = Instant::now();
    faults.always(Verb::Renew, Fault::hang_before());
    // The engine reports it without a call on the guard.
    guard.cancellation_token().cancelled().await;
    let deadline = 5 * SECOND - 5 * SECOND / 100 - 2 * MS;
    assert!(begun.elapsed() >= deadline && begun.elapsed() <= deadline + 2 * MS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn healthy_locks_are_not_lost_at_the_longest_cadence() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always_all(Fault::none().delay_before(30 * MS).delay_after(30 * MS));
    let longest = Options::new().expiry(10 * SECOND).unwrap().extension_cadence(7_500 * MS).unwrap();
    let mut guards = Vec::new();
    for n in 0..50 {
        guards.push(locks.mutex(format!("m{n}")).options(longest.clone()).acquire().await.unwrap());
    }
    for _ in 0..100 {
        tokio::time::sleep(SECOND).await;
        assert_eq!(guards.iter().filter(|guard| guard.is_lost()).count(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cadence_that_leaves_no_time_for_a_second_attempt_is_refused_before_anything_is_sent() {
    let world = World::new();
    let locks = world.locks();
    let of = |expiry| Options::new().expiry(expiry).unwrap();
    for error in [
        of(10 * SECOND).extension_cadence(9_950 * MS).unwrap().check().unwrap_err(),
        of(10 * SECOND).extension_cadence(7_501 * MS).unwrap().check().unwrap_err(),
        of(10 * SECOND).extension_cadence(std::time::Duration::from_nanos(1)).unwrap_err(),
        of(10 * SECOND).extension_cadence(9_999 * MS / 1_000).unwrap_err(),
        of(30 * SECOND)
            .extension_cadence(20 * SECOND)
            .unwrap()
            .expiry(26 * SECOND)
            .unwrap()
            .check()
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.advice().is_some(), "{error}");
    }
    // In any order: the options are checked together when they are used.
    let later = Options::new().extension_cadence(40 * SECOND).unwrap();
    assert!(later.clone().expiry(120 * SECOND).is_ok());
    let error = locks.mutex("a").options(later.clone()).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("40s") && error.advice().is_some(), "{error}");
    assert!(locks.semaphore("s", 2).options(later.clone()).try_acquire().await.is_err());
    assert_eq!(world.store.stats().acquire.requests, 0);
    // Without automatic renewal the cadence does not matter.
    let plain = later.auto_extend(false);
    assert!(locks.mutex("a").options(plain).acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_shortest_cadence_sends_no_storm_of_renewals() {
    let world = World::new();
    let locks = world.locks();
    let shortest = options().extension_cadence(10 * MS).unwrap();
    let _guard = locks.mutex("a").options(shortest).acquire().await.unwrap();
    tokio::time::sleep(SECOND).await;
    let requests = world.store.stats().renew.requests;
    assert!((50..=130).contains(&requests), "{requests} renewals in a second at a cadence of 10 ms");
}
