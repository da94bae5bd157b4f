//! What the tasks of this process hold, to notice a task that waits for itself: locks are not re-entrant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use super::Shared;
use super::held::Held;
use super::telemetry;
use crate::resource::Resource;
use crate::store::Claim;

/// The task that runs, or the thread where no task does, as in `block_on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskIdentity {
    Task(tokio::task::Id),
    Thread(ThreadId),
}

impl TaskIdentity {
    pub(crate) fn current() -> Self {
        match tokio::task::try_id() {
            Some(id) => TaskIdentity::Task(id),
            None => TaskIdentity::Thread(thread::current().id()),
        }
    }
}

/// What the holds of an engine share: the name of the store, and which task acquired how much of a resource. The list has only
/// holds without a local wait queue, which knows its holder.
#[derive(Debug)]
pub(crate) struct OwnHolds {
    pub(super) store: Arc<str>,
    list: Mutex<HashMap<Resource, Vec<(TaskIdentity, u32)>>>,
}

impl OwnHolds {
    pub(super) fn new(store: Arc<str>) -> Self {
        OwnHolds { store, list: Mutex::default() }
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
