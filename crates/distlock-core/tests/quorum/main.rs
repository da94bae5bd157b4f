//! Tests of the quorum over memory stores, under virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod acquire;
mod admin;
mod contention;
mod late_messages;
mod renew;
mod runtimes;
mod slow_nodes;
mod support;
mod tokens;
mod waiters;
mod write_back;
