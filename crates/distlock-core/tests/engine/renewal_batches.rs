//! Renewals of many locks: what holds for each of them, whatever happens to the others of its batch or to the batches before it.

use std::sync::Arc;

use crate::common::{MS, SECOND, World, begin, options, until};
use crate::recording_store::Recorder;
use distlock_core::faults::{Fault, Faults, Verb};
use distlock_core::store::Backend;
use distlock_core::{Guard, Locks, LossReason, Options, VirtualClock};

/// As many batches as are in flight at once.
const IN_FLIGHT: usize = 4;

/// A process whose batches have at most so many leases.
fn process(store: &Recorder, most: usize, options: Options) -> (Locks, Faults) {
    let (faulty, faults) = store.store();
    let builder = Locks::builder(Backend::lease(faulty.max_batch(most))).clock(Arc::new(VirtualClock::new()));
    (builder.options(options).build().unwrap(), faults)
}

async fn acquire(locks: &Locks, count: usize) -> Vec<Guard> {
    let mut guards = Vec::new();
    for n in 0..count {
        guards.push(locks.mutex(format!("m{n}")).acquire().await.unwrap());
    }
    guards
}

/// How many renewals the store received.
fn sent(store: &Recorder) -> usize {
    store.renewals.lock().unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn a_lock_released_while_its_batch_waits_for_others_is_not_renewed() {
    let world = World::new();
    let store = Recorder::new(&world.store);
    let long = Options::new().expiry(5 * SECOND).unwrap().request_timeout(5 * SECOND).unwrap();
    let (locks, faults) = process(&store, 1, long);
    let mut guards = acquire(&locks, IN_FLIGHT + 3).await;
    faults.next(Verb::Renew, IN_FLIGHT, Fault::hang_after());
    until(|| async { sent(&store) == IN_FLIGHT }).await;
    // It is off the schedule, and its request is not sent yet.
    guards.pop().unwrap().release().await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert_eq!(sent(&store), IN_FLIGHT + 2, "the other two do not wait for those that hang");
    assert!(
        world.records(&format!("m{}", IN_FLIGHT + 2)).await.iter().all(|record| record.holders.is_empty())
    );
    tokio::time::sleep(20 * SECOND).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn a_lock_released_while_its_renewal_is_in_flight_stays_released() {
    for explicit in [true, false] {
        let world = World::new();
        let store = Recorder::new(&world.store);
        let (locks, faults) = process(&store, 100, options());
        let mut guards = acquire(&locks, 70).await;
        faults.always(Verb::Renew, Fault::none().delay_before(20 * MS).delay_after(20 * MS));
        until(|| async { store.renewals.lock().unwrap().len() == 1 }).await;
        let released = guards.swap_remove(66);
        match explicit {
            true => released.release().await.unwrap(),
            false => drop(released),
        }
        let next = world.locks().mutex("m66").acquire().timeout(SECOND).await.unwrap();
        tokio::time::sleep(10 * SECOND).await;
        assert!(!next.is_lost());
        // The first batch had it; later ones have only what is still held.
        let sizes: Vec<usize> = store.renewals.lock().unwrap().iter().map(|(_, leases)| *leases).collect();
        assert_eq!(sizes.first(), Some(&70));
        assert!(sizes.len() > 3 && sizes[1..].iter().all(|size| *size <= 69), "{sizes:?}");
        assert!(guards.iter().all(|guard| !guard.is_lost()));
    }
}

#[tokio::test(start_paused = true)]
async fn locks_of_different_expiries_in_one_batch_each_keep_their_own_deadline() {
    let world = World::new();
    let store = Recorder::new(&world.store);
    let (locks, faults) = process(&store, 100, options());
    // Less than a third of either expiry, so that both are due at the same moments.
    let with = |expiry| options().expiry(expiry).unwrap().extension_cadence(900 * MS).unwrap();
    let (short, long) =
        (locks.mutex("short").options(with(3 * SECOND)), locks.mutex("long").options(with(30 * SECOND)));
    let (short, long) = (short.acquire().await.unwrap(), long.acquire().await.unwrap());
    let never = locks.mutex("never").options(with(3 * SECOND).auto_extend(false)).acquire().await.unwrap();
    until(|| async { store.renewals.lock().unwrap().len() == 5 }).await;
    assert!(store.renewals.lock().unwrap().iter().all(|(_, leases)| *leases == 2));
    assert!(matches!(never.loss(), Some(LossReason::Expired { .. })), "nothing renewed it");
    let left = |guard: &Guard| guard.time_left().unwrap();
    assert!(left(&short) > 2 * SECOND && left(&short) < 3 * SECOND, "{:?}", left(&short));
    assert!(left(&long) > 29 * SECOND && left(&long) < 30 * SECOND, "{:?}", left(&long));
    faults.always(Verb::Renew, Fault::hang_before());
    let ends = tokio::time::Instant::now() + left(&short);
    short.cancellation_token().cancelled().await;
    assert!(tokio::time::Instant::now() <= ends + 2 * MS, "the engine reports it");
    assert!(!long.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_is_lost_on_time_while_renewals_of_others_hang() {
    let world = World::new();
    let store = Recorder::new(&world.store);
    let long = Options::new().expiry(60 * SECOND).unwrap().request_timeout(60 * SECOND).unwrap();
    let (locks, faults) = process(&store, 1, long.clone());
    let _guards = acquire(&locks, IN_FLIGHT).await;
    faults.always(Verb::Renew, Fault::hang_after());
    until(|| async { sent(&store) == IN_FLIGHT }).await;
    let short = long.expiry(SECOND).unwrap().auto_extend(false);
    let guard = locks.mutex("short").options(short).acquire().await.unwrap();
    let ends = tokio::time::Instant::now() + guard.time_left().unwrap();
    let mut lost = Box::pin(guard.lost());
    assert!(!begin(&mut lost).await);
    lost.await;
    assert!(tokio::time::Instant::now() <= ends + MS);
}
