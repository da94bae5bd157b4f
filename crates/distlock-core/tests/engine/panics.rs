//! A driver that panics: the panic is an error of one request, and no other lock of the process is affected.

use std::future::IntoFuture;
use std::sync::Arc;

use crate::common::panics::{assert_told, goes_on};
use crate::common::sessions::{Call, SessionServer, When};
use crate::common::{MS, SECOND, World, begin, options, until};
use distlock_core::faults::{Fault, FaultyStore, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::{Backend, LeaseStore, Query};
use distlock_core::{Kind, Locks, LossReason, ReleaseError, VirtualClock};

const PANICS: [fn() -> Fault; 2] = [Fault::panic_before, Fault::panic_after];

#[tokio::test(start_paused = true)]
async fn an_acquire_that_panics_fails_alone_and_leaves_nothing_held() {
    for panics in PANICS {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let held = locks.mutex("held").acquire().await.unwrap();
        faults.next(Verb::Acquire, 1, panics());
        assert_told(&locks.mutex("a").acquire().await.unwrap_err());
        faults.next(Verb::Acquire, 1, panics());
        assert_told(&locks.semaphore("a", 2).try_acquire().await.unwrap_err());
        world.until_clean("a").await;
        goes_on(&locks, &held).await;
    }
}

/// The batch of nine panics, and one of its halves; or every part into which it is split.
#[tokio::test(start_paused = true)]
async fn a_batch_that_panics_is_sent_again_in_parts() {
    for (calls, panics) in [2, 17].into_iter().flat_map(|calls| PANICS.map(|panics| (calls, panics))) {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let held = locks.mutex("held").acquire().await.unwrap();
        faults.next(Verb::Acquire, 1, Fault::none().delay_before(MS));
        faults.next(Verb::Acquire, calls, panics());
        let asked: Vec<_> =
            (0..10).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future())).collect();
        let mut granted = 0;
        for one in asked {
            match one.await.unwrap() {
                Ok(_) => granted += 1,
                Err(error) => assert_told(&error),
            }
        }
        assert_eq!(granted, if calls == 2 { 10 } else { 1 });
        for n in 0..10 {
            world.until_clean(&format!("{n}")).await;
        }
        goes_on(&locks, &held).await;
    }
}

/// The callers were cancelled, and their lock ids withdrawn, before the store applied the batch that then panicked.
#[tokio::test(start_paused = true)]
async fn a_batch_that_panics_after_its_callers_were_cancelled_is_undone() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let held = locks.mutex("held").acquire().await.unwrap();
    faults.next(Verb::Acquire, 1, Fault::none().delay_before(MS));
    faults.next(Verb::Acquire, 1, Fault::panic_after().delay_before(20 * MS));
    let asked: Vec<_> =
        (0..5).map(|n| tokio::spawn(locks.mutex(format!("{n}")).acquire().into_future())).collect();
    tokio::time::sleep(10 * MS).await;
    asked.iter().for_each(tokio::task::JoinHandle::abort);
    drop(asked);
    until(|| async { world.store.stats().acquire.items == 6 }).await;
    let begun = tokio::time::Instant::now();
    for n in 0..5 {
        world.until_clean(&format!("{n}")).await;
    }
    assert!(begun.elapsed() < SECOND, "not before its expiry: {:?}", begun.elapsed());
    assert_eq!(world.store.stats().acquire.items, 6, "claims that no caller awaits are not sent again");
    goes_on(&locks, &held).await;
}

#[tokio::test(start_paused = true)]
async fn a_lone_request_that_panics_while_the_engine_drives_it_fails_alone() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let held = locks.mutex("held").acquire().await.unwrap();
    faults.next(Verb::Acquire, 1, Fault::panic_after().delay_before(MS));
    let mut first = locks.mutex("a").acquire().into_future();
    assert!(!begin(&mut first).await);
    drop(locks.mutex("b").acquire().await.unwrap());
    assert_told(&first.await.unwrap_err());
    world.until_clean("a").await;
    goes_on(&locks, &held).await;
}

