//! distributed-lock 0.2 on Redis, PostgreSQL and files; for MongoDB see `distributed_mongo`.

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_file::FileLockProvider;
use distributed_lock_postgres::PostgresLockProvider;
use distributed_lock_redis::RedisLockProvider;

use crate::scenarios::Peer;

type HandleOf<P> = <<P as LockProvider>::Lock as DistributedLock>::Handle;

/// Acquires with a time limit, because without one it does not wait on Redis.
async fn acquire<P: LockProvider>(provider: &P, name: &str) -> Result<HandleOf<P>, String> {
    provider.create_lock(name).acquire(Some(Duration::from_secs(60))).await.map_err(|error| error.to_string())
}

async fn release(handle: impl LockHandle) -> Result<(), String> {
    handle.release().await.map_err(|error| error.to_string())
}

pub struct Redis(RedisLockProvider);

impl Peer for Redis {
    type Held = HandleOf<RedisLockProvider>;
    const RENEWS: bool = true;

    async fn connect(url: &str, expiry: Option<Duration>) -> Result<Self, String> {
        let mut builder = RedisLockProvider::builder().url(url);
        if let Some(expiry) = expiry {
            builder = builder.expiry(expiry).extension_cadence(expiry / 3).min_validity(expiry / 10);
        }
        builder.build().await.map(Redis).map_err(|error| error.to_string())
    }

    async fn acquire(&self, name: &str) -> Result<Self::Held, String> {
        acquire(&self.0, name).await
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        release(held).await
    }
}

pub struct Postgres(PostgresLockProvider);

impl Peer for Postgres {
    type Held = HandleOf<PostgresLockProvider>;
    // An advisory lock lives with its session; each needs one of its ten connections.
    const RENEWS: bool = false;

    async fn connect(url: &str, _: Option<Duration>) -> Result<Self, String> {
        PostgresLockProvider::new(url).await.map(Postgres).map_err(|error| error.to_string())
    }

    async fn acquire(&self, name: &str) -> Result<Self::Held, String> {
        acquire(&self.0, name).await
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        release(held).await
    }
}

pub struct Files(FileLockProvider);

impl Peer for Files {
    type Held = HandleOf<FileLockProvider>;
    const RENEWS: bool = false;

    async fn connect(url: &str, _: Option<Duration>) -> Result<Self, String> {
        let folder = url.strip_prefix("file://").unwrap_or(url);
        FileLockProvider::new(folder).map(Files).map_err(|error| error.to_string())
    }

    async fn acquire(&self, name: &str) -> Result<Self::Held, String> {
        acquire(&self.0, name).await
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        release(held).await
    }
}
