//! What the tasks of this process hold, to notice a task that waits for itself: locks are not re-entrant.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::Shared;
use super::held::Held;
use super::local_queue::LocalQueues;
use super::telemetry;
use crate::resource::{LockIds, Resource};
use crate::store::Claim;

/// The task that runs, or the thread where no task does, as in `block_on`.
///
/// A number of eight bytes: tasks are even and threads are odd. Every hold has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskIdentity(u64);

impl TaskIdentity {
    pub(crate) fn current() -> Self {
        match tokio::task::try_id() {
            Some(id) => TaskIdentity(number_of(id) << 1),
            None => TaskIdentity(number_of(thread::current().id()) << 1 | 1),
        }
    }
}

/// The number in an identity that shows it to a hasher alone. Were it not the number, two identities could look alike, which
/// costs a needless warning.
fn number_of(identity: impl Hash) -> u64 {
    let mut number = NumberHasher(0);
    identity.hash(&mut number);
    number.finish()
}

struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = self.0.rotate_left(8) ^ number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What the holds of an engine share, and which task acquired how much of a resource. The list has only holds without a local
/// wait queue, which knows its holder.
#[derive(Debug)]
pub(crate) struct OwnHolds {
    /// The name of the store.
    pub(super) store: Arc<str>,
    /// Made their lock ids.
    pub(super) ids: Arc<LockIds>,
    pub(super) queues: Arc<LocalQueues>,
    list: Mutex<HashMap<Resource, Vec<(TaskIdentity, u32)>>>,
}

impl OwnHolds {
    pub(super) fn new(store: Arc<str>, ids: Arc<LockIds>, queues: Arc<LocalQueues>) -> Self {
        OwnHolds { store, ids, queues, list: Mutex::default() }
    }

    pub(super) fn add(&self, resource: &Resource, task: TaskIdentity, weight: u32) {
        let mut holds = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        holds.entry(resource.clone()).or_default().push((task, weight));
    }

    pub(super) fn remove(&self, resource: &Resource, task: TaskIdentity, weight: u32) {
        let mut holds = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(of_resource) = holds.get_mut(resource) else { return };
        if let Some(at) = of_resource.iter().position(|hold| *hold == (task, weight)) {
            of_resource.swap_remove(at);
        }
        if of_resource.is_empty() {
            holds.remove(resource);
        }
    }

    /// How much of a resource this task acquired and has not released.
    fn weight_of(&self, resource: &Resource, task: TaskIdentity) -> u64 {
        let holds = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let of_task = holds.get(resource).into_iter().flatten().filter(|(holder, _)| *holder == task);
        of_task.map(|(_, weight)| u64::from(*weight)).sum()
    }
}

/// Warns if the claim cannot be granted before the calling task releases what it holds of the resource itself. Readers that
/// share a lock, and a semaphore with enough other permits, give no warning.
pub(super) fn warn_if_self(shared: &Shared, claim: &Claim) {
    let own = shared.own_holds.weight_of(&claim.resource, TaskIdentity::current());
    if own > 0 && own + u64::from(claim.weight) > u64::from(claim.capacity) {
        telemetry::waits_for_itself(&claim.resource, &shared.store_name);
    }
}

/// The same for a mutex whose holder is the head of the local wait queue.
pub(super) fn warn_if_holder(shared: &Shared, resource: &Resource) {
    let held: Option<Arc<Held>> = shared.queues.holder(resource);
    if held.is_some_and(|held| held.is_held() && held.task == TaskIdentity::current()) {
        telemetry::waits_for_itself(resource, &shared.store_name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_task_and_every_thread_has_an_identity_of_its_own() {
        let mut found = vec![TaskIdentity::current()];
        for _ in 0..100 {
            found.push(tokio::spawn(async { TaskIdentity::current() }).await.unwrap());
            found.push(thread::spawn(TaskIdentity::current).join().unwrap());
        }
        for (at, identity) in found.iter().enumerate() {
            assert!(!found[..at].contains(identity), "{found:?}");
        }
        assert_eq!(found[0], TaskIdentity::current());
    }
}
