//! A subscription that breaks and reopens: wake-ups sent meanwhile are lost, so every waiter asks again.

use std::future::IntoFuture;

use crate::common::{MS, SECOND, World, options, until};
use crate::recording_store::Recorder;
use distlock_core::Options;
use distlock_core::store::Wake;
use tokio::time::Instant;

/// Waiters that are not woken ask again only after a minute.
fn rarely_polling() -> Options {
    options().busy_wait_sleep(59 * SECOND, 60 * SECOND).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_lost_between_two_subscriptions_costs_no_poll_interval() {
    for record in ["mutex", "pool"] {
        let world = World::new();
        let (ours, _clock, _faults) = world.process();
        let theirs = world.locks();
        let take = |locks: &distlock_core::Locks| match record {
            "mutex" => locks.mutex("a").options(rarely_polling()).acquire(),
            _ => locks.semaphore("a", 1).options(rarely_polling()).acquire(),
        };
        let held = take(&theirs).await.unwrap();
        let waiter = tokio::spawn(take(&ours).into_future());
        until(|| async { world.records("a").await.iter().any(|record| !record.waiters.is_empty()) }).await;
        // The stream breaks, the waiter asks, and the lock is released before the next stream opens.
        world.store.hang_up();
        tokio::time::sleep(10 * MS).await;
        assert_eq!(world.store.listeners(), 0);
        held.release().await.unwrap();
        let begun = Instant::now();
        let _guard = waiter.await.unwrap().unwrap();
        assert!(begun.elapsed() <= 60 * MS, "{record}: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn every_waiter_asks_when_a_subscription_opens_breaks_or_misses_messages() {
    let world = World::new();
    let theirs = world.locks();
    let mut held = Vec::new();
    let recorder = Recorder::new(&world.store);
    let (ours, _clock, _faults) = recorder.locks(rarely_polling());
    let mut waiters = Vec::new();
    for n in 0..5 {
        held.push(theirs.mutex(format!("m{n}")).acquire().await.unwrap());
        waiters.push(tokio::spawn(ours.mutex(format!("m{n}")).acquire().into_future()));
    }
    // Each asks once without a subscription, and once more when it is open, now with a queue entry.
    until(|| async { recorder.attempts() == 10 }).await;
    assert!(recorder.claims.lock().unwrap()[5..].iter().all(|claim| claim.waiting.is_some()));
    recorder.wake(&Wake::Missed);
    tokio::time::sleep(MS).await;
    assert_eq!(recorder.attempts(), 15);
    recorder.close_streams();
    tokio::time::sleep(MS).await;
    assert_eq!(recorder.attempts(), 20, "they cannot be woken now");
    until(|| async { recorder.is_subscribed() }).await;
    tokio::time::sleep(MS).await;
    assert_eq!(recorder.attempts(), 25, "wake-ups sent meanwhile are lost");
}
