//! Processes of the benchmark's own: one that holds a lock until it is killed, and some that contend for one.
//!
//! A worker is the same program started again. It gets its orders over standard input, one JSON line each, answers on
//! standard output in the same way, and ends when its input does: so it never outlives the benchmark.

mod child;
mod parent;

use serde::{Deserialize, Serialize};

pub use child::worker;
pub(crate) use parent::{Contenders, HolderProcess};

/// The first argument by which a program may know that it was started as a worker.
pub const WORD: &str = "__distlock-load-worker";

/// The first line: what to do, and where.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    url: String,
    name: String,
    job: Job,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Job {
    /// Hold the lock until killed.
    Hold { expiry_ms: u64 },
    /// Contend for the lock with this many tasks, a slice at a time.
    Contend { tasks: usize },
}

/// Every further line to those who contend.
#[derive(Debug, Serialize, Deserialize)]
struct Go {
    slice_ms: u64,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// The lock is held, and was asked for at this moment of the boot clock.
    Holds { asked: u64 },
    /// Connected.
    Ready,
    /// A slice is over.
    Slice { counts: Vec<u64>, latencies: Vec<(u64, u64)>, cpu_ns: u64 },
    /// It cannot go on.
    Failed(String),
}
