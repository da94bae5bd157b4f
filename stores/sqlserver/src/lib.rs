//! The SQL Server store of distlock, on `tiberius` with rustls: application locks (`sp_getapplock`) that live with a session.
//!
//! | | |
//! | --- | --- |
//! | primitives | mutex (`Exclusive`), reader-writer lock (`Shared`, `Exclusive`), semaphore (one lock for each permit, at most 1000) |
//! | survives a cut connection, a restart, a fail-over | no: the guard is lost, tokens still rise |
//! | a holder that dies frees it | at once; after a fail-over, and on Azure SQL Database, after its heartbeat time-out (3 s) |
//! | waiters | are in the server's queue |
//! | sessions | one that holds many locks, one without locks, one for each waiter, and one for each reader of the same name in a process |
//! | an acquire and a release cost | two round trips, two commits; a permit costs six round trips and more |
//!
//! # What it was run on
//! Never on a SQL Server: no package installs one here. The conformance suite and the store's own hazards were run over TLS on Babelfish
//! for PostgreSQL 4.2, its application locks mended: the original ends the whole server when a session finds its fifth lock busy, and
//! keeps the locks of a session that ends while it waits. Babelfish needs 0.6 s of processor time for the first statements of each new
//! session, and 1 to 5 ms for the same statements afterwards. So `waiting::a_time_limit_ends_the_wait_in_time`, which allows 0.25 s for
//! an answer, failed each time: "no answer" instead of "busy". `waiting::a_time_limit_of_zero_is_one_attempt`, which allows one second,
//! failed in some runs for the same reason. All others passed, with limits of 100 s for what a case waits for and of 60 s for a request
//! instead of 30 s and 5 s. A semaphore of ten thousand permits is refused, which is what its case expects of a store with a limit.
//! Until the suite was run on a SQL Server, this store is a preview.
//!
//! What follows was written by the documentation alone. Named instances, Azure AD logins and the refusal of a server that does not encrypt
//! are tested against a peer that plays the server's part. Never seen: `encrypt=strict`, `MultiSubnetFailover` with several addresses,
//! fail-over, read-only replicas and their error numbers, and cancelling a wait by an attention (Babelfish reads it too late, so there
//! the session is closed). The tests take a server by `DISTLOCK_SQLSERVER_URL`.
//!
//! # Locks
//! A lock is session-owned: locks of a transaction are written to the log. Free locks are taken on a session that holds others too. A
//! session would be granted its own lock again, so none is ever asked twice for one name. A lock that is held is waited for on
//! a session of its own, without the driver's limit of 30 seconds for a command. A withdrawn wait is cancelled on the server, and what
//! was granted meanwhile is released. The results 0, 1, -1, -2, -3 and -999 mean what the documentation says; a server that returns
//! -999 for a lock that is not free at a time-out of 0 is understood too.
//!
//! Names are compared byte by byte, whatever the collation. A name of visible ASCII characters that fits into 255 characters can be
//! read in the server's views (`dbo:distribute_lock:mutex:orders/42`); any other is a hash.
//!
//! Only the head of a semaphore's queue takes permits. It waits for one of them for 25 ms at a time, since the server cannot wait for
//! any of several locks. `try_acquire` of a semaphore that has waiters takes up to 250 ms. A request of a resizable semaphore counts
//! what others hold beyond the number of permits that it names.
//!
//! # Tokens
//! Drawn from a sequence while the lock is held, so they rise for each resource; a restart of the server leaves a gap at most. A row says
//! who holds what, for `ls`, `show` and `break`. A login that may not write, and a read-only database, get an error that says what to
//! grant; `distlock.tokens=off` goes without: every token is 0, and there are no semaphores, no `ls`, `show` and `break`.
//! A fail-over to a replica that lags behind, and a restored backup, can let a sequence go back.
//!
//! # Loss
//! A guard is lost when the server closes its session, which an idle session sees at once, and a fixed time
//! (`distlock.heartbeat_timeout`, 3 s) after its client *sent* the last request that the session answered. A session can also end
//! without its client's knowledge (`KILL`, a firewall, a fail-over). Its locks are free then. So the row of a holder says how long its
//! guard lasts, and a release deletes the row before the lock is released. The next holder of a lock whose row is still there is granted
//! it as soon as one of these is true:
//! - The row is gone. A client whose session ended loses its guards, and then deletes their rows on another session. After a `KILL` and
//!   a forced release this takes a moment, if the client can be reached.
//! - The process of the holder has ended: all its sessions share a lock, and no session holds that any more. This is so a moment
//!   after a crash. It counts only on a server that was not restarted since, by its name and the creation of `tempdb`: a fail-over
//!   ends all sessions, and their clients may not know. Azure SQL Database does not show `tempdb`, so it never counts there.
//! - The time of the guard has passed.
//!
//! Two failures at once defeat this: all sessions of a process are ended on a server that goes on, and within 3 s of the last heartbeat
//! its client is not told. The other holder then runs beside it until its deadline.
//!
//! SQL Server has no time limit for silent sessions: a stalled client keeps its locks until it resumes, and one whose host or network
//! fails until the server's TCP keep-alive ends its connection. Their guards are lost before that; a client that resumes ends its session.
//! `break` ends the session of the holder, and with it every other lock that it holds; it names them before it asks and afterwards.
//!
//! # Transactions
//! [`TransactionLocks`] are locks of a transaction that the caller has open on a client of its own.
//!
//! # Encryption
//! On by default; only `encrypt` itself changes that. It needs the feature `tls` (of the facade: `sqlserver-tls`), which brings the
//! crypto provider aws-lc-rs of rustls into the program. `encrypt=false` encrypts the login alone, as the protocol has it, and
//! `encrypt=danger_plaintext` nothing.
//!
//! # Rights
//! `SELECT, INSERT, UPDATE, DELETE` on the table and `UPDATE` on the sequence, and the right to create them unless they exist
//! (`distlock schema`). `break` needs `ALTER ANY CONNECTION`.

mod app_lock;
#[cfg(feature = "bench")]
mod baseline;
mod capacity;
mod config;
mod connect;
mod connection;
mod doctor;
mod error;
mod identifier;
mod inspect;
mod lock_name;
mod result_code;
mod rows;
mod schema;
mod semaphore;
mod session;
mod statements;
mod store;
mod sweep;
mod transaction;

pub use config::{
    DEFAULT_HEARTBEAT_TIMEOUT, DEFAULT_PRINCIPAL, DEFAULT_SCHEMA, DEFAULT_TABLE, SqlServerConfig,
};
pub use store::SqlServerStore;
pub use transaction::TransactionLocks;

use distlock_core::store::{Backend, Driver};

/// `sqlserver://`, application locks.
pub static DRIVER: Driver = driver();

const fn driver() -> Driver {
    let driver = Driver::new(&["sqlserver"], "sqlserver://user@host:1433/database", |url| {
        Box::pin(async move {
            Ok(Backend::session(SqlServerStore::connect(SqlServerConfig::from_url(&url)?).await?))
        })
    })
    .with_options(config::OPTIONS)
    .with_check(|url| SqlServerConfig::from_url(url).map(drop))
    .with_schema(|url| Ok(schema::print(&SqlServerConfig::from_url(url)?.names)));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(baseline::connect(url)));
    driver
}
