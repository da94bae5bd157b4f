//! Locks on Redis 6 and later and on Valkey: one server, the master that sentinels name, a Cluster, or a majority of
//! independent servers (Redlock).
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use distlock_core::{Locks, store::Backend};
//! use distlock_redis::{RedisConfig, RedisStore};
//!
//! let store = RedisStore::connect(RedisConfig::parse("redis://127.0.0.1/")?).await?;
//! let locks = Locks::new(Backend::lease(store))?;
//! let guard = locks.mutex("orders/42").acquire().await?;
//! # drop(guard); Ok(()) }
//! ```
//!
//! # URLs
//! | URL | |
//! | --- | --- |
//! | `redis://[user:password@]host[:port][/db]` | one server; `valkey://` is the same |
//! | `rediss://…` | the same over TLS; `valkeys://` too |
//! | `unix:///path?db=0&user=u&pass=p` | a Unix socket; `redis+unix://` too |
//! | `redis+sentinel://h1:p,h2:p/master-name` | the master of that name; `rediss+sentinel://` with TLS |
//! | `redis+cluster://h1:p,h2:p` | a Cluster, found through any of its nodes; `rediss+cluster://` with TLS |
//! | `redlock://h1:p,h2:p,h3:p[/db]` | independent servers; `redlocks://` with TLS |
//!
//! A login before the first of several hosts is meant for all of them, unless others have one of their own; a first host
//! without one is then written `@host`. A comma in a login is written `%2C`. TLS is a matter of the scheme alone, and
//! certificates are always checked. How a URL is read: [`StoreUrl`].
//!
//! | parameter | default | |
//! | --- | --- | --- |
//! | `distlock.prefix` | `distlock:` | what keys and channels begin with; empty for the bare name |
//! | `distlock.response_timeout` | `2s` (`1s` on the servers of a Redlock) | then the connection is made anew |
//! | `distlock.connect_timeout` | the same | |
//! | `distlock.min_replicas` | `0` | how many replicas must confirm a grant or an extension (`WAIT`) |
//! | `distlock.retention` | `10m` | for how long the token of an unused name is kept |
//! | `distlock.tls_ca`, `distlock.tls_cert`, `distlock.tls_key` | the system's | PEM files: whom to trust, who we are |
//! | `distlock.sentinel_user`, `distlock.sentinel_password` | none | the login of the sentinels themselves |
//! | `distlock.node_timeout`, `distlock.min_validity`, `distlock.repair` | `50ms`, `10ms`, `on` | Redlock only: see [`QuorumOptions`](distlock_core::quorum::QuorumOptions) |
//!
//! # Sharing mutexes with other programs
//! A mutex is the key *prefix + name*; its value is the lock id and its expiry is the key's. That is the convention of
//! `SET key value NX PX ms`, released by compare-and-delete, which redis-py, node-redlock, redsync and many others
//! follow: they and we exclude each other on the same key. What they cannot do is take part in the queue: they poll.
//! Token, waiters and the other primitives live in keys beside it, in the same hash slot.
//!
//! # What holds and what does not
//! - Expiry goes by the server's clock. A clock that somebody sets forward ends leases early; fencing tokens
//!   protect from what follows.
//! - One server without persistence forgets its locks when it restarts: holders are told at their next extension.
//!   Tokens rise all the same, since the clock has gone on.
//! - A name that was used leaves its token behind: 190 bytes for `distlock.retention` and an eighth of that, so 130 MB at
//!   1,000 new names a second. Tokens of a name rise as long as the clock is never set back by more than the retention,
//!   a fail-over to a replica whose clock is behind included: a token is at least the clock, and it is kept until the
//!   clock is past it by the retention.
//! - A release grants in about a millisecond of the server's time at most, however many waiters gave up or died before:
//!   where more of them have to be seen off, the store sends it again.
//! - Replication is asynchronous: a fail-over may lose the latest grants. `min_replicas` makes that rarer.
//! - A Redlock carries mutexes and reader-writer locks; semaphores and fair mutexes over majorities are unsound and
//!   refused.
//! - A release grants the mutex or the permits to whoever waits first and tells that process: with many contenders an
//!   acquisition costs two commands, whatever their number.
//!
//! # Rights
//! `~PREFIX* &PREFIX* +eval +evalsha +time +get +mget +set +del +exists +pexpire +pttl +hget +hmget +hset +hdel +hgetall
//! +publish +subscribe +unsubscribe`, and for lists, checks and the other topologies `+scan +info +wait +role +cluster|slots`.

#[cfg(feature = "bench")]
mod baseline;
mod config;
mod doctor;
mod inspect;
mod keys;
mod net;
mod redlock;
mod script;
mod slot;
mod store;
mod trouble;
mod url;
mod verbs;

pub use config::{Address, RedisConfig, Servers};
pub use keys::DEFAULT_PREFIX;
pub use redlock::RedlockConfig;
pub use store::RedisStore;

use distlock_core::Result;
use distlock_core::store::{Backend, Driver, StoreUrl};

/// All Redis stores, by URL.
pub static DRIVER: Driver = driver();

const SCHEMES: &[&str] = &[
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "redlock",
    "redlocks",
    "unix",
    "redis+unix",
    "valkey",
    "valkeys",
    "valkey+unix",
];

const fn driver() -> Driver {
    let driver = Driver::new(SCHEMES, "redis://host:6379", |url| Box::pin(connect(url)));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(open_baseline(url)));
    driver
}

#[cfg(feature = "bench")]
async fn open_baseline(url: StoreUrl) -> Result<Option<Box<dyn distlock_core::bench::Baseline>>> {
    match url.scheme() {
        "redlock" | "redlocks" => Ok(None),
        _ => RedisStore::connect(RedisConfig::from_url(url)?).await?.baseline().await,
    }
}

async fn connect(url: StoreUrl) -> Result<Backend> {
    match url.scheme() {
        "redlock" | "redlocks" => Ok(Backend::lease(RedlockConfig::from_url(url)?.connect().await?)),
        _ => Ok(Backend::lease(RedisStore::connect(RedisConfig::from_url(url)?).await?)),
    }
}
