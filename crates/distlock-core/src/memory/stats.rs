//! Request counters, for tests and benchmarks.

use std::sync::atomic::{AtomicU64, Ordering};

/// The calls of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Requests.
    pub requests: u64,
    /// Items in them.
    pub items: u64,
}

/// The calls of a [`MemoryStore`](super::MemoryStore) so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// `try_acquire`.
    pub acquire: Calls,
    /// `renew`.
    pub renew: Calls,
    /// `release`.
    pub release: Calls,
    /// Streams of wake-ups that were opened.
    pub subscriptions: u64,
    /// Wake-ups that were sent, delivered or not.
    pub wakes: u64,
}

impl Stats {
    /// Requests of all three operations.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.acquire.requests + self.renew.requests + self.release.requests
    }
}

#[derive(Debug, Default)]
pub(super) struct Counter {
    requests: AtomicU64,
    items: AtomicU64,
}

impl Counter {
    pub(super) fn count(&self, items: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.items.fetch_add(items as u64, Ordering::Relaxed);
    }

    fn read(&self) -> Calls {
        Calls { requests: self.requests.load(Ordering::Relaxed), items: self.items.load(Ordering::Relaxed) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) acquire: Counter,
    pub(super) renew: Counter,
    pub(super) release: Counter,
    pub(super) subscriptions: AtomicU64,
    pub(super) wakes: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> Stats {
        Stats {
            acquire: self.acquire.read(),
            renew: self.renew.read(),
            release: self.release.read(),
            subscriptions: self.subscriptions.load(Ordering::Relaxed),
            wakes: self.wakes.load(Ordering::Relaxed),
        }
    }
}
