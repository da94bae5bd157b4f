//! Tests of the engine over the memory store: under virtual time, unless a test needs threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod acquire_all;
mod admin_timeout;
mod callers_task;
mod cancellation;
#[path = "../common/mod.rs"]
mod common;
mod deadlines;
mod early_ends;
mod fair_queue;
mod faulty_store;
mod forced_release;
mod full_wait_queue;
mod hold_times;
mod late_pushed_grants;
mod late_pushed_grants_threads;
mod local_queue_outage;
mod local_wakeups;
mod loss;
mod manual_renewal;
mod max_permits;
mod panics;
mod panics_outside_calls;
mod pushed_grants;
mod random_cancellation;
mod reads;
mod recording_store;
mod registration;
mod renewal_attempts;
mod renewal_batches;
mod renewal_requests;
mod requests_in_flight;
mod runtime_ended;
mod session;
mod session_batches;
mod session_deadlines;
mod session_outage;
mod session_retries;
mod slow_answers;
mod subscription;
mod time_limits;
mod unanswered_requests;
mod unpolled_futures;
mod waiting;
mod withdrawn_waiters;
