//! What must not happen, with real processes, a real file system and a real kernel. Each test is named after it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agent;
mod crash;
mod exclusion;
mod frozen;
mod given_up;
mod handover;
mod links;
mod looking;
mod names;
mod pools;
mod refusals;
mod replaced;
mod support;
mod unreadable;
