//! Tests of the engine over the memory store: under virtual time, unless a test needs threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod acquire_all;
mod admin_silence;
mod breaks;
mod cancel;
#[path = "../common/mod.rs"]
mod common;
mod deadlines;
mod faulty_store;
mod given_up;
mod late_pushed_grants;
mod late_pushed_grants_threads;
mod loss;
mod panics;
mod panics_outside;
mod pushed_grants;
mod queue_outage;
mod recording_store;
mod renewal_tries;
mod requests_in_flight;
mod runtime_gone;
mod session;
mod session_deadlines;
mod session_outage;
mod stuck;
mod subscription;
mod turn;
mod unpolled;
mod wait;
mod withdraw;
