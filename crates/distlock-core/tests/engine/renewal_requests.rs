//! The requests that renew and withdraw: how many leases each carries, and how often a failed one is repeated.

use std::sync::Arc;

use crate::common::{MS, SECOND, World, options, until};
use crate::recording_store::Recorder;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{Backend, Wake};
use distlock_core::{Error, ErrorKind, Locks, VirtualClock};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_renewal_carries_no_more_leases_than_the_store_takes() {
    let store = Recorder::new(&World::new().store);
    let builder =
        Locks::builder(Backend::lease(store.store().0.max_batch(3))).clock(Arc::new(VirtualClock::new()));
    let locks = builder.options(options()).build().unwrap();
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(locks.mutex(format!("m{n}")).acquire().await.unwrap());
    }
    tokio::time::sleep(10 * SECOND).await;
    let renewals = store.renewals.lock().unwrap().clone();
    let most = renewals.iter().map(|(_, leases)| *leases).max();
    assert_eq!(most, Some(3), "as many as it takes, and no more");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_repeated_often_and_ever_more_often_until_the_deadline() {
    let store = Recorder::new(&World::new().store);
    let (locks, ..) = store.locks(options());
    let guard = locks.mutex("a").acquire().await.unwrap();
    *store.refusal.lock().unwrap() = Some(Error::new(ErrorKind::Unavailable, "down"));
    guard.lost().await;
    let lost = Instant::now();
    let tries: Vec<Instant> = store.renewals.lock().unwrap().iter().map(|(when, _)| *when).collect();
    let longest = tries.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest <= 152 * MS, "a twentieth of the expiry: {longest:?}");
    let last = lost - *tries.last().unwrap();
    assert!(last <= 5 * MS, "the last try was {last:?} before the loss");
}

#[tokio::test(start_paused = true)]
async fn a_break_announced_during_a_renewal_waits_for_its_answer_and_is_looked_into_then() {
    let store = Recorder::new(&World::new().store);
    let (locks, _clock, faults) = store.locks(options().notice_break(true));
    faults.always(Verb::Renew, Fault::none().delay_after(300 * MS));
    let guard = locks.mutex("a").acquire().await.unwrap();
    until(|| async { store.is_subscribed() && store.renewals.lock().unwrap().len() == 1 }).await;
    store.wake(&Wake::broken(guard.lock_id().clone()));
    tokio::time::sleep(100 * MS).await;
    assert_eq!(store.renewals.lock().unwrap().len(), 1, "one request for a lease at a time");
    tokio::time::sleep(250 * MS).await;
    assert_eq!(store.renewals.lock().unwrap().len(), 2);
    assert!(!guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_that_the_store_refuses_for_good_is_not_repeated() {
    let world = World::new();
    let _held = world.locks().mutex("a").acquire().await.unwrap();
    let store = Recorder::new(&world.store);
    let (ours, ..) = store.locks(options());
    let waiter = tokio::spawn(async move { ours.mutex("a").acquire().await });
    until(|| async { store.last_is_registered() }).await;
    *store.refusal.lock().unwrap() = Some(Error::new(ErrorKind::Denied, "no right to release"));
    waiter.abort();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(store.released.lock().unwrap().len(), 1);
}
