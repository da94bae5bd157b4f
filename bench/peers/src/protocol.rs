//! The protocol between the benchmark and its participants: one JSON line per command and per reply. Every participant is a
//! process of its own, in any language, so that no runtime affects another.

use serde::{Deserialize, Serialize};

/// A command to a participant.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// Connect.
    Open { url: String },
    /// Acquire and release, each task with its own name.
    Cycles { tasks: usize, millis: u64, prefix: String },
    /// Repeat handoffs from one client to another; `settle_millis` is the time for the waiter to enter the wait queue.
    Handoff { millis: u64, settle_millis: u64, name: String },
    /// Contend for one lock, hold it for 1 ms and pause for 5 ms.
    Contend { tasks: usize, millis: u64, name: String },
    /// Hold and renew many locks.
    HoldMany { count: usize, millis: u64, expiry_millis: u64, prefix: String },
    /// Hold one lock until killed.
    Hold { name: String, expiry_millis: u64 },
    /// Wait for one lock.
    Wait { name: String, expiry_millis: u64 },
}

/// The reply of a participant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reply {
    /// The reason of a failure; empty on success.
    pub error: String,
    /// Operations of each task.
    pub counts: Vec<u64>,
    /// The measured latencies in nanoseconds.
    pub nanos: Vec<u64>,
    /// The whole duration.
    pub elapsed_nanos: u64,
    /// A moment of the boot clock.
    pub moment_nanos: u64,
    /// CPU time of the participant.
    pub cpu_nanos: u64,
    /// Memory per held lock.
    pub bytes_per_lock: u64,
}
