//! Worker processes of the benchmark: holders that are killed, and contenders.
//!
//! A worker is the same program started again. It reads JSON lines from standard input and writes replies as JSON lines to
//! standard output. It ends with its input, so it never outlives the benchmark.

mod child;
mod parent;

use serde::{Deserialize, Serialize};

use crate::handoffs::Hold;

pub use child::worker;
pub(crate) use parent::{Contenders, HolderProcess};

/// The first argument of a program that is started as a worker.
pub const WORKER_ARG: &str = "__distlock-load-worker";

/// The first line: the job, the store and the name of the lock.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerConfig {
    url: String,
    name: String,
    job: WorkerJob,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WorkerJob {
    /// Hold the lock until killed.
    Hold { expiry_ms: u64 },
    /// Contend for the lock with this many tasks, a slice at a time.
    Contend { tasks: usize },
}

/// Every further line to a contender.
#[derive(Debug, Serialize, Deserialize)]
struct SliceRequest {
    slice_ms: u64,
}

/// A reply of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WorkerReply {
    /// The lock is held; it was requested at this moment of the boot clock.
    Holds { requested: u64 },
    /// The worker is connected.
    Ready,
    /// The result of a slice.
    Slice { counts: Vec<u64>, latencies: Vec<(u64, u64)>, cpu_ns: u64, holds: Vec<Hold> },
    /// The worker failed.
    Failed(String),
}
