//! Futures that were begun and are not polled for a while: their owner waits for something else. Nobody else may
//! have to wait for them.

use std::future::IntoFuture;
use std::task::Poll;

use crate::common::{MS, SECOND, World, options};
use distlock_core::ErrorKind;
use distlock_core::faults::{Fault, Verb};

/// Polls once, and leaves it at that.
async fn begin<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_ready()))
        .await
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_not_polled_holds_up_no_other() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_before(MS).delay_after(MS));
    let mut first = locks.mutex("a").acquire().into_future();
    assert!(!begin(&mut first).await);
    // The same task waits for another lock and does not poll the first meanwhile.
    let second = locks.mutex("b").acquire().timeout(SECOND).await.expect("held up by a future nobody polls");
    let third = locks.mutex("c").acquire().timeout(SECOND).await.unwrap();
    assert!(!first.await.unwrap().is_lost() && !second.is_lost() && !third.is_lost());
}

#[tokio::test(start_paused = true)]
async fn acquires_that_have_every_place_and_are_not_polled_hold_up_no_other() {
    let world = World::wide(3);
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_before(MS).delay_after(MS));
    let mut first: Vec<_> =
        ["a", "b", "c"].into_iter().map(|name| locks.mutex(name).acquire().into_future()).collect();
    for one in &mut first {
        assert!(!begin(one).await);
    }
    let later = locks.mutex("d").acquire().timeout(SECOND).await.expect("held up by futures nobody polls");
    // Every one of them went on, not only the one whose place was wanted.
    tokio::time::sleep(10 * MS).await;
    for name in ["a", "b", "c"] {
        assert!(
            world.records(name).await.iter().any(|record| !record.holders.is_empty()),
            "{name} stands still"
        );
    }
    for one in first {
        assert!(!one.await.unwrap().is_lost());
    }
    assert!(!later.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_polled_holds_up_no_other_and_is_done() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let (a, b) = (locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap());
    faults.always(Verb::Release, Fault::none().delay_before(MS).delay_after(MS));
    let mut first = Box::pin(a.release());
    assert!(!begin(&mut first).await);
    tokio::time::timeout(SECOND, b.release()).await.expect("held up").unwrap();
    first.await.unwrap();
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_came_while_nobody_polled_is_undone_with_its_future() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_after(MS));
    let mut first = locks.mutex("a").acquire().into_future();
    assert!(!begin(&mut first).await);
    let _second = locks.mutex("b").acquire().await.unwrap();
    assert!(
        world.records("a").await.iter().any(|record| !record.holders.is_empty()),
        "granted behind our back"
    );
    drop(first);
    world.until_clean("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_not_looked_at_until_it_was_over_is_not_taken_for_held() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    let other = world.locks();
    faults.next(Verb::Acquire, 1, Fault::none().delay_after(MS));
    let mut first = locks.mutex("a").options(options().auto_extend(false)).acquire().into_future();
    assert!(!begin(&mut first).await);
    tokio::time::sleep(10 * SECOND).await;
    // Over since long; somebody else has it by now.
    let second = other.mutex("a").acquire().await.unwrap();
    assert!(tokio::time::timeout(SECOND, &mut first).await.is_err(), "an old grant was believed");
    second.release().await.unwrap();
    assert!(!first.await.unwrap().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_while_the_engine_drives_it_leaves_no_work_behind() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Acquire, Fault::none().delay_before(10 * MS));
    let mut first = locks.mutex("a").acquire().into_future();
    assert!(!begin(&mut first).await);
    // Somebody waits behind it, so the engine takes it over; and then its owner gives up.
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
fn a_request_whose_driver_goes_away_with_its_runtime_is_driven_on_by_its_owner() {
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
        // Granted or told that the engine is gone: but not left alone with a driver that is.
        let _ = first.await;
    });
    assert!(begun.elapsed() < 20 * SECOND, "{:?}", begun.elapsed());
    drop(world);
}

#[test]
fn a_crowd_that_is_being_gathered_when_the_engine_goes_away_is_told_so() {
    // The engine's runtime has one thread and is driven by hand: what is posted to it below is never begun.
    let engines = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ours = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (world, locks) = engines.block_on(async {
        let world = World::new();
        let (locks, _clock, faults) = world.process();
        faults.always(Verb::Acquire, Fault::none().delay_before(MS));
        // Two wait behind one: from here on the lane gathers, as the last request carried many.
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
            let told = tokio::time::timeout(20 * SECOND, one)
                .await
                .expect("left waiting for an engine that is gone");
            let error = told.expect_err("granted by an engine that is gone");
            assert!(error.kind() == ErrorKind::ShutDown, "{error}");
        }
        // What nobody heard an answer of was never sent.
        assert!(world.records("d").await.is_empty() && world.records("e").await.is_empty());
    });
}
