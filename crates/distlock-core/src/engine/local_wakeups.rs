//! Local wake-ups, for stores that cannot push: a release of a pool wakes the first waiter for it in the same process,
//! and that waiter asks the store. All other waiters poll.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::resource::Resource;

type Notifiers = HashMap<Resource, VecDeque<Arc<Notify>>>;

/// The waiters of each pool, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct LocalWakeups(Mutex<Notifiers>);

/// A registered waiter. Dropping it removes the registration.
#[derive(Debug)]
pub(crate) struct LocalRegistration {
    wakeups: Arc<LocalWakeups>,
    resource: Resource,
    notify: Arc<Notify>,
}

impl LocalWakeups {
    fn lock(&self) -> MutexGuard<'_, Notifiers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waiter behind all others.
    pub(crate) fn register(self: &Arc<Self>, resource: &Resource) -> LocalRegistration {
        let notify = Arc::new(Notify::new());
        self.lock().entry(resource.clone()).or_default().push_back(Arc::clone(&notify));
        LocalRegistration { wakeups: Arc::clone(self), resource: resource.clone(), notify }
    }

    /// Wakes the first waiter.
    pub(crate) fn wake_first(&self, resource: &Resource) {
        if let Some(first) = self.lock().get(resource).and_then(VecDeque::front) {
            first.notify_one();
        }
    }
}

impl LocalRegistration {
    /// Resolves when this waiter was woken since the last call.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Drop for LocalRegistration {
    fn drop(&mut self) {
        let mut notifiers = self.wakeups.lock();
        let Some(waiters) = notifiers.get_mut(&self.resource) else { return };
        waiters.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
        if waiters.is_empty() {
            notifiers.remove(&self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::resource::Kind;

    #[test]
    fn a_wakeup_reaches_the_first_waiter_even_if_it_was_not_awaiting_yet() {
        let wakeups = Arc::new(LocalWakeups::default());
        let resource = Resource::new(Kind::Semaphore, "a").unwrap();
        wakeups.wake_first(&resource);
        let (first, second) = (wakeups.register(&resource), wakeups.register(&resource));
        assert!(first.woken().now_or_never().is_none(), "no waiter was registered yet");
        wakeups.wake_first(&resource);
        assert!(second.woken().now_or_never().is_none());
        assert!(first.woken().now_or_never().is_some());
        drop(first);
        wakeups.wake_first(&resource);
        assert!(second.woken().now_or_never().is_some());
        drop(second);
        assert!(wakeups.lock().is_empty());
    }
}
