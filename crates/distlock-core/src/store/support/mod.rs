//! What stores share: logic that is the same whichever server keeps the locks.
//!
//! | module | subject |
//! | --- | --- |
//! | [`batch`] | split a batch by record kind, run the parts concurrently, merge the answers in request order |
//! | [`reconnect`] | one shared connection; one caller connects while the others await its result |
//! | [`wake_codec`] | wake-ups and pushed grants as text |
//! | [`queue_pause`] | how long a waiter far behind in a wait queue sleeps between two attempts |
//! | [`ended_session`] | when the guard of a holder whose session ended is lost |
//! | [`process_socket`] | whether another process of this machine has ended |
//! | [`compact_lock_id`] | lock ids of many holds, as numbers |
//! | [`config`] | options that several stores have: certificates, time limits |
//! | [`errors`] | errors and advice that read the same on every store |
//! | [`inspect`] | filter and order what `inspect` returns |
//!
//! Durations and secrets in URLs are in [`store::url`](super::url).

pub mod batch;
pub mod compact_lock_id;
pub mod config;
pub mod ended_session;
pub mod errors;
pub mod inspect;
pub mod process_socket;
pub mod queue_pause;
pub mod reconnect;
pub mod wake_codec;
