//! Locks on Redis 6 and later and on Valkey: one server, the master that sentinels name, a Cluster, or a majority of
//! independent servers (Redlock).
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use distlock_core::{Locks, store::{Backend, StoreUrl}};
//! use distlock_redis::{RedisConfig, RedisStore};
//!
//! let config = RedisConfig::from_url(&StoreUrl::parse("redis://127.0.0.1/")?)?;
//! let locks = Locks::new(Backend::lease(RedisStore::connect(config).await?))?;
//! let guard = locks.mutex("orders/42").acquire().await?;
//! # drop(guard); Ok(()) }
//! ```
//!
//! # URLs
//! | URL | servers |
//! | --- | --- |
//! | `redis://[user:password@]host[:port][/db]` | one server; `valkey://` is the same |
//! | `rediss://…` | the same over TLS; also `valkeys://` |
//! | `unix:///path?db=0&user=u&pass=p` | a Unix socket; also `redis+unix://` |
//! | `redis+sentinel://h1:p,h2:p/master-name` | the master of that name; `rediss+sentinel://` with TLS |
//! | `redis+cluster://h1:p,h2:p` | a Cluster, discovered through any of its nodes; `rediss+cluster://` with TLS |
//! | `redlock://h1:p,h2:p,h3:p[/db]` | independent servers; `redlocks://` with TLS |
//!
//! A login before the first of several hosts applies to all of them, unless others have one of their own; a first host without
//! a login is then written `@host`. A comma in a login is written `%2C`. Only the scheme enables TLS, and certificates are always
//! checked. [`StoreUrl`] describes the grammar.
//!
//! | option | default | meaning |
//! | --- | --- | --- |
//! | `distlock.prefix` | `distlock:` | the prefix of keys and channels; empty for the bare name |
//! | `distlock.response_timeout` | `2s` (`1s` on the servers of a Redlock) | how long a reply may take before the connection is replaced |
//! | `distlock.connect_timeout` | the same | how long it may take to connect and log in |
//! | `distlock.min_replicas` | `0` | how many replicas must confirm a grant or a renewal (`WAIT`) |
//! | `distlock.retention` | `10m` | how long the last token is kept; of pools, that of an unused name |
//! | `distlock.tls_ca`, `distlock.tls_cert`, `distlock.tls_key` | the system's | PEM files: the authority to trust, the client certificate and its key |
//! | `distlock.sentinel_user`, `distlock.sentinel_password` | none | the login of the sentinels |
//! | `distlock.node_timeout`, `distlock.min_validity`, `distlock.repair` | `50ms`, `10ms`, `on` | Redlock only: see [`QuorumOptions`](distlock_core::quorum::QuorumOptions) |
//!
//! # Sharing mutexes with other programs
//! A mutex is the key *prefix + name*; its value is the lock id, a space and the token, and the key expires with the lease. That is
//! the convention of `SET key value NX PX ms` with release by compare-and-delete, which redis-py, node-redlock, redsync and many
//! others follow: they and we exclude each other on the same key. They do not take part in the wait queue; they poll. Wait queues, the last
//! token and the other primitives are in keys beside it; in a Cluster in the same hash slot.
//!
//! # Guarantees and limits
//! - The server's clock decides expiry. A clock that is set forward ends leases early; fencing tokens protect the resource then.
//! - A server without persistence forgets its locks when it restarts. Holders learn of it at their next renewal. Tokens still
//!   rise, because they are at least the clock.
//! - A mutex leaves nothing behind. One key for all mutexes of a server (in a Cluster, of a hash slot) has the last token for
//!   `distlock.retention`; tokens are the server's clock in µs, or one more than the last one. They rise unless the clock is set
//!   back by more than the retention, or by a fail-over to a replica whose clock is behind. If the key is lost, by a restart without
//!   persistence or a fail-over, the clock must not have been set back since the last grant. An unused pool leaves its token.
//! - Builds before this rule counted in ms and per name: do not mix them with this one, since their tokens are lower.
//! - A release hands the mutex or the permits to the first waiters and notifies their processes: with many contenders an
//!   acquisition costs two commands, whatever their number.
//! - One script call takes the server about a millisecond at most, however many waiters withdrew or died before. Where more of
//!   them must be passed, the store sends the call again.
//! - Replication is asynchronous: a fail-over may lose the latest grants. `distlock.min_replicas` makes that rarer.
//! - A Redlock serves mutexes and reader-writer locks. Semaphores and fair mutexes over majorities are unsound and refused.
//! - TLS uses the process's default crypto provider of rustls, or the only one that is compiled in. The features `tls-ring` and
//!   `tls-aws-lc-rs` add one; neither is a default, because a second one breaks applications that use rustls themselves.
//!
//! # Rights
//! `~PREFIX* &PREFIX* +eval +evalsha +time +get +mget +set +del +exists +pexpire +pttl +hget +hmget +hset +hdel +hlen
//! +hgetall +publish +subscribe +unsubscribe`, and for `inspect`, `doctor` and the other topologies `+scan +info +wait +role +cluster|slots`.

#[cfg(feature = "bench")]
mod baseline;
mod clients;
mod config;
mod connect;
mod doctor;
mod error;
mod hash_slot;
mod inspect;
mod keys;
mod net;
mod protocol;
mod redlock;
mod scripts;
mod store;

pub use config::{Address, RedisConfig, Servers};
pub use keys::DEFAULT_PREFIX;
pub use redlock::RedlockConfig;
pub use store::RedisStore;

use distlock_core::Result;
use distlock_core::store::{Backend, Driver, StoreUrl};

/// The driver for all Redis URLs.
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
    let driver = Driver::new(SCHEMES, "redis://host:6379", |url| Box::pin(connect(url)))
        .with_options(config::OPTIONS)
        .with_check(check);
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::open(url)));
    driver
}

fn check(url: &StoreUrl) -> Result<()> {
    match url.scheme() {
        "redlock" | "redlocks" => RedlockConfig::from_url(url).map(drop),
        _ => RedisConfig::from_url(url).map(drop),
    }
}

async fn connect(url: StoreUrl) -> Result<Backend> {
    match url.scheme() {
        "redlock" | "redlocks" => Ok(Backend::lease(RedlockConfig::from_url(&url)?.connect().await?)),
        _ => Ok(Backend::lease(RedisStore::connect(RedisConfig::from_url(&url)?).await?)),
    }
}
