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
mod late_wakes;
mod late_wakes_threads;
mod local_wakeups;
mod loss;
mod panics;
mod panics_outside;
mod pushed_grants;
mod queue_outage;
mod registration;
mod renewal_requests;
mod renewal_tries;
mod runtime_gone;
mod session;
mod session_deadlines;
mod session_queue_outage;
mod slow_answers;
mod spy;
mod stuck;
mod subscription;
mod turn;
mod under_way;
mod unpolled;
mod wait;
mod withdraw;
