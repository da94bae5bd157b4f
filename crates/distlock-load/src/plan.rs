//! Which scenarios to run, and how long.

use std::time::Duration;

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scenario {
    /// One task acquires and releases one lock.
    Uncontended,
    /// Many tasks, each with its own name.
    Throughput,
    /// The handoff from a holder to a waiter on another connection.
    Handoff,
    /// Many tasks contend for one lock, hold it for 1 ms and pause for 5 ms; in one process, then in several.
    Contended,
    /// Many locks that are only renewed.
    Held,
    /// The process of the holder is killed.
    Takeover,
}

impl Scenario {
    /// All scenarios, in the order in which they run.
    pub const ALL: [Scenario; 6] = [
        Scenario::Uncontended,
        Scenario::Throughput,
        Scenario::Handoff,
        Scenario::Contended,
        Scenario::Held,
        Scenario::Takeover,
    ];

    /// Its name in options and output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Scenario::Uncontended => "uncontended",
            Scenario::Throughput => "throughput",
            Scenario::Handoff => "handoff",
            Scenario::Contended => "contended",
            Scenario::Held => "held",
            Scenario::Takeover => "takeover",
        }
    }
}

/// What to run. The defaults are those of `distlock bench`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenarios, in this order.
    pub scenarios: Vec<Scenario>,
    /// The duration of each run, without connecting and cleaning up.
    pub run_time: Duration,
    /// The numbers of tasks of `throughput`, which runs once for each.
    pub tasks: Vec<usize>,
    /// The number of contenders in `contended`.
    pub contenders: usize,
    /// The number of processes in the second run of `contended`; below two there is no second run.
    pub processes: usize,
    /// The number of locks in `held`.
    pub held: usize,
    /// The expiry of the locks in `held`; shorter if a run would not see two renewals.
    pub held_expiry: Duration,
    /// The expiry of the killed holder in `takeover`.
    pub takeover_expiry: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            scenarios: Scenario::ALL.to_vec(),
            run_time: Duration::from_secs(3),
            tasks: vec![64, 256],
            contenders: 64,
            processes: 8,
            held: 10_000,
            held_expiry: Duration::from_secs(9),
            takeover_expiry: Duration::from_millis(500),
        }
    }
}
