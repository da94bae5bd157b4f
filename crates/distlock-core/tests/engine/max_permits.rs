//! A store whose semaphores are limited.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::faults::{HookedStore, StoreHooks};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{Backend, Capabilities};
use distlock_core::{ErrorKind, Locks, Request};

#[derive(Debug)]
struct Limited;

#[async_trait]
impl StoreHooks for Limited {
    fn capabilities(&self, mut inner: Capabilities) -> Capabilities {
        inner.max_permits = 3;
        inner
    }
}

#[tokio::test(start_paused = true)]
async fn a_semaphore_that_is_too_large_for_the_store_is_refused() {
    let store = HookedStore::new(Arc::new(MemoryStore::new()), Arc::new(Limited));
    let locks = Locks::new(Backend::lease(store)).unwrap();
    let refused = [
        locks.semaphore("s", 4).acquire().await.unwrap_err(),
        locks.semaphore("s", 4).try_acquire().await.unwrap_err(),
        locks.acquire_all([Request::permits("s", 4, 1)]).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("at most 3 permits"), "{error}");
    }
    let all = locks.semaphore("s", 3).acquire_many(3).await.unwrap();
    assert!(locks.semaphore("s", 3).try_acquire().await.unwrap().is_none());
    drop(all);
}
