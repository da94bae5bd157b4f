//! redsync 1.0, on one server. It blocks, so each call runs on a blocking thread.

use std::sync::Arc;
use std::time::Duration;

use redsync::{Lock, RedisInstance, Redsync};

use crate::scenarios::Peer;

pub struct RedsyncPeer {
    locks: Arc<Redsync<RedisInstance>>,
    expiry: Duration,
}

impl Peer for RedsyncPeer {
    type Held = Lock;
    const RENEWS: bool = false;

    async fn connect(url: &str, expiry: Option<Duration>) -> Result<Self, String> {
        let instance = RedisInstance::new(url).map_err(|error| error.to_string())?;
        let expiry = expiry.unwrap_or(Duration::from_secs(30));
        Ok(RedsyncPeer { locks: Arc::new(Redsync::new(vec![instance])), expiry })
    }

    async fn acquire(&self, name: &str) -> Result<Lock, String> {
        let (locks, name, expiry) = (Arc::clone(&self.locks), name.to_owned(), self.expiry);
        let done = tokio::task::spawn_blocking(move || {
            loop {
                // It fails after three tries; a waiter tries again.
                match locks.lock(&name, expiry) {
                    Ok(lock) => return lock,
                    Err(_) => continue,
                }
            }
        });
        done.await.map_err(|error| error.to_string())
    }

    async fn release(&self, held: Lock) -> Result<(), String> {
        let locks = Arc::clone(&self.locks);
        let done =
            tokio::task::spawn_blocking(move || locks.unlock(&held).map_err(|error| error.to_string()));
        done.await.map_err(|error| error.to_string())?
    }
}