/// Soon after its caller was cancelled, after the request time-out, and when only the engine still awaits it.
#[tokio::test(start_paused = true)]
async fn a_request_that_panics_after_its_caller_was_cancelled_is_undone() {
    for late in [20 * MS, 600 * MS, 1200 * MS] {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let held = locks.mutex("held").acquire().await.unwrap();
        faults.next(Verb::Acquire, 1, Fault::panic_after().delay_after(late));
        let asking = locks.mutex("a").acquire().into_future();
        assert!(tokio::time::timeout(10 * MS, asking).await.is_err());
        tokio::time::sleep(late).await;
        world.until_clean("a").await;
        goes_on(&locks, &held).await;
        locks.shutdown().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_panics_is_retried() {
    for panics in PANICS {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let held = locks.mutex("held").acquire().await.unwrap();
        faults.next(Verb::Renew, 1, panics());
        goes_on(&locks, &held).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_panics_long_after_its_timeout_loses_no_lock() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let held = locks.mutex("held").acquire().await.unwrap();
    faults.next(Verb::Renew, 1, Fault::panic_before().delay_before(600 * MS));
    goes_on(&locks, &held).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_renewals_all_panic_is_lost_with_the_reason() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let held = locks.mutex("held").acquire().await.unwrap();
    faults.always(Verb::Renew, Fault::panic_before());
    let reason = held.lost().await;
    assert!(
        matches!(&reason, LossReason::Expired { last_error: Some(error) } if error.contains("panicked")),
        "{reason:?}"
    );
    faults.heal();
    drop(held);
    let next = locks.mutex("held").acquire().await.unwrap();
    goes_on(&locks, &next).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_panics_is_reported_and_completed_in_the_background() {
    for panics in PANICS {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        let held = locks.mutex("held").acquire().await.unwrap();
        let guard = locks.mutex("a").acquire().await.unwrap();
        // The first attempt in the background panics too.
        faults.next(Verb::Release, 2, panics());
        let begun = tokio::time::Instant::now();
        match guard.release().await.unwrap_err() {
            ReleaseError::Unknown { error, .. } => assert_told(&error),
            other => panic!("{other:?}"),
        }
        world.until_clean("a").await;
        // The same for a dropped guard.
        let guard = locks.mutex("a").acquire().await.unwrap();
        faults.next(Verb::Release, 3, panics());
        drop(guard);
        world.until_clean("a").await;
        assert!(begun.elapsed() < SECOND, "not before its expiry: {:?}", begun.elapsed());
        goes_on(&locks, &held).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_or_a_stream_that_panics_is_opened_again() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let theirs = world.locks();
    let held = locks.mutex("held").acquire().await.unwrap();
    faults.next(Verb::Subscribe, 3, Fault::panic_before());
    let blocker = theirs.mutex("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.mutex("a").acquire().into_future());
    until(|| async { world.store.stats().subscriptions == 1 }).await;
    for opened in 2..5 {
        faults.panic_streams();
        until(|| async { world.store.stats().subscriptions == opened }).await;
    }
    // The waiter is woken by a message, before it would ask again by itself.
    tokio::time::sleep(100 * MS).await;
    let begun = tokio::time::Instant::now();
    blocker.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(begun.elapsed() < 10 * MS, "{:?}", begun.elapsed());
    guard.release().await.unwrap();
    goes_on(&locks, &held).await;
}

#[tokio::test(start_paused = true)]
async fn an_operators_request_that_panics_is_an_error() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let held = locks.mutex("held").acquire().await.unwrap();
    faults.next(Verb::Admin, 3, Fault::panic_before());
    assert_told(&locks.inspect(&Query::default()).await.unwrap_err());
    assert_told(&locks.break_lock(Kind::Mutex, "a").await.unwrap_err());
    assert_told(&locks.doctor().await.unwrap_err());
    goes_on(&locks, &held).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_of_a_quorum_that_panics_does_not_fail_the_quorum() {
    let (mut nodes, mut faults) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let node = MemoryStore::with_clock(Arc::new(VirtualClock::new()));
        let (node, fault) = FaultyStore::new(Arc::new(node));
        nodes.push(Arc::new(node) as Arc<dyn LeaseStore>);
        faults.push(fault);
    }
    let clock = Arc::new(VirtualClock::new());
    let quorum = Quorum::with_options(nodes, QuorumOptions::new().clock(clock.clone())).unwrap();
    let locks = Locks::builder(Backend::lease(quorum)).clock(clock).options(options()).build().unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    faults[1].always_all(Fault::panic_before());
    let guard = locks.mutex("a").acquire().await.unwrap();
    tokio::time::sleep(10 * SECOND).await;
    assert!(!guard.is_lost() && !held.is_lost());
    guard.release().await.unwrap();
    assert!(locks.inspect(&Query::named("held")).await.is_ok());
    faults[1].always_all(Fault::panic_after());
    goes_on(&locks, &held).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_acquire_that_panics_fails_alone_and_leaves_nothing_held() {
    for when in [When::Before, When::After] {
        let (server, clock) = (SessionServer::default(), VirtualClock::new());
        let locks = server.locks(&clock);
        let held = locks.mutex("held").acquire().await.unwrap();
        server.panic_next(Call::Acquire, when, 1);
        assert_told(&locks.mutex("a").acquire().await.unwrap_err());
        let again = locks.mutex("a").acquire().timeout(SECOND).await.expect("left held by the panic");
        again.release().await.unwrap();
        // The caller was cancelled before it panics.
        server.panic_next(Call::Acquire, when, 1);
        let mut left = locks.mutex("a").acquire().into_future();
        assert!(!begin(&mut left).await);
        tokio::time::sleep(MS).await;
        drop(left);
        let again = locks.mutex("a").acquire().timeout(SECOND).await.expect("left held by the panic");
        again.release().await.unwrap();
        goes_on(&locks, &held).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_release_that_panics_is_reported_and_completed_in_the_background() {
    for when in [When::Before, When::After] {
        let (server, clock) = (SessionServer::default(), VirtualClock::new());
        let locks = server.locks(&clock);
        let held = locks.mutex("held").acquire().await.unwrap();
        let guard = locks.mutex("a").acquire().await.unwrap();
        server.panic_next(Call::Release, when, 2);
        match guard.release().await.unwrap_err() {
            ReleaseError::Unknown { error, .. } => assert_told(&error),
            other => panic!("{other:?}"),
        }
        let again = locks.mutex("a").acquire().timeout(SECOND).await.expect("left held by the panic");
        server.panic_next(Call::Release, when, 2);
        drop(again);
        let again = locks.mutex("a").acquire().timeout(SECOND).await.expect("left held by the panic");
        again.release().await.unwrap();
        goes_on(&locks, &held).await;
    }
}
