//! What must not happen on a real MariaDB. One program, so that the tests share a server; each has a database of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod busy_rows;
#[path = "../common/mod.rs"]
mod common;
mod ended_process;
mod full_sessions;
mod galera;
mod get_lock;
mod locked_rows;
mod refusals;
mod renewals;
mod unreleased;
mod wait_queue;
mod waiters;
