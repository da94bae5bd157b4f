//! Releases of this process that the store has not confirmed: of dropped guards, and of withdrawn claims. A single attempt waits
//! for them, so that it does not find its own process's leftovers and report contention.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::resource::Resource;

/// The pending releases of one resource, by number. A token is made when an attempt waits for that release.
type Releases = BTreeMap<u64, Option<CancellationToken>>;

#[derive(Debug, Default)]
pub(crate) struct PendingReleases {
    /// How many there are in total, so that an attempt on an idle engine takes no lock.
    total: AtomicUsize,
    next: AtomicU64,
    by_resource: Mutex<HashMap<Resource, Releases>>,
}

/// One release that is not confirmed. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    releases: Arc<PendingReleases>,
    resource: Resource,
    number: u64,
}

impl PendingReleases {
    fn lock(&self) -> MutexGuard<'_, HashMap<Resource, Releases>> {
        self.by_resource.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(self: &Arc<Self>, resource: &Resource) -> PendingRelease {
        self.total.fetch_add(1, Ordering::SeqCst);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().entry(resource.clone()).or_default().insert(number, None);
        PendingRelease { releases: Arc::clone(self), resource: resource.clone(), number }
    }

    /// Whether there is none, of any resource.
    pub(crate) fn is_empty(&self) -> bool {
        self.total.load(Ordering::SeqCst) == 0
    }

    /// Resolves when the releases of the resource that are pending now are confirmed or given up. Later ones do not count:
    /// under contention there is always one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn settled(&self, resource: &Resource) {
        if self.is_empty() {
            return;
        }
        let pending: Vec<CancellationToken> = match self.lock().get_mut(resource) {
            Some(releases) => releases.values_mut().map(|end| end.get_or_insert_default().clone()).collect(),
            None => return,
        };
        for end in pending {
            end.cancelled().await;
        }
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        let mut by_resource = self.releases.lock();
        let mut end = None;
        if let Some(releases) = by_resource.get_mut(&self.resource) {
            end = releases.remove(&self.number).flatten();
            if releases.is_empty() {
                by_resource.remove(&self.resource);
            }
        }
        drop(by_resource);
        self.releases.total.fetch_sub(1, Ordering::SeqCst);
        if let Some(end) = end {
            end.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::resource::Kind;

    #[tokio::test]
    async fn an_attempt_waits_for_every_release_of_its_resource_and_for_no_other() {
        let releases = Arc::new(PendingReleases::default());
        let resource = |name: &str| Resource::new(Kind::Mutex, name).unwrap();
        let (first, second) = (releases.begin(&resource("a")), releases.begin(&resource("a")));
        let other = releases.begin(&resource("b"));
        let mut settled = Box::pin({
            let releases = Arc::clone(&releases);
            async move { releases.settled(&resource("a")).await }
        });
        assert!(settled.as_mut().now_or_never().is_none());
        drop(first);
        assert!(settled.as_mut().now_or_never().is_none());
        let later = releases.begin(&Resource::new(Kind::Mutex, "a").unwrap());
        drop(second);
        settled.await;
        assert_eq!(releases.lock().len(), 2);
        drop((other, later));
        assert!(releases.lock().is_empty() && releases.total.load(Ordering::SeqCst) == 0);
    }
}
