//! The PostgreSQL stores of distlock, for PostgreSQL 12 and later, on `tokio-postgres` with rustls.
//!
//! | | [`PostgresStore`], `postgres://…` | [`AdvisoryStore`], `postgres+advisory://…` |
//! | --- | --- | --- |
//! | a lock is | a row that expires by the server's clock | an advisory lock of a session |
//! | survives a cut connection, a restart, a fail-over | yes | no: the guard is lost |
//! | a dead holder's lock is free | at its expiry | at once |
//! | waiters | are woken by `NOTIFY`, or poll behind a pooler | are in the server's own wait queue |
//! | behind PgBouncer in transaction mode | works | is refused; [`TransactionLocks`] work |
//! | connections | one, and a second while the process has waiters | one, and one for each waiter |
//! | an acquire and a release cost | two commits, of which the first waits for the disk | no wait for the disk |
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use distlock_core::Locks;
//! use distlock_core::store::{Backend, StoreUrl};
//! use distlock_postgres::{PostgresConfig, PostgresStore};
//!
//! let url = StoreUrl::parse("postgres://app@db/app")?;
//! let locks = Locks::new(Backend::lease(PostgresStore::connect(PostgresConfig::from_url(&url)?).await?))?;
//! let guard = locks.mutex("orders/42").acquire().await?;
//! # drop(guard); Ok(()) }
//! ```
//!
//! # URLs
//! `postgres://[user:password@]host[:port][,host[:port]…][/database]` and the options of libpq; `postgresql://` is the same.
//! [`StoreUrl`] describes the grammar. `distlock.` options:
//!
//! | option | default | store | meaning |
//! | --- | --- | --- | --- |
//! | `distlock.schema` | `public` | both | the schema of the tables |
//! | `distlock.table` | `distribute_lock` | both | the lease table; the names of the other tables are derived from it |
//! | `distlock.create` | `on` | both | whether missing tables are created on first use |
//! | `distlock.listen` | `auto` | lease | whether `LISTEN` and `NOTIFY` wake waiters: see [`Listen`] |
//! | `distlock.retention` | `1h` | lease | how long the token of an unused name is kept; at least `1m` |
//! | `distlock.keys` | `hashed` | advisory | how a name becomes a key: see [`KeyScheme`] |
//! | `distlock.session_timeout` | `15s` | advisory | after how long without a message the server ends a session |
//!
//! # The lease table
//! A batch of mutexes is one statement, one round trip and one commit, and so is a batch of semaphores and reader-writer
//! locks. Rows are locked in key order, so batches cannot deadlock. The row of a mutex has the columns `key`, `value` and
//! `expire_time` that other programs know, so they can share it; our other columns have defaults. A released row stays as a
//! tombstone with the last token until a background sweep deletes it (see Growth). A release hands the lock to the first
//! waiter in the same step, and the notification carries the grant.
//!
//! A grant and a renewal are on the disk, and on the replicas that the server waits for, before they are returned. A release
//! that hands nothing off does not wait: if the server crashes in the fraction of a second before it is written, the lock
//! seems held until its expiry. Later grants are written after it, so nothing else can differ.
//!
//! Behind a pooler statements are sent as text, and batches of semaphores and reader-writer locks have at most 32 items.
//! Otherwise statements are prepared when they repeat. The expiry is 30 s by default and is renewed every third of it. Other
//! programs that share the table may expect 5 s, or no renewal:
//!
//! ```
//! # use std::time::Duration;
//! # fn main() -> distlock_core::Result<()> {
//! let options = distlock_core::Options::new().expiry(Duration::from_secs(5))?.auto_extend(false);
//! # drop(options); Ok(()) }
//! ```
//!
//! A row that another session has locked (an administrator in a transaction) is an error for its lock alone, after half a
//! second: [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable), with the process id of that session. Other locks
//! of the same batch are served, and no statement of a dead client keeps waiting for the row.
//!
//! # Sharing mutexes with other programs
//! A program in any language can share the mutexes of the lease table if it inserts a row `ON CONFLICT (key) DO NOTHING` to
//! acquire, updates `expire_time` where `key` and `value` match to renew, deletes that row to release, and deletes rows whose
//! `expire_time` is in the past. A name of up to 1,024 bytes is the key itself. Semaphores and reader-writer locks cannot be
//! shared.
//!
//! | that program's times | can it share? |
//! | --- | --- |
//! | `now()` of the server, or a `timestamptz` parameter from a clock that is right | yes, in a session of any time zone |
//! | a `timestamp` parameter in the local time of an offset (the C# library that this table comes from: UTC+8) | only in sessions with that `TimeZone`: `ALTER ROLE … SET timezone = 'Asia/Shanghai'`, or `Timezone=Asia/Shanghai` in the connection string |
//! | the same in a session with another `TimeZone`, such as UTC | **no**: its times are hours off. Its clean-up deletes locks of ours that are held, and its own locks expire hours late |
//! | any, in a table whose `expire_time` is a `timestamp` | no: distlock refuses the table |
//!
//! A lock of ours that such a program deleted is lost: the guard says so at the next renewal, and another client may hold the
//! lock meanwhile. The trigger below excludes that.
//!
//! This changes a table of three columns, created by that program, to one that both can use:
//!
#![doc = concat!("```sql\n", include_str!("../docs/migrate_foreign_table.sql"), "```")]
//!
//! # Advisory locks
//! A mutex is an exclusive advisory lock, a reader-writer lock one in either mode. The key is a hash of the name
//! ([`AdvisoryKey::of`]), or a number of your own with `distlock.keys=raw`. Tokens come from a sequence, drawn after the lock
//! is granted. Semaphores and the fair queues of mutexes are rows whose holders last as long as their session.
//!
//! One session holds every lock that is granted at once. Mutexes of many tasks are tried, and released, in one statement; those
//! of one statement have one token, and the tokens of each name still increase. The row that shows the holder of a mutex to
//! `inspect` is written 20 ms after the grant. `inspect` waits for the rows of locks that are held: at most a second for all locks,
//! which leave out the holder that has written none by then, and 0.3 s for one name, whose holder is then shown as a process of
//! the server. With `distlock.keys=raw`, the numbers from 7235441220220052332 to …334 are refused: this library locks them itself.
//!
//! The server ends a session whose client sent nothing for 15 s (`distlock.session_timeout`). The client sends a heartbeat
//! every 5 s, one for each connection, and its guards are lost by the clock before the server frees their locks. Before
//! PostgreSQL 14 the guards are lost then too, but the server keeps the locks of a stalled client until it resumes, and those
//! of a dead machine for 15 s more. Advisory locks are not replicated: after a fail-over all guards are lost.
//!
//! # Growth
//! Every name leaves a row of 200 to 300 bytes, with its index entry and space for its next version. Of advisory locks only
//! semaphores and fair mutexes do. A row that was unused for the retention time (`distlock.retention`, one hour; for advisory
//! locks always one hour) is deleted within a quarter of an hour and the time of one sweep. One process at a time sweeps, in a
//! fifth of the time of one connection: about ten thousand rows a second. With 1,000 new names a second a table has about 4.5
//! million rows, or one gigabyte.
//!
//! # Other users of the database
//! Our statements qualify every function, and our own sessions search `pg_catalog` alone, so that objects of other users in
//! `public` are never used. Behind a pooler, where the setting is not ours, a `search_path` that names another schema before
//! `pg_catalog` is refused.
//!
//! # Fencing
//! [`Fence`] refuses writes of stale holders, in the transaction that writes.
//!
//! # TLS
//! With rustls, and the process's default crypto provider or else the one of the feature `tls-ring` or `tls-aws-lc-rs`. Without
//! either, `sslmode=prefer` connects without TLS, and `sslmode=require` and stricter modes are refused. The store installs no
//! default provider.
//!
//! # Tables
//! Created on first use if the role may; otherwise `distlock schema` prints them.
//!
//! [`StoreUrl`]: distlock_core::store::StoreUrl

