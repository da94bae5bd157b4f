//! The lease table: locks as rows that expire by the server's clock.
//!
//! The path of a claim: `store.rs` splits a batch by table, `mutex.rs` or `pool.rs` binds the parameters,
//! `shared_connection.rs` finds a connection and `connection.rs` sends the statement, which is in `sql/lock_*.sql` or
//! `sql/pool_batch.sql`. `locked_rows.rs` handles rows that another session has locked.

mod doctor;
mod full_queues;
mod inspect;
mod listener;
mod locked_rows;
mod mutex;
mod pool;
mod shared_connection;
mod store;

pub use store::PostgresStore;
