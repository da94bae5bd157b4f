//! Tests of the memory store, the reference for every lease store.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod lock;
mod pool;
mod tokens;