mod advisory;
#[cfg(feature = "bench")]
mod baseline;
mod clients;
mod config;
mod connect;
mod connection;
mod doctor;
mod error;
mod fence;
mod identifier;
mod keys;
mod lease;
mod pool_batch;
mod pool_rows;
mod row_locks;
mod schema;
mod statement;
mod sweep;
mod tables;
mod values;
mod wake_format;

pub use advisory::{AdvisoryKey, AdvisoryStore, TransactionLocks};
#[cfg(feature = "sqlx")]
pub use clients::SqlxTransactionLocks;
pub use config::{DEFAULT_RETENTION, DEFAULT_SESSION_TIMEOUT, KeyScheme, Listen, PostgresConfig};
pub use fence::Fence;
pub use lease::PostgresStore;

use distlock_core::store::{Backend, Driver};

use schema::StoreKind;

/// The lease table: `postgres://` and `postgresql://`.
pub static DRIVER: Driver = lease_driver();

/// Advisory locks: `postgres+advisory://` and `postgresql+advisory://`.
pub static ADVISORY_DRIVER: Driver = advisory_driver();

const fn lease_driver() -> Driver {
    let driver = Driver::new(&["postgres", "postgresql"], "postgres://user@host:5432/database", |url| {
        Box::pin(
            async move { Ok(Backend::lease(PostgresStore::connect(PostgresConfig::from_url(&url)?).await?)) },
        )
    })
    .with_options(config::LEASE_OPTIONS)
    .with_check(|url| PostgresConfig::from_url(url).map(drop))
    .with_schema(|url| schema::print(url, StoreKind::Lease));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| {
        Box::pin(async move {
            PostgresStore::connect(PostgresConfig::from_url(&url)?).await?.baseline().await.map(Some)
        })
    });
    driver
}

const fn advisory_driver() -> Driver {
    let driver = Driver::new(
        &["postgres+advisory", "postgresql+advisory"],
        "postgres+advisory://user@host:5432/database",
        |url| {
            Box::pin(async move {
                Ok(Backend::session(AdvisoryStore::connect(PostgresConfig::from_url(&url)?).await?))
            })
        },
    )
    .with_options(config::ADVISORY_OPTIONS)
    .with_check(|url| PostgresConfig::from_url(url).map(drop))
    .with_schema(|url| schema::print(url, StoreKind::Advisory));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| {
        Box::pin(async move {
            AdvisoryStore::connect(PostgresConfig::from_url(&url)?).await?.baseline().await.map(Some)
        })
    });
    driver
}
