//! Futures that were polled once and then not for a while, because their task awaits something else. They must not delay
//! other tasks.

use std::future::IntoFuture;
use std::task::Poll;

use crate::common::{MS, SECOND, World, options};
use distlock_core::ErrorKind;
use distlock_core::faults::{Fault, Verb};

/// Polls once.
async fn begin<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_ready()))
        .await
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_acquire_delays_no_other() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_before(MS).delay_after(MS));
    let mut first = locks.mutex("a").acquire().into_future();
    assert!(!begin(&mut first).await);
    // The same task awaits another lock and does not poll the first one meanwhile.
    let second = locks.mutex("b").acquire().timeout(SECOND).await.expect("delayed by an unpolled future");
    let third = locks.mutex("c").acquire().timeout(SECOND).await.unwrap();
    assert!(!first.await.unwrap().is_lost() && !second.is_lost() && !third.is_lost());
}

#[tokio::test(start_paused = true)]
async fn unpolled_acquires_in_every_slot_delay_no_other() {
    let world = World::wide(3);
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_before(MS).delay_after(MS));
    let mut first: Vec<_> =
        ["a", "b", "c"].into_iter().map(|name| locks.mutex(name).acquire().into_future()).collect();
    for one in &mut first {
        assert!(!begin(one).await);
    }
    let later = locks.mutex("d").acquire().timeout(SECOND).await.expect("delayed by unpolled futures");
    // All of them made progress, not only the one whose slot was needed.
    tokio::time::sleep(10 * MS).await;
    for name in ["a", "b", "c"] {
        assert!(
            world.records(name).await.iter().any(|record| !record.holders.is_empty()),
            "{name} is stalled"
        );
    }
    for one in first {
        assert!(!one.await.unwrap().is_lost());
    }
    assert!(!later.is_lost());
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_release_delays_no_other_and_is_completed() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let (a, b) = (locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap());
    faults.always(Verb::Release, Fault::none().delay_before(MS).delay_after(MS));
    let mut first = Box::pin(a.release());
    assert!(!begin(&mut first).await);
    tokio::time::timeout(SECOND, b.release()).await.expect("delayed").unwrap();
    first.await.unwrap();
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_an_unpolled_future_is_undone_when_the_future_is_dropped() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_after(MS));
    let mut first = locks.mutex("a").acquire().into_future();
    assert!(!begin(&mut first).await);
    let _second = locks.mutex("b").acquire().await.unwrap();
    assert!(
        world.records("a").await.iter().any(|record| !record.holders.is_empty()),
        "granted while the future was not polled"
    );
    drop(first);
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_expired_before_it_was_polled_is_not_held() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let other = world.locks();
    faults.next(Verb::Acquire, 1, Fault::none().delay_after(MS));
    let mut first = locks.mutex("a").options(options().auto_extend(false)).acquire().into_future();
    assert!(!begin(&mut first).await);
    tokio::time::sleep(10 * SECOND).await;
    // It expired long ago, and another client holds the lock.
    let second = other.mutex("a").acquire().await.unwrap();
    assert!(tokio::time::timeout(SECOND, &mut first).await.is_err(), "an expired grant was accepted");
    second.release().await.unwrap();
    assert!(!first.await.unwrap().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_while_the_engine_drives_it_leaves_no_work_behind() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_before(10 * MS));
    let mut first = locks.mutex("a").acquire().into_future();
    assert!(!begin(&mut first).await);
    // An item waits behind it, so the background task takes it over. Then its caller is cancelled.
    let mut second = locks.mutex("b").acquire().into_future();
    assert!(!begin(&mut second).await);
    tokio::time::sleep(MS).await;
    drop(first);
    second.await.unwrap().release().await.unwrap();
    world.until_clean("a").await;
    let begun = tokio::time::Instant::now();
    locks.shutdown().await.expect("something was left to do");
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
}

#[test]
fn a_request_whose_driver_ends_with_its_runtime_is_driven_by_its_caller() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (engines, ours) = (runtime(), runtime());
    let patient = options().expiry(60 * SECOND).unwrap().request_timeout(30 * SECOND).unwrap();
    let (world, locks, faults) = engines.block_on(async {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        (world, locks.with_options(patient), faults)
    });
    faults.always(Verb::Acquire, Fault::none().delay_before(SECOND));
    let begun = std::time::Instant::now();
    ours.block_on(async move {
        let mut first = locks.mutex("a").acquire().into_future();
        assert!(!begin(&mut first).await);
        let mut second = locks.mutex("b").acquire().into_future();
        assert!(!begin(&mut second).await);
        tokio::time::sleep(100 * MS).await;
        engines.shutdown_background();
        // Granted, or an error because the engine has ended, but not left pending.
        let _ = first.await;
    });
    assert!(begun.elapsed() < 20 * SECOND, "{:?}", begun.elapsed());
    drop(world);
}

#[test]
fn a_batch_that_is_being_gathered_when_the_engine_ends_gets_an_error() {
    // The engine's runtime has one thread and is driven by hand: the commands sent to it below never run.
    let engines = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ours = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (world, locks) = engines.block_on(async {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        faults.always(Verb::Acquire, Fault::none().delay_before(MS));
        // Two wait behind one. From here on the batcher gathers, because the last request carried many.
        let [a, b, c] = ["a", "b", "c"].map(|name| locks.mutex(name).acquire().into_future());
        let (a, b, c) = tokio::join!(a, b, c);
        for guard in [a, b, c] {
            guard.unwrap().leak();
        }
        faults.heal();
        (world, locks)
    });
    let asking = ours.block_on(async {
        let mut asking: Vec<_> =
            ["d", "e"].into_iter().map(|name| locks.mutex(name).acquire().into_future()).collect();
        for one in &mut asking {
            assert!(!begin(one).await);
        }
        assert!(world.records("d").await.is_empty(), "sent at once, so nothing was gathered");
        asking
    });
    drop(engines);
    ours.block_on(async {
        for one in asking {
            let outcome = tokio::time::timeout(20 * SECOND, one)
                .await
                .expect("left waiting for an engine that has ended");
            let error = outcome.expect_err("granted by an engine that has ended");
            assert!(error.kind() == ErrorKind::ShutDown, "{error}");
        }
        // Claims without an answer were never sent.
        assert!(world.records("d").await.is_empty() && world.records("e").await.is_empty());
    });
}
