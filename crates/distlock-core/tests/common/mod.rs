//! Shared by the engine's tests: a memory store under virtual time, with faults, and engines on it.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

pub mod panics;
pub mod sessions;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use distlock_core::faults::{Faults, FaultyStore};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{Backend, Query, Record};
use distlock_core::{Locks, Options, VirtualClock};

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// One memory store with its own clock. Each engine on it stands for a process.
pub struct World {
    pub store: MemoryStore,
    pub server_clock: VirtualClock,
    max_in_flight: usize,
}

impl World {
    pub fn new() -> Self {
        World::wide(1)
    }

    /// Its engines may have so many requests of one operation in flight.
    pub fn wide(max_in_flight: usize) -> Self {
        let server_clock = VirtualClock::new();
        let store = MemoryStore::with_clock(Arc::new(server_clock.clone()));
        World { store, server_clock, max_in_flight }
    }

    /// An engine, its clock, and the faults of its connection.
    pub fn process(&self) -> (Locks, VirtualClock, Faults) {
        self.process_with(options())
    }

    /// The same with other options, whose request time-out is also the engine's.
    pub fn process_with(&self, options: Options) -> (Locks, VirtualClock, Faults) {
        let clock = VirtualClock::new();
        let (store, faults) = FaultyStore::new(Arc::new(self.store.clone()));
        let locks = Locks::builder(Backend::lease(store.max_in_flight(self.max_in_flight)))
            .clock(Arc::new(clock.clone()))
            .options(options)
            .build()
            .unwrap();
        (locks, clock, faults)
    }

    pub fn locks(&self) -> Locks {
        self.process().0
    }

    /// Two processes contend for the mutex `a`: one holds it for two seconds while the other times out. Returns both, and
    /// the faults of the first one's connection.
    pub async fn contended_cycle(&self) -> (Locks, Locks, Faults) {
        let (ours, _clock, faults) = self.process();
        let theirs = self.locks();
        let held = ours.mutex("a").acquire().await.unwrap();
        assert!(theirs.mutex("a").try_acquire().timeout(50 * MS).await.unwrap().is_none());
        tokio::time::sleep(2 * SECOND).await;
        held.release().await.unwrap();
        (ours, theirs, faults)
    }

    pub async fn records(&self, name: &str) -> Vec<Record> {
        use distlock_core::store::Store;
        self.store.inspect(&Query::named(name)).await.unwrap()
    }

    /// Waits until a name has no holder and no waiter in the store.
    pub async fn until_clean(&self, name: &str) {
        until(|| async {
            self.records(name).await.iter().all(|r| r.holders.is_empty() && r.waiters.is_empty())
        })
        .await;
    }
}

pub fn options() -> Options {
    Options::new().expiry(3 * SECOND).unwrap().request_timeout(500 * MS).unwrap()
}

/// Lets virtual time pass until a condition holds, ten virtual minutes at most.
pub async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    for _ in 0..60_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(10 * MS).await;
    }
    panic!("the condition never held");
}

/// Polls once. True if it completed.
pub async fn begin<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_ready())).await
}
