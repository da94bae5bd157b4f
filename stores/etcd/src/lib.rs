//! Locks on etcd 3.4 and later: mutexes, reader-writer locks and semaphores, all first come, first served.
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use distlock_core::{Locks, store::{Backend, StoreUrl}};
//! use distlock_etcd::{EtcdConfig, EtcdStore};
//!
//! let config = EtcdConfig::from_url(&StoreUrl::parse("etcd://etcd-1:2379,etcd-2:2379,etcd-3:2379")?)?;
//! let locks = Locks::new(Backend::session(EtcdStore::connect(config).await?))?;
//! let guard = locks.mutex("orders/42").acquire().await?;
//! # drop(guard); Ok(()) }
//! ```
//!
//! # URLs
//! `etcd://[user:password@]h1[:2379],h2,h3`: members of one cluster. Requests go to one of them, and to the next one when it
//! fails.
//!
//! | option | default | meaning |
//! | --- | --- | --- |
//! | `distlock.prefix` | `distlock/` | the prefix of all keys |
//! | `distlock.response_timeout` | `2s` | how long a reply may take before the next endpoint is tried |
//! | `distlock.connect_timeout` | `2s` | how long it may take to connect to an endpoint |
//! | `distlock.failover_timeout` | `4500ms` | how long a request is tried in all, on all endpoints |
//! | `distlock.tls` | `off` | whether to use TLS; on if certificates are given |
//! | `distlock.tls_ca`, `distlock.tls_cert`, `distlock.tls_key` | the system's | PEM files: the authority to trust, the client certificate and its key |
//!
//! Certificates are always checked. Without an authority, those of the system are trusted. TLS uses the process's default crypto
//! provider of rustls, or else the one of the feature `tls-ring` or `tls-aws-lc-rs`.
//!
//! # How it works
//! A claim is a key `PREFIX KIND/NAME/LOCK-ID` with a lease. The creation revisions of the keys are the queue: a claim is granted
//! when its weight and the weights in front of it fit the capacity. A waiter watches its predecessor only (a reader the nearest
//! writer; the first waiter of a semaphore the holders), so the cost of a handoff does not depend on the number of waiters. Before
//! a waiter is granted, a linearizable transaction confirms that its own key is still there with its lease.
//!
//! # Guarantees and limits
//! - **Sessions.** Locks of one store with the same expiry share a lease, rounded up to whole seconds and to the server's minimum
//!   (2 s with the default election time-out). It is renewed at a third of that, or as often as the options say. A renewal counts
//!   from the moment it was sent, and only if a quorum confirmed it. If it cannot be renewed in time, guards are lost before the
//!   server may end the lease.
//! - **A holder that dies** frees its locks when its lease ends: between one and one and a half times the expiry, because the
//!   server checks leases every half second.
//! - **Fencing tokens** are the creation revisions of the claims: they rise over the life of the cluster, also after all keys of
//!   a name were deleted. A cluster that is restored from a backup goes back to old revisions (unless restored with
//!   `--bump-revision`, etcd 3.5.10): then let old holders end first.
//! - **A forced release** deletes the holder's key; its guard is lost at once. A key that is deleted by other means (`etcdctl
//!   del`) is noticed by the next renewal.
//! - **Paused leaders.** etcd before 3.4.31 and 3.5.13 lets a leader that was paused end live leases when it resumes (etcd issue
//!   15247). Guards are lost as soon as the deletion is seen, some milliseconds late; tokens still rise. `doctor` warns.
//! - The time of a grant is by the holder's clock. For a holder that had to wait it is shown after the next renewal.
//! - The rights on keys that begin with the prefix (`readwrite`) are all that a user needs.
//!
//! # Sharing mutexes with etcdctl
//! The queue of a mutex is the one that `etcdctl lock` uses: `etcdctl lock distlock/mutex/NAME` and the mutex *NAME* exclude
//! each other and wait in one queue. In *NAME*, `/` is written `%2F` and `%` is written `%25`.

mod acquire;
mod api;
#[cfg(feature = "bench")]
mod baseline;
mod claims;
mod client;
mod config;
mod connect;
mod deletion;
mod doctor;
mod entry;
mod error;
mod inspect;
mod keep_alive;
mod keys;
mod queue;
mod session;
mod sessions;
mod store;
mod txn;
mod watch;

pub use config::EtcdConfig;
pub use keys::DEFAULT_PREFIX;
pub use store::EtcdStore;

use distlock_core::Result;
use distlock_core::store::{Backend, Driver, StoreUrl};

/// The driver for etcd URLs.
pub static DRIVER: Driver = driver();

const SCHEMES: &[&str] = &["etcd"];

const fn driver() -> Driver {
    let driver = Driver::new(SCHEMES, "etcd://host:2379", |url| Box::pin(connect(url)))
        .with_options(config::OPTIONS)
        .with_check(|url| EtcdConfig::from_url(url).map(drop));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::open(url)));
    driver
}

async fn connect(url: StoreUrl) -> Result<Backend> {
    Ok(Backend::session(EtcdStore::connect(EtcdConfig::from_url(&url)?).await?))
}
