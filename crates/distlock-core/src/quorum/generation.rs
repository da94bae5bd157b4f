//! Attempt generations: what the quorum knows about a lock id while calls about it are in flight.
//!
//! A node may apply a request long after the quorum stopped waiting for it. Two things follow:
//!
//! - A late grant must be kept if a majority granted the lock without it and the lock is still held, and withdrawn
//!   otherwise. So every late answer looks up its [`Generation`].
//! - A late *release* must not hit a later attempt under the same lock id, which waiters repeat all the time. While a
//!   release may still be in flight, the next attempt uses another generation of the id: `id~1`, `id~2`, …

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::QuorumInner;
use crate::clock::Moment;
use crate::resource::{FencingToken, LockId};
use crate::store::{Claim, Lease};

/// For how long after an unanswered release its lock id is not used again on the nodes.
const STALE: Duration = Duration::from_secs(60);
const FIRST_SWEEP: usize = 1024;

/// Whether an attempt was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptState {
    /// Not decided yet.
    Undecided,
    /// A majority granted it, and it was not released since.
    Granted(FencingToken),
    /// Undone, superseded or released: further grants are withdrawn.
    Ended,
}

/// One generation of a lock id.
#[derive(Debug)]
pub(super) struct Generation {
    lock_id: LockId,
    number: u32,
    /// The lease as the nodes know it, with their generation of the lock id.
    pub(super) lease: Lease,
    state: Mutex<GenerationState>,
}

#[derive(Debug)]
struct GenerationState {
    attempt: AttemptState,
    /// Its caller released it, and will not ask for it again.
    released: bool,
    /// It was asked for again while it was held.
    asked_again: bool,
    /// How many calls or operations use it.
    users: usize,
    /// Nodes that granted late while the attempt was undecided.
    late_grants: Vec<usize>,
    /// Nodes that are being asked to take the lease again.
    repairing: Vec<usize>,
    /// Until then a lease of a later generation may be renewed or released, and must be found.
    keep_until: Moment,
    /// Until then a release may still be applied late.
    stale_until: Moment,
    /// Earlier generations with calls in flight. While there are any, the numbering continues.
    older: Vec<Arc<Generation>>,
}

impl Generation {
    fn state(&self) -> MutexGuard<'_, GenerationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks an undecided attempt as granted, and returns the nodes that granted late meanwhile. `None`: it was released
    /// or superseded meanwhile, and must be undone.
    pub(super) fn keep(&self, token: FencingToken, now: Moment) -> Option<Vec<usize>> {
        let mut state = self.state();
        if state.attempt != AttemptState::Undecided {
            return None;
        }
        state.attempt = AttemptState::Granted(token);
        state.keep_until = now.after(self.lease.expiry.saturating_mul(2));
        Some(std::mem::take(&mut state.late_grants))
    }

    /// Marks the attempt as ended: everything that nodes granted or will grant under this generation is withdrawn. Returns
    /// the nodes that granted late, and whether nodes may have something from an earlier attempt.
    pub(super) fn end(&self) -> (Vec<usize>, bool) {
        let mut state = self.state();
        state.attempt = AttemptState::Ended;
        (std::mem::take(&mut state.late_grants), state.asked_again)
    }

    /// Marks every generation as released by its caller.
    pub(super) fn release(&self) {
        self.end();
        let mut state = self.state();
        state.released = true;
        for older in &state.older {
            older.state().released = true;
        }
    }

    pub(super) fn is_released(&self) -> bool {
        self.state().released
    }

    /// Whether the nodes know it under the caller's own lock id.
    pub(super) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Records that a node granted after the attempt stopped listening, and returns the state of the attempt. If it is
    /// undecided, the decision also handles this node.
    pub(super) fn granted_late(&self, node: usize) -> AttemptState {
        let mut state = self.state();
        if state.attempt == AttemptState::Undecided {
            state.late_grants.push(node);
        }
        state.attempt
    }

    /// Records that a release may have been lost, or may be applied later.
    pub(super) fn may_be_released_late(&self, now: Moment) {
        let mut state = self.state();
        state.stale_until = state.stale_until.max(now.after(STALE));
    }

    /// Records that a renewal was confirmed.
    pub(super) fn touch(&self, now: Moment) {
        let mut state = self.state();
        state.keep_until = state.keep_until.max(now.after(self.lease.expiry.saturating_mul(2)));
    }

    /// Begins the repair of a node. False if it is in progress, or the lease is not held any more.
    pub(super) fn begin_repair(&self, node: usize) -> bool {
        let mut state = self.state();
        if !matches!(state.attempt, AttemptState::Granted(_)) || state.repairing.contains(&node) {
            return false;
        }
        state.repairing.push(node);
        true
    }

    pub(super) fn end_repair(&self, node: usize) {
        self.state().repairing.retain(|other| *other != node);
    }

    /// Whether it can be forgotten: no call in flight, no release that may be applied late, and no lease whose later
    /// generation would be unknown without it.
    fn is_idle(&self, now: Moment) -> bool {
        let mut state = self.state();
        state.older.retain(|older| !older.is_idle(now));
        let known_without =
            self.number == 0 || state.attempt == AttemptState::Ended || state.keep_until <= now;
        state.users == 0 && state.stale_until <= now && state.older.is_empty() && known_without
    }
}

