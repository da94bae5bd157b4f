//! Hazards, tested with real processes, a real file system and a real kernel. Each test is named after the hazard it
//! excludes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agent;
mod callers_thread;
mod cancelled;
mod crash;
mod exclusion;
mod handoff;
mod inspection;
mod links;
mod names;
mod paused;
mod pools;
mod refusals;
mod replaced;
mod support;
mod unreadable;
