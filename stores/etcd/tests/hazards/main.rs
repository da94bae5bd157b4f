//! Hazards of locks on etcd, each a test on a real server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod broken;
mod compaction;
mod failover;
mod handoff;
mod lost_replies;
mod sessions;
mod shared_with_etcdctl;
mod space;
mod support;
