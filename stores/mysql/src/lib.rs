//! The MySQL and MariaDB stores of distlock, on `mysql_async` with rustls.
//!
//! | | [`MysqlStore`], `mysql://…` | [`MysqlSessionStore`], `mysql+session://…` |
//! | --- | --- | --- |
//! | servers | MySQL 8.0, MariaDB 10.6 and later | MySQL 5.7.5, MariaDB 10.0.2 and later, not Galera |
//! | a lock is | rows that expire by the server's clock | a `GET_LOCK` lock of a session |
//! | primitives | all | mutexes |
//! | survives a cut connection, a restart, a fail-over | yes, as the server replicates | no: the guard is lost |
//! | a holder that dies frees it | at its expiry | at once |
//! | waiters | ask again, at the latest when the lease in their way ends | are in the server's queue |
//! | connections | one to four | one, and one for each waiter |
//! | an acquire and a release cost | two round trips, two commits | two round trips, one commit |
//!
//! # Lease tables
//! One request, one transaction and one commit for a whole batch of mutexes, and one for a batch of permits. Each transaction
//! locks its rows in the order of their keys, then reads the clock, then decides: nothing is decided by a clock or a row that
//! was read before a wait. It runs under `READ COMMITTED`, whatever the server's default, so that no gap is locked. The victim
//! of a deadlock is sent again, and so is a transaction that failed in Galera's certification.
//!
//! Names are any bytes: the key is a hash of kind and name, and the name beside it is `VARBINARY`, so no collation folds
//! `A`, `a` and `a `. A released row stays as a tombstone that remembers the last token; a background task deletes rows that
//! were not used for the retention time.
//!
//! A row that another session keeps locked is an error for its own lock after a second, the shortest time that the servers
//! know. The other locks of that request are sent again without it. For ten seconds that name is then asked for alone and
//! without waiting.
//!
//! # Waiting
//! Neither server has messages between sessions, so waiters ask again: the first waiter of each process, between 10 and 800
//! ms apart unless [`Options`](distlock_core::Options) say otherwise, and at the moment the lease in its way ends. Each
//! question is one request, which reads without locks while the mutex is held, and writes the waiter's entry once in 1.5
//! seconds or less often. `KILL QUERY` of a sleeping session could serve as a wake-up, and a `GET_LOCK` on a name of the waiter
//! cannot without a second session that holds it; both need rights or connections that a lease table does without.
//!
//! # `GET_LOCK` (preview)
//! [`MysqlSessionStore`] is not finished, and no URL of the facade leads to it: **if the session of a holder is killed, or its
//! server restarts, another client may hold the lock for up to half a second before the holder's guard is lost.** The driver
//! does not tell when an idle connection is closed. Until it does, use the lease table.
//!
//! Free locks are taken on one session that all tasks of a store share; `GET_LOCK` would grant a session its own lock again, so
//! the store keeps track of what it holds. A lock that is held is waited for on a session of its own, in the server's queue. A
//! withdrawn wait ends with its session. Tokens are drawn from a row while the lock is held.
//!
//! A session ends when its client sent nothing for 15 s (`distlock.session_timeout`, as the session's `wait_timeout`). The
//! client sends a word every half second, and its guards are lost by the clock before the server frees their locks. `break`
//! ends the session of the holder, and with it every other lock that it holds.
//!
//! # TLS
//! `ssl-mode` is `DISABLED` (the default), `REQUIRED` or `VERIFY_IDENTITY`, the latter with `ssl-ca` or the system's
//! certificates. `PREFERRED` and `VERIFY_CA` are refused: the driver cannot do what they say. The driver takes the process's
//! default crypto provider of rustls, or the only one that is compiled in: the features `tls-ring` and `tls-aws-lc-rs` add one.
//!
//! # Rights
//! `SELECT, INSERT, UPDATE, DELETE` on the tables, and `CREATE` unless they exist (`distlock schema`).

#[cfg(feature = "bench")]
mod baseline;
mod batch;
mod config;
mod connect;
mod connections;
mod doctor;
mod error;
mod identifier;
mod lease;
mod rows;
mod schema;
mod server;
mod session;

mod sweep;

pub use config::{
    DEFAULT_HEARTBEAT_TIMEOUT, DEFAULT_RETENTION, DEFAULT_SESSION_TIMEOUT, DEFAULT_TABLE, MysqlConfig,
};
pub use lease::MysqlStore;
pub use session::MysqlSessionStore;

use distlock_core::store::{Backend, Driver, StoreUrl};
use schema::Purpose;

/// `mysql://`, the lease tables.
pub static DRIVER: Driver = lease_driver();

/// `GET_LOCK`: a preview that is not registered, see the [front page](crate).
pub static SESSION_DRIVER: Driver = session_driver();

const fn lease_driver() -> Driver {
    let driver = Driver::new(&["mysql"], "mysql://user@host:3306/database", |url| {
        Box::pin(async move { Ok(Backend::lease(MysqlStore::connect(MysqlConfig::from_url(&url)?).await?)) })
    })
    .with_options(config::LEASE_OPTIONS)
    .with_check(|url| MysqlConfig::from_url(url).map(drop))
    .with_schema(|url| print_schema(url, Purpose::Lease));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::connect_lease(url)));
    driver
}

const fn session_driver() -> Driver {
    let driver = Driver::new(&["mysql+session"], "mysql+session://user@host:3306/database", |url| {
        Box::pin(async move {
            Ok(Backend::session(MysqlSessionStore::connect(MysqlConfig::from_url(&url)?).await?))
        })
    })
    .with_options(config::SESSION_OPTIONS)
    .with_check(|url| MysqlConfig::from_url(url).map(drop))
    .with_schema(|url| print_schema(url, Purpose::Session));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::connect_session(url)));
    driver
}

fn print_schema(url: &StoreUrl, purpose: Purpose) -> distlock_core::Result<String> {
    let config = MysqlConfig::from_url(url)?;
    Ok(schema::print(&config.tables(config.connected_to())?, purpose))
}
