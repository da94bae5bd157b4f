//! How the benchmark talks to those who take part: one JSON line for each order, one for each answer. Everybody is a
//! process of its own, in whatever language, so that nobody's runtime helps or hurts another's.

use serde::{Deserialize, Serialize};

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Order {
    /// Connect.
    Open { url: String },
    /// Take and give back, each task its own name, for so long.
    Cycles { tasks: usize, millis: u64, prefix: String },
    /// Hand one lock from one client to another, again and again; the waiter gets so long to begin to wait.
    Handover { millis: u64, settle_millis: u64, name: String },
    /// All want one lock, hold it a millisecond and pause for five.
    Contend { tasks: usize, millis: u64, name: String },
    /// Keep so many locks alive for so long.
    Keep { count: usize, millis: u64, expiry_millis: u64, prefix: String },
    /// Hold one lock until killed.
    Hold { name: String, expiry_millis: u64 },
    /// Wait for one lock.
    Wait { name: String, expiry_millis: u64 },
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// Why it could not be done; empty if it was.
    pub error: String,
    /// Operations of each task.
    pub counts: Vec<u64>,
    /// What was measured, in nanoseconds.
    pub nanos: Vec<u64>,
    /// How long it took in all.
    pub elapsed_nanos: u64,
    /// A moment on the clock of the machine since its start.
    pub moment_nanos: u64,
    /// CPU time of the participant.
    pub cpu_nanos: u64,
    /// What a kept lock costs in memory.
    pub bytes_per_lock: u64,
}
