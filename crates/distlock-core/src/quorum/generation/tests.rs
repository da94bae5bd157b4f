//! The table of generations forgets nothing too early and keeps nothing for ever.

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
        cadence: None,
        no_overtaking: false,
        resizes: false,
        hold_at_least: Duration::ZERO,
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

#[test]
fn a_lock_id_that_ends_in_the_mark_or_is_only_a_generation_is_left_alone() {
    for odd in ["web~", "~1", "~", "web~x", "web~1x"] {
        let odd = LockId::from_stored(odd);
        assert_eq!(callers_lock_id(&odd), odd);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_later_generation_that_was_released_costs_no_memory() {
    let (quorum, faults) = quorum();
    // Later than the attempt waits: the next attempt goes out under another generation.
    faults[0].next(Verb::Acquire, 1, Fault::none().delay_before(Duration::from_secs(5)));
    faults[1].next(Verb::Acquire, 1, Fault::fail());
    assert!(quorum.try_acquire(&[claim("a")]).await.unwrap().remove(0).is_err());
    let Attempt::Granted { token } = ask(&quorum, "a").await else { panic!() };
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(quorum.0.generations.len(), 1, "renewals must find the nodes' lock id");
    quorum.release(&[Lease::of(&claim("a"), token)]).await.unwrap();
    rest().await;
    assert_eq!(quorum.0.generations.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn generations_that_nothing_depends_on_are_swept_and_those_in_use_are_not() {
    let (quorum, _) = quorum();
    let in_use = Generations::begin(&quorum.0, &claim("in use"));
    let released_late = |round: usize| {
        for n in 0..FIRST_SWEEP {
            let generation = Generations::begin(&quorum.0, &claim(&format!("{round}-{n}")));
            generation.may_be_released_late(quorum.0.options.clock.now());
        }
    };
    released_late(1);
    assert_eq!(quorum.0.generations.len(), FIRST_SWEEP + 1, "each may still be hit by its release");
    tokio::time::sleep(STALE).await;
    released_late(2);
    assert!(quorum.0.generations.len() <= FIRST_SWEEP + 1, "{}", quorum.0.generations.len());
    assert!(Generations::of(&quorum.0, &in_use.lease).is(&in_use));
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_frees_nothing_is_not_repeated_for_every_further_claim() {
    let (quorum, _) = quorum();
    let next_sweep = || quorum.0.generations.lock().sweep_at;
    let begin = |n: usize| Generations::begin(&quorum.0, &claim(&n.to_string()));
    let mut in_use: Vec<GenerationRef> = (0..FIRST_SWEEP).map(begin).collect();
    assert_eq!(next_sweep(), FIRST_SWEEP);
    in_use.push(begin(FIRST_SWEEP));
    assert_eq!(next_sweep(), 2 * FIRST_SWEEP);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_claim_that_ends_leaves_the_generation_to_its_other_users() {
    let (quorum, _) = quorum();
    let first = Generations::begin(&quorum.0, &claim("a"));
    assert!(first.keep(FencingToken::new(1), quorum.0.options.clock.now()).is_some());
    drop(Generations::begin(&quorum.0, &claim("a")));
    assert_eq!(quorum.0.generations.len(), 1, "a late answer would not find it");
    drop(first);
    assert_eq!(quorum.0.generations.len(), 0);
}
