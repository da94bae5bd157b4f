//! The fixture of a broken store.

use distlock_core::memory::MemoryStore;
use distlock_core::store::Backend;

use super::{BrokenStore, Defect};
use crate::conformance::{ActorMode, Fixture};

/// The fixture of a memory store with or without a defect.
#[derive(Debug)]
pub struct BrokenFixture(BrokenStore);

impl BrokenFixture {
    /// A fresh store with this defect.
    #[must_use]
    pub fn with(defect: Defect) -> Self {
        BrokenFixture(BrokenStore::new(MemoryStore::new(), Some(defect)))
    }
}

impl Fixture for BrokenFixture {
    /// A store without a defect.
    async fn open() -> Self {
        BrokenFixture(BrokenStore::new(MemoryStore::new(), None))
    }

    async fn connect(&self) -> Backend {
        Backend::lease(self.0.clone())
    }

    fn actor_mode(&self) -> ActorMode {
        ActorMode::Threads { reason: "a memory store lives in one process" }
    }
}
