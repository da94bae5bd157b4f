//! The generations of generations forgets nothing too early and keeps nothing for ever.

use super::*;
use crate::faults::{Fault, Faults, FaultyStore, Verb};
use crate::memory::MemoryStore;
use crate::quorum::{Quorum, QuorumOptions};
use crate::resource::{Kind, Resource};
use crate::store::{Attempt, LeaseStore};
use crate::{Clock, VirtualClock};

fn quorum() -> (Quorum, Vec<Faults>) {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new());
    let nodes = (0..3).map(|_| FaultyStore::new(Arc::new(MemoryStore::with_clock(clock.clone()))));
    let (stores, faults): (Vec<_>, Vec<_>) = nodes.unzip();
    let stores = stores.into_iter().map(|store| Arc::new(store) as Arc<dyn LeaseStore>).collect();
    let options = QuorumOptions::new().clock(Arc::new(VirtualClock::new()));
    (Quorum::with_options(stores, options).unwrap(), faults)
}

fn claim(id: &str) -> Claim {
    Claim {
        resource: Resource::new(Kind::Mutex, "m").unwrap(),
        lock_id: LockId::from_stored(id),
        weight: 1,
        capacity: 1,
        expiry: Duration::from_secs(10),
        waiting: None,
        no_overtaking: false,
    }
}

async fn ask(quorum: &Quorum, id: &str) -> Attempt {
    quorum.try_acquire(&[claim(id)]).await.unwrap().remove(0).unwrap()
}

/// Lets the calls end that no caller awaits.
async fn rest() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_released_or_refused_costs_no_memory() {
    let (quorum, _) = quorum();
    let Attempt::Granted { token } = ask(&quorum, "a").await else { panic!() };
    rest().await;
    assert_eq!(quorum.0.generations.len(), 0);
    ask(&quorum, "b").await;
    let lease = Lease::of(&claim("a"), token);
    quorum.renew(std::slice::from_ref(&lease)).await.unwrap();
    quorum.release(&[lease]).await.unwrap();
    rest().await;
    assert_eq!(quorum.0.generations.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn generations_count_on_while_an_older_one_may_still_be_heard_of() {
    let (quorum, faults) = quorum();
    ask(&quorum, "other").await;
    faults[0].next(Verb::Acquire, 1, Fault::none().delay_after(Duration::from_secs(30)));
    for generation in 0..3 {
        ask(&quorum, "a").await;
        rest().await;
        let generations = quorum.0.generations.lock();
        assert_eq!(generations.by_id.values().next().unwrap().number, generation);
    }
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(quorum.0.generations.len(), 0, "the last answer is in");
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_later_generation_is_found_until_it_is_released() {
    let (quorum, faults) = quorum();
    faults[0].next(Verb::Acquire, 1, Fault::hang_before());
    faults[1].next(Verb::Acquire, 1, Fault::fail());
    assert!(quorum.try_acquire(&[claim("a")]).await.unwrap().remove(0).is_err());
    let Attempt::Granted { token } = ask(&quorum, "a").await else { panic!() };
    let lease = Lease::of(&claim("a"), token);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        let renewed = quorum.renew(std::slice::from_ref(&lease)).await.unwrap().remove(0).unwrap();
        assert_eq!(renewed, crate::store::Renewal::Renewed);
    }
    quorum.release(&[lease]).await.unwrap();
    assert!(matches!(ask(&quorum, "b").await, Attempt::Granted { .. }));
}

#[test]
fn a_generation_is_told_from_a_lock_id_that_looks_like_one() {
    let plain = LockId::from_stored("host~2:7#ab-1");
    assert_eq!(callers_lock_id(&plain), plain);
    assert_eq!(callers_lock_id(&of_generation(&plain, 12)), plain);
    assert_eq!(of_generation(&plain, 0), plain);
}
