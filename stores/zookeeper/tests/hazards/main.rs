//! Tests named after the hazards that they exclude, on real servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod breaking;
mod ensemble;
mod lost_replies;
mod network;
mod queue_cost;
mod sessions;
mod sharing;
mod support;
