//! The store without an engine: single attempts and whole batches.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::{Attempt, Backend, Claim, Inbox, LeaseStore, Waiting};
use distlock_core::{Kind, LockId, LockIds, Resource};

use super::{SECOND, TestDatabase, connect};

pub struct BareStore {
    pub store: Arc<dyn LeaseStore>,
    pub ids: LockIds,
}

impl BareStore {
    pub async fn new(test_db: &TestDatabase) -> Self {
        BareStore::at(&test_db.url).await
    }

    pub async fn at(url: &str) -> Self {
        match connect(url).await.unwrap() {
            Backend::Lease(store) => BareStore { store, ids: LockIds::new("bare") },
            Backend::Session(_) => panic!("not a lease store"),
        }
    }

    /// A claim that does not wait. Pools have a capacity of ten.
    pub fn claim(&self, kind: Kind, name: &str, expiry: Duration) -> Claim {
        Claim::new(Resource::new(kind, name).unwrap(), self.ids.next(), expiry)
            .with_capacity(if kind == Kind::Mutex { 1 } else { 10 })
    }

    /// A claim that waits.
    pub fn waiting(&self, kind: Kind, name: &str, lock_id: LockId, ttl: Duration) -> Claim {
        let waiting = Some(Waiting::new(Inbox::new(self.ids.prefix()), ttl, 1));
        self.claim(kind, name, 60 * SECOND).with_lock_id(lock_id).with_waiting(waiting)
    }

    pub async fn ask(&self, claim: &Claim) -> Attempt {
        self.store.try_acquire(std::slice::from_ref(claim)).await.unwrap().pop().unwrap().unwrap()
    }
}
