//! mongodb-lock 0.3. A dropped guard is released in the background, and there is no way to wait for that. So a cycle is an
//! acquisition alone, and every cycle has its own name, or it would wait half a second for the previous release.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mongodb::Client;
use mongodb_lock::{Mutex, MutexGuard};

use crate::scenarios::Peer;

pub struct MongodbLock {
    locks: &'static Mutex<String>,
    number: Arc<AtomicU64>,
}

impl Peer for MongodbLock {
    type Held = MutexGuard<'static, String>;
    const RENEWS: bool = false;

    async fn connect(url: &str, _: Option<Duration>) -> Result<Self, String> {
        let client = Client::with_uri_str(url).await.map_err(|error| error.to_string())?;
        let locks = Mutex::new(&client.database("distlock"), "mongodb_lock").await;
        let locks = locks.map_err(|error| error.to_string())?;
        Ok(MongodbLock { locks: Box::leak(Box::new(locks)), number: Arc::default() })
    }

    async fn acquire(&self, name: &str) -> Result<Self::Held, String> {
        let name = match name.contains("cycle/") {
            true => format!("{name}/{}", self.number.fetch_add(1, Ordering::Relaxed)),
            false => name.to_owned(),
        };
        loop {
            match self.locks.lock_default(name.clone()).await {
                Ok(guard) => return Ok(guard),
                Err(mongodb_lock::MutexLockError::LockTimeout) => continue,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        drop(held);
        Ok(())
    }
}
