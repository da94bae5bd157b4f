//! The suite on the memory store, the reference: threads play the other processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use distlock_core::memory::MemoryStore;
use distlock_core::store::Backend;
use distlock_core::{BootClock, Clock, Moment};
use distlock_testkit::conformance::{ActorMode, Fixture};

/// The store's clock, which an operator may set.
#[derive(Clone, Debug, Default)]
struct Settable(Arc<AtomicI64>);

impl Clock for Settable {
    fn now(&self) -> Moment {
        // The machine may have been started a moment ago: leave room to go back.
        let now = BootClock.now().after(Duration::from_secs(24 * 3600));
        let seconds = self.0.load(Ordering::SeqCst);
        let offset = Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 { now.before(offset) } else { now.after(offset) }
    }
}

struct Memory {
    store: MemoryStore,
    clock: Settable,
}

impl Fixture for Memory {
    async fn open() -> Self {
        let clock = Settable::default();
        Memory { store: MemoryStore::with_clock(Arc::new(clock.clone())), clock }
    }

    async fn connect(&self) -> Backend {
        Backend::lease(self.store.clone())
    }

    fn actor_mode(&self) -> ActorMode {
        ActorMode::Threads { reason: "a memory store lives in one process" }
    }

    async fn cut_connections(&self) {
        self.store.hang_up();
    }

    async fn move_clock(&self, seconds: i64) {
        self.clock.0.store(seconds, Ordering::SeqCst);
    }
}

distlock_testkit::conformance!(Memory, faults: [cut_connections, move_clock]);
