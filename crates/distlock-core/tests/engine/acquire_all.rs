//! Several locks at once.

use std::future::IntoFuture;
use std::time::Duration;

use crate::common::sessions::SessionServer;
use crate::common::{MS, SECOND, World, options, until};
use distlock_core::faults::{Fault, Verb};
use distlock_core::{ErrorKind, Kind, Request, VirtualClock};

#[tokio::test(start_paused = true)]
async fn opposite_orders_do_not_deadlock() {
    let world = World::new();
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let locks = world.locks();
            tokio::spawn(async move {
                for _ in 0..50 {
                    let names = if n % 2 == 0 { ["a", "b", "c"] } else { ["c", "b", "a"] };
                    let all = locks.acquire_all(names).await.unwrap();
                    assert_eq!(all.guards().len(), 3);
                    tokio::time::sleep(MS).await;
                    all.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(600 * SECOND, task).await.expect("a deadlock").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_time_limit_covers_all_locks_and_a_failure_undoes_all() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let held = theirs.semaphore("z", 2).acquire_many(2).await.unwrap();
    let begun = tokio::time::Instant::now();
    let requests = [Request::mutex("a"), Request::write("b"), Request::permits("z", 2, 1)];
    let error = ours.acquire_all(requests.clone()).timeout(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.resource().unwrap().name(), "z");
    assert!(begun.elapsed() < SECOND + 10 * MS);
    for name in ["a", "b"] {
        world.until_clean(name).await;
    }
    held.release().await.unwrap();
    let all = ours.acquire_all(requests).await.unwrap();
    assert!(all.token_of(Kind::RwLock, "b").is_ok() && all.token_of(Kind::Mutex, "b").is_err());
    assert!(!all.is_lost());
}

#[tokio::test(start_paused = true)]
async fn an_undone_lock_ignores_the_minimum_hold_time() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let ours = ours.with_options(options().hold_at_least(3600 * SECOND).unwrap());
    let _held = theirs.rw_lock("z").write().await.unwrap();
    let requests = [Request::fair_mutex("a"), Request::mutex("b"), Request::read("c"), Request::read("z")];
    for dropped in [false, true] {
        let asking = ours.acquire_all(requests.clone());
        if dropped {
            let asking = tokio::time::timeout(100 * MS, std::future::IntoFuture::into_future(asking));
            asking.await.unwrap_err();
        } else {
            asking.timeout(100 * MS).await.unwrap_err();
        }
        let begun = tokio::time::Instant::now();
        for name in ["a", "b", "c"] {
            world.until_clean(name).await;
        }
        assert!(begun.elapsed() < SECOND, "dropped: {dropped}, {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_resource_named_twice_is_refused_before_anything_is_sent() {
    let world = World::new();
    let locks = world.locks();
    for twice in [
        vec![Request::mutex("a"), Request::fair_mutex("a")],
        vec![Request::read("a"), Request::write("a")],
        vec![Request::permits("a", 3, 1), Request::permits("a", 3, 1)],
    ] {
        assert_eq!(locks.acquire_all(twice).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(world.store.stats().requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn losing_one_lock_cancels_the_work() {
    let world = World::new();
    let (ours, _clock, _faults) = world.process();
    let theirs = world.locks();
    let all = ours.acquire_all(["a", "b"]).await.unwrap();
    theirs.break_lock(Kind::Mutex, "b").await.unwrap();
    let error = all.run(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(all.is_lost());
    drop(all);
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_acquire_all_leaves_nothing_held() {
    for after in 0..10 {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        faults.always(Verb::Acquire, Fault::none().delay_before(MS).delay_after(MS));
        let asking = std::future::IntoFuture::into_future(locks.acquire_all(["a", "b", "c"]));
        let _ = tokio::time::timeout(MS * after, asking).await;
        for name in ["a", "b", "c"] {
            world.until_clean(name).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_set_holds_nothing() {
    let world = World::new();
    let none: [&str; 0] = [];
    let all = world.locks().acquire_all(none).await.unwrap();
    assert!(all.guards().is_empty() && !all.is_lost());
    assert_eq!(all.run(async { 1 }).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn invalid_input_is_refused_before_anything_is_sent() {
    let world = World::new();
    let locks = world.locks();
    for bad in [
        Request::mutex(""),
        Request::read("n".repeat(5000)),
        Request::permits("z", 0, 1),
        Request::permits("z", 3, 0),
        Request::permits("z", 3, 4),
        Request::permits("z", u32::MAX, 1),
    ] {
        // The valid ones come first in the order of acquisition.
        let requests = [Request::mutex("\u{1}"), Request::fair_mutex("a"), bad];
        let error = locks.acquire_all(requests).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(world.store.stats().requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn unsupported_locks_are_refused_before_anything_is_sent() {
    let (server, clock) = (SessionServer::default(), VirtualClock::new());
    let (ours, theirs) = (server.locks(&clock), server.locks(&clock));
    // An attempt to acquire this one would wait.
    let _held = theirs.mutex("a").acquire().await.unwrap();
    for bad in
        [Request::fair_mutex("z"), Request::read("z"), Request::write("z"), Request::permits("z", 2, 1)]
    {
        let asking = ours.acquire_all([Request::mutex("a"), bad]).timeout(SECOND);
        assert_eq!(asking.await.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_that_lost_a_lock_while_it_waited_for_the_others_is_not_returned() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    for limit in [None, Some(60 * SECOND)] {
        let blocker = theirs.mutex("b").acquire().await.unwrap();
        let mut asking = ours.acquire_all([Request::mutex("a"), Request::mutex("b"), Request::read("c")]);
        if let Some(limit) = limit {
            asking = asking.timeout(limit);
        }
        let asking = tokio::spawn(asking.into_future());
        until(|| async { world.records("b").await.iter().any(|record| !record.waiters.is_empty()) }).await;
        let broken = theirs.break_lock(Kind::Mutex, "a").await.unwrap();
        // By now the loss has been detected.
        tokio::time::sleep(5 * SECOND).await;
        blocker.release().await.unwrap();
        let all = asking.await.unwrap().unwrap();
        assert!(!all.is_lost(), "{all:?}");
        assert!(Some(all.token("a").unwrap()) > broken[0].token);
        all.release().await.unwrap();
        for name in ["a", "b", "c"] {
            world.until_clean(name).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_longer_than_its_leases_reports_the_loss() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let plain = options().auto_extend(false).expiry(500 * MS).unwrap();
    faults.always(Verb::Acquire, Fault::none().delay_before(300 * MS));
    let asking = locks.acquire_all(["a", "b", "c"]).options(plain).timeout(Duration::ZERO);
    let error = asking.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(error.resource().unwrap().name(), "a");
    for name in ["a", "b", "c"] {
        world.until_clean(name).await;
    }
}
