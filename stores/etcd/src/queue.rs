//! Who is granted: a decision from the claims in front of ours.
//!
//! The claims of a resource are ordered by creation revision. A claim is granted if its weight and the weights of all claims
//! in front of it fit the capacity. New claims always go to the end, so a claim that is granted stays granted until its key
//! is deleted, and every client that reads the queue comes to the same decision.

use std::collections::HashMap;

use distlock_core::Kind;

use crate::api::KeyValue;
use crate::keys::ClaimValue;

/// A claim in front of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Predecessor {
    pub(crate) key: Vec<u8>,
    /// Everything for a value that cannot be parsed: a key that distlock did not write blocks.
    pub(crate) weight: u32,
    /// `None` for a value that cannot be parsed.
    pub(crate) capacity: Option<u32>,
}

impl Predecessor {
    pub(crate) fn of(kv: &KeyValue) -> Self {
        let value = ClaimValue::parse(&kv.value);
        Predecessor {
            key: kv.key.clone(),
            weight: value.map_or(u32::MAX, |value| value.weight),
            capacity: value.map(|value| value.capacity),
        }
    }
}

/// What follows for our claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Granted,
    /// Wait until this key is deleted; with `grants`, also until its holder marks it as granted.
    WaitFor {
        key: Vec<u8>,
        grants: bool,
    },
    /// All claims in front of ours are granted: wait until those that are deleted leave enough.
    WaitForWeight(HeldWeight),
}

/// The weights of the holders in front of the first waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldWeight {
    holders: HashMap<Vec<u8>, u32>,
    total: u64,
    /// The most that may be held for our claim to be granted.
    allowed: u64,
}

impl HeldWeight {
    /// Takes note of a deleted key. Returns whether our claim is granted now.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        if let Some(weight) = self.holders.remove(key) {
            self.total -= u64::from(weight);
        }
        self.total <= self.allowed
    }
}

/// Decides about a claim of this weight, given the claims in front of it in their order.
pub(crate) fn decide(kind: Kind, weight: u32, capacity: u32, before: &[Predecessor]) -> Decision {
    let Some(last) = before.last() else { return Decision::Granted };
    let wait_for =
        |predecessor: &Predecessor, grants| Decision::WaitFor { key: predecessor.key.clone(), grants };
    match kind {
        Kind::RwLock if weight <= 1 => {
            // A reader waits for the nearest writer only.
            before
                .iter()
                .rev()
                .find(|other| other.weight > 1)
                .map_or(Decision::Granted, |writer| wait_for(writer, false))
        }
        Kind::Semaphore => {
            let total: u64 = before.iter().map(|other| u64::from(other.weight)).sum();
            let allowed = u64::from(capacity).saturating_sub(u64::from(weight));
            if total <= allowed {
                return Decision::Granted;
            }
            // Where a claim resizes, one in front of it may be granted by a larger capacity.
            let mixed = before.iter().any(|other| other.capacity.is_some_and(|theirs| theirs != capacity));
            if total > u64::from(capacity) && !mixed {
                // The claim in front of ours waits too, and is granted before ours.
                return wait_for(last, true);
            }
            let holders = before.iter().map(|other| (other.key.clone(), other.weight)).collect();
            Decision::WaitForWeight(HeldWeight { holders, total, allowed })
        }
        // A mutex or a writer: everything in front of it must go.
        _ => wait_for(last, false),
    }
}

/// How many claims at the head of a queue are granted. The others wait.
pub(crate) fn granted_count(kind: Kind, claims: &[Predecessor]) -> usize {
    (0..claims.len())
        .take_while(|at| {
            let claim = &claims[*at];
            let capacity = claim.capacity.unwrap_or(1);
            decide(kind, claim.weight, capacity, &claims[..*at]) == Decision::Granted
        })
        .count()
}

/// The capacity that a pool is in use with, if it is another one than ours.
pub(crate) fn other_capacity(capacity: u32, before: &[Predecessor]) -> Option<u32> {
    before.iter().find_map(|other| other.capacity).filter(|theirs| *theirs != capacity)
}

#[cfg(test)]
mod tests {
    use distlock_core::WRITER_WEIGHT;

    use super::*;

    fn queue(weights: &[u32], capacity: u32) -> Vec<Predecessor> {
        let claim = |(at, weight): (usize, &u32)| Predecessor {
            key: vec![at as u8],
            weight: *weight,
            capacity: Some(capacity),
        };
        weights.iter().enumerate().map(claim).collect()
    }

    fn waits_for(key: u8, grants: bool) -> Decision {
        Decision::WaitFor { key: vec![key], grants }
    }

    #[test]
    fn a_mutex_waits_for_its_direct_predecessor() {
        assert_eq!(decide(Kind::Mutex, 1, 1, &[]), Decision::Granted);
        assert_eq!(decide(Kind::Mutex, 1, 1, &queue(&[1, 1, 1], 1)), waits_for(2, false));
    }

    #[test]
    fn a_reader_waits_for_the_nearest_writer_and_a_writer_for_all() {
        const W: u32 = WRITER_WEIGHT;
        let decide = |weight, before: &[u32]| decide(Kind::RwLock, weight, W, &queue(before, W));
        assert_eq!(decide(1, &[1, 1, 1]), Decision::Granted);
        assert_eq!(decide(1, &[1, W, 1, W, 1]), waits_for(3, false));
        assert_eq!(decide(W, &[1, 1]), waits_for(1, false));
        assert_eq!(granted_count(Kind::RwLock, &queue(&[1, 1, W, 1], W)), 2);
    }

    #[test]
    fn the_first_waiter_of_a_semaphore_counts_and_the_others_wait_for_their_predecessor() {
        let decide = |weight, before: &[u32]| decide(Kind::Semaphore, weight, 4, &queue(before, 4));
        assert_eq!(decide(2, &[1, 1]), Decision::Granted);
        assert_eq!(decide(1, &[3, 2]), waits_for(1, true), "the one in front waits, though we would fit");
        let Decision::WaitForWeight(mut held) = decide(3, &[1, 2, 1]) else { panic!("the first waiter") };
        assert!(!held.remove(b"another key"));
        assert!(!held.remove(&[0]), "three are still held");
        assert!(!held.remove(&[0]), "counted once");
        assert!(held.remove(&[1]), "one is held, three are free");
        assert_eq!(granted_count(Kind::Semaphore, &queue(&[1, 2, 2, 1], 4)), 2);
    }

    #[test]
    fn a_key_of_another_program_blocks() {
        let foreign = Predecessor { key: vec![0], weight: u32::MAX, capacity: None };
        for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore] {
            assert_ne!(decide(kind, 1, 4, std::slice::from_ref(&foreign)), Decision::Granted);
        }
        assert_eq!(other_capacity(4, std::slice::from_ref(&foreign)), None);
        assert_eq!(other_capacity(4, &queue(&[1], 5)), Some(5));
        assert_eq!(granted_count(Kind::Mutex, std::slice::from_ref(&foreign)), 1);
    }
}
