//! The PostgreSQL stores of distlock, for PostgreSQL 12 and later, on `tokio-postgres` with rustls.
//!
//! | | [`LeaseTable`], `postgres://…` | [`AdvisoryLocks`], `postgres+advisory://…` |
//! | --- | --- | --- |
//! | a lock is | a row that expires by the server's clock | an advisory lock of a session |
//! | survives a cut connection, a restart, a fail-over | yes | no: the guard is lost |
//! | a holder that dies frees it | at its expiry | at once |
//! | waiters | are told by `NOTIFY`, or poll behind a pooler | stand in the server's own line |
//! | behind PgBouncer in transaction mode | works | is refused; [`TransactionLocks`] work |
//! | connections | one, and a second while somebody waits | one, and one for each who waits |
//! | an acquire and a release cost | two commits, of which the first waits for the disk | none that waits for the disk |
//!
//! # The lease table
//! One statement, one round trip and one commit for a whole batch of mutexes, and one for a batch of semaphores and
//! reader-writer locks; rows are locked in the order of their keys, so batches cannot deadlock. The mutex's row has the
//! columns `key`, `value` and `expire_time` that other programs know, so they can share it; whatever we add has a
//! default. A released row stays as a tombstone that remembers the last token, until a sweep in the background
//! forgets it after an hour without use (see Growth). What a release frees goes to the first who waits, in the same step, and the
//! message brings the grant.
//!
//! A grant and an extension are on the disk, and with the replicas that the server waits for, before anybody is told. A
//! release that grants nobody anything does not wait: if the server crashes in the fraction of a second before it is
//! written, the lock seems held until its expiry. What is granted later is written after it, so nothing else can differ.
//!
//! Behind a pooler statements are sent whole, those about semaphores and reader-writer locks for 32 of them at a time;
//! otherwise they are prepared once they come again. The expiry is 30 s
//! unless set otherwise, extended every third of it; programs that come from elsewhere may expect 5 s, or no
//! extension:
//!
//! ```
//! # use std::time::Duration;
//! # fn main() -> distlock_core::Result<()> {
//! let options = distlock_core::Options::new().expiry(Duration::from_secs(5))?.auto_extend(false);
//! # drop(options); Ok(()) }
//! ```
//!
//! A row that another session keeps locked (an administrator in a transaction) is an error for its lock alone, after half a
//! second: [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable), with the process that has it. Other locks of the
//! same request go through, and nothing of a client that ended waits on for the row.
//!
//! # Advisory locks
//! A mutex is an exclusive advisory lock, a reader-writer lock one in either mode. The key is a hash of the name
//! ([`AdvisoryKey::of`]), or a number of your own with `distlock.keys=raw`. Tokens come from a sequence, drawn after
//! the lock is granted. Semaphores and the turns of fair mutexes are rows whose holders last as long as their session.
//!
//! A session ends when its client was not heard of for 15 s (`distlock.session_timeout`); the client sends a word every
//! 5 s, one for each connection, and its guards are lost by the clock before the server gives their locks away. Before
//! PostgreSQL 14 the guards are lost then too, but the server keeps the locks of a client that stands still, and those of
//! a machine that is gone for 15 s more. Advisory locks are not replicated: after a fail-over all guards are lost.
//!
//! # Growth
//! Every name leaves a row: 200 to 300 bytes with its index entry and the room for its next version. Of advisory locks only
//! semaphores and fair mutexes do. A row that was of no use for the retention time (`distlock.retention`, an hour; for
//! advisory locks always an hour) is deleted within a quarter of an hour and the time of one sweep. One process at a time
//! sweeps, with a fifth of the time of one connection: about ten thousand rows a second. With 1,000 new names a second a
//! table has about 4.5 million rows, or one gigabyte.
//!
//! # Other users of the database
//! Every function in our statements is called by its qualified name, and our own sessions search `pg_catalog` alone, so that
//! what others create in `public` is never used. Behind a pooler, where the setting is not ours, a `search_path` that names
//! another schema before `pg_catalog` is refused.
//!
//! # What the resource does
//! [`Fence`] refuses writes of holders that were overtaken, in the transaction that writes.
//!
//! # Tables
//! Created on first use if the role may; `distlock schema` prints them otherwise.

mod advisory;
#[cfg(feature = "bench")]
mod baseline;
mod config;
mod doctor;
mod failure;
mod fence;
mod identifier;
mod lease;
mod link;
mod message;
mod names;
mod pace;
mod pools;
mod questions;
mod schema;
mod statement;
mod tls;
mod url;
mod values;

pub use advisory::{ADVISORY_DRIVER, AdvisoryKey, AdvisoryLocks, TransactionLocks};
pub use config::{DEFAULT_RETENTION, DEFAULT_SESSION_TIMEOUT, KeyScheme, Listen, PostgresConfig};
pub use fence::Fence;
pub use lease::{LEASE_DRIVER, LeaseTable};
