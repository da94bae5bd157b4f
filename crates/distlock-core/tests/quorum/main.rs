//! Tests of the quorum over memory stores, under virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod acquire;
mod admin;
mod contention;
mod decisions;
mod errors;
mod hints;
mod late_messages;
mod learn_token;
mod renew;
mod runtimes;
mod scripted;
mod shape;
mod slow_nodes;
mod support;
mod tokens;
mod undo;
mod waiters;
mod write_back;