/// The current generations of a quorum, by the caller's lock id. A lock that is only held has none.
#[derive(Debug)]
pub(super) struct Generations(Mutex<GenerationTable>);

#[derive(Debug)]
struct GenerationTable {
    by_id: HashMap<LockId, Arc<Generation>>,
    sweep_at: usize,
}

impl Generations {
    pub(super) fn new() -> Self {
        Generations(Mutex::new(GenerationTable { by_id: HashMap::new(), sweep_at: FIRST_SWEEP }))
    }

    fn lock(&self) -> MutexGuard<'_, GenerationTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation for a new attempt.
    pub(super) fn begin(inner: &Arc<QuorumInner>, claim: &Claim) -> GenerationRef {
        let mut generations = inner.generations.lock();
        let (number, older) = match generations.by_id.get(&claim.lock_id) {
            None => (0, Vec::new()),
            Some(generation) => {
                let mut state = generation.state();
                match state.attempt {
                    // A repeated claim for a held lock: idempotent, under the same ids.
                    AttemptState::Granted(_) => {
                        state.attempt = AttemptState::Undecided;
                        state.asked_again = true;
                        state.users += 1;
                        return GenerationRef {
                            inner: Arc::clone(inner),
                            generation: Arc::clone(generation),
                        };
                    }
                    // The older of two concurrent attempts is superseded, and undoes what it is granted.
                    AttemptState::Undecided | AttemptState::Ended => {
                        state.attempt = AttemptState::Ended;
                        let mut older = std::mem::take(&mut state.older);
                        older.push(Arc::clone(generation));
                        (generation.number + 1, older)
                    }
                }
            }
        };
        let lease = Lease::of(claim, FencingToken::new(0));
        generations.issue(inner, lease, number, older, AttemptState::Undecided)
    }

    /// The generation of a granted lease, or of what may be left of a claim.
    pub(super) fn of(inner: &Arc<QuorumInner>, lease: &Lease) -> GenerationRef {
        let mut generations = inner.generations.lock();
        if let Some(generation) = generations.by_id.get(&lease.lock_id) {
            generation.state().users += 1;
            return GenerationRef { inner: Arc::clone(inner), generation: Arc::clone(generation) };
        }
        generations.issue(inner, lease.clone(), 0, Vec::new(), AttemptState::Granted(lease.token))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().by_id.len()
    }
}

impl GenerationTable {
    fn issue(
        &mut self,
        inner: &Arc<QuorumInner>,
        mut lease: Lease,
        number: u32,
        older: Vec<Arc<Generation>>,
        attempt: AttemptState,
    ) -> GenerationRef {
        let now = inner.options.clock.now();
        if self.by_id.len() >= self.sweep_at {
            self.by_id.retain(|_, generation| !generation.is_idle(now));
            self.sweep_at = (self.by_id.len() * 2).max(FIRST_SWEEP);
        }
        let lock_id = lease.lock_id.clone();
        lease.lock_id = of_generation(&lock_id, number);
        let state = GenerationState {
            attempt,
            released: false,
            asked_again: false,
            users: 1,
            late_grants: Vec::new(),
            repairing: Vec::new(),
            keep_until: Moment::from_nanos(0),
            stale_until: Moment::from_nanos(0),
            older,
        };
        let (id, state) = (lock_id.clone(), Mutex::new(state));
        let generation = Arc::new(Generation { lock_id: id, number, lease, state });
        self.by_id.insert(lock_id, Arc::clone(&generation));
        GenerationRef { inner: Arc::clone(inner), generation }
    }
}

/// A generation that a call or an operation uses. It is forgotten when it has no users and nothing depends on it.
#[derive(Debug)]
pub(super) struct GenerationRef {
    inner: Arc<QuorumInner>,
    generation: Arc<Generation>,
}

impl Deref for GenerationRef {
    type Target = Generation;

    fn deref(&self) -> &Generation {
        &self.generation
    }
}

impl Clone for GenerationRef {
    fn clone(&self) -> Self {
        self.generation.state().users += 1;
        GenerationRef { inner: Arc::clone(&self.inner), generation: Arc::clone(&self.generation) }
    }
}

impl Drop for GenerationRef {
    fn drop(&mut self) {
        let now = self.inner.options.clock.now();
        let mut generations = self.inner.generations.lock();
        self.generation.state().users -= 1;
        // Our generation, or a later one that was kept for us.
        if generations.by_id.get(&self.generation.lock_id).is_some_and(|current| current.is_idle(now)) {
            generations.by_id.remove(&self.generation.lock_id);
        }
    }
}

impl GenerationRef {
    pub(super) fn is(&self, other: &GenerationRef) -> bool {
        Arc::ptr_eq(&self.generation, &other.generation)
    }
}

const MARK: char = '~';

fn of_generation(lock_id: &LockId, generation: u32) -> LockId {
    match generation {
        0 => lock_id.clone(),
        _ => LockId::from_stored(format!("{lock_id}{MARK}{generation}")),
    }
}

/// The caller's lock id for a lock id that the nodes know.
pub(super) fn callers_lock_id(lock_id: &LockId) -> LockId {
    match lock_id.as_str().rsplit_once(MARK) {
        Some((before, generation))
            if !before.is_empty()
                && !generation.is_empty()
                && generation.bytes().all(|b| b.is_ascii_digit()) =>
        {
            LockId::from_stored(before)
        }
        _ => lock_id.clone(),
    }
}

#[cfg(test)]
mod tests;
