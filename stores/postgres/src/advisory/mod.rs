//! Advisory locks: held by sessions, waited for in the server's own wait queue, freed with the session.
//!
//! The path of a claim: `store.rs` sends mutexes to `batch.rs`, mutexes that are contended and reader-writer locks to
//! `advisory_lock.rs`, semaphores and fair queues to `pool.rs`. All try on the shared session (`shared_session.rs`) first.
//! `connection.rs` sends the statement, which is in `sql/advisory_*.sql` or `sql/pool_batch.sql`.

mod advisory_lock;
mod batch;
mod doctor;
mod holder_rows;
mod idle_sessions;
mod inspect;
mod key;
mod lock_session;
mod locked_row;
mod pool;
mod session_life;
mod session_watch;
mod shared_session;
mod store;
mod sweep;
pub(crate) mod transaction;
pub(crate) mod transaction_wait;
mod unwritten_rows;

pub use key::AdvisoryKey;
pub use store::AdvisoryStore;
pub use transaction::TransactionLocks;
