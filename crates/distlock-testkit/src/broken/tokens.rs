//! Tokens that restart when their record is deleted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use distlock_core::{FencingToken, LockId, Resource};

/// Token counters that can be deleted.
#[derive(Debug, Default)]
pub(super) struct DeletableCounters(Mutex<Counters>);

#[derive(Debug, Default)]
struct Counters {
    last: HashMap<Resource, u64>,
    granted: HashMap<LockId, u64>,
}

impl DeletableCounters {
    fn with<T>(&self, act: impl FnOnce(&mut Counters) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The token of a grant: the counter plus one, or the same token for a known lock id.
    pub(super) fn token(&self, resource: &Resource, lock_id: &LockId) -> FencingToken {
        self.with(|counters| {
            if let Some(token) = counters.granted.get(lock_id) {
                return FencingToken::new(*token);
            }
            let last = counters.last.entry(resource.clone()).or_default();
            *last += 1;
            counters.granted.insert(lock_id.clone(), *last);
            FencingToken::new(*last)
        })
    }

    /// Deletes the counter.
    pub(super) fn delete(&self, resource: &Resource) {
        self.with(|counters| counters.last.remove(resource));
    }
}
