//! Tokens that go wrong.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use distlock_core::{FencingToken, LockId, Resource};

/// Tokens counted in a record that can be deleted.
#[derive(Debug, Default)]
pub(super) struct DeletedCounts(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    last: HashMap<Resource, u64>,
    granted: HashMap<LockId, u64>,
}

impl DeletedCounts {
    fn with<T>(&self, act: impl FnOnce(&mut Counts) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The token of a grant: one more than the record says, the first time.
    pub(super) fn token(&self, resource: &Resource, lock_id: &LockId) -> FencingToken {
        self.with(|counts| {
            if let Some(token) = counts.granted.get(lock_id) {
                return FencingToken::new(*token);
            }
            let last = counts.last.entry(resource.clone()).or_default();
            *last += 1;
            counts.granted.insert(lock_id.clone(), *last);
            FencingToken::new(*last)
        })
    }

    /// Deletes the record.
    pub(super) fn delete(&self, resource: &Resource) {
        self.with(|counts| counts.last.remove(resource));
    }
}
