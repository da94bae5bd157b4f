//! Where a store cannot wake anybody, those of one process at least hear of each other: whoever gives back a part of a
//! pool rings for the first of them who waits for it, and that one asks the store. All others poll.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::resource::Resource;

type Waiting = HashMap<Resource, VecDeque<Arc<Notify>>>;

/// Who waits for which pool, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(Mutex<Waiting>);

/// One who waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Neighbour {
    all: Arc<Neighbours>,
    resource: Resource,
    bell: Arc<Notify>,
}

impl Neighbours {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes to wait behind all who do already.
    pub(crate) fn enter(self: &Arc<Self>, resource: &Resource) -> Neighbour {
        let bell = Arc::new(Notify::new());
        self.lock().entry(resource.clone()).or_default().push_back(Arc::clone(&bell));
        Neighbour { all: Arc::clone(self), resource: resource.clone(), bell }
    }

    /// Rings for the first one who waits for it.
    pub(crate) fn ring(&self, resource: &Resource) {
        if let Some(first) = self.lock().get(resource).and_then(VecDeque::front) {
            first.notify_one();
        }
    }
}

impl Neighbour {
    /// Resolves when somebody rang since the last time.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let mut waiting = self.all.lock();
        let Some(line) = waiting.get_mut(&self.resource) else { return };
        line.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
        if line.is_empty() {
            waiting.remove(&self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::resource::Kind;

    #[test]
    fn the_first_one_is_rung_for_also_when_it_was_not_listening_yet() {
        let neighbours = Arc::new(Neighbours::default());
        let resource = Resource::new(Kind::Semaphore, "a").unwrap();
        neighbours.ring(&resource);
        let (first, second) = (neighbours.enter(&resource), neighbours.enter(&resource));
        assert!(first.rung().now_or_never().is_none(), "nobody was there to hear it");
        neighbours.ring(&resource);
        assert!(second.rung().now_or_never().is_none());
        assert!(first.rung().now_or_never().is_some());
        drop(first);
        neighbours.ring(&resource);
        assert!(second.rung().now_or_never().is_some());
        drop(second);
        assert!(neighbours.lock().is_empty());
    }
}
