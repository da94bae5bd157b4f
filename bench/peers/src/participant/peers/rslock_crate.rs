//! rslock 0.10, on one server.

use std::time::Duration;

use rslock::{LockGuard, LockManager};

use crate::scenarios::Peer;

pub struct Rslock {
    locks: LockManager,
    expiry: Duration,
}

impl Peer for Rslock {
    type Held = LockGuard;
    const RENEWS: bool = false;

    async fn connect(url: &str, expiry: Option<Duration>) -> Result<Self, String> {
        Ok(Rslock { locks: LockManager::new(vec![url]), expiry: expiry.unwrap_or(Duration::from_secs(30)) })
    }

    async fn acquire(&self, name: &str) -> Result<LockGuard, String> {
        self.locks.acquire(name, self.expiry).await.map_err(|error| error.to_string())
    }

    async fn release(&self, held: LockGuard) -> Result<(), String> {
        held.release().await;
        Ok(())
    }
}
