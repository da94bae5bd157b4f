//! What to run, and for how long.

use std::time::Duration;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scenario {
    /// One task takes and gives back one lock.
    Uncontended,
    /// Many tasks, each with a name of its own.
    Throughput,
    /// One holder, one waiter behind another connection, and the releaser stays out.
    Handover,
    /// Many tasks want one lock, hold it for a millisecond and pause for five; in one process, then in several.
    Contended,
    /// Many locks that are only kept alive.
    Held,
    /// The holder's process is killed.
    Takeover,
}

impl Scenario {
    /// All of them, in the order in which they run.
    pub const ALL: [Scenario; 6] = [
        Scenario::Uncontended,
        Scenario::Throughput,
        Scenario::Handover,
        Scenario::Contended,
        Scenario::Held,
        Scenario::Takeover,
    ];

    /// The word for it in options and output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Scenario::Uncontended => "uncontended",
            Scenario::Throughput => "throughput",
            Scenario::Handover => "handover",
            Scenario::Contended => "contended",
            Scenario::Held => "held",
            Scenario::Takeover => "takeover",
        }
    }
}

/// What to run. The defaults are those of `distlock bench`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which scenarios, in this order.
    pub scenarios: Vec<Scenario>,
    /// How long each run takes, connecting and cleaning up not counted.
    pub each: Duration,
    /// `throughput` runs once for each of these numbers of tasks.
    pub tasks: Vec<usize>,
    /// How many want the lock in `contended`.
    pub contenders: usize,
    /// Over how many processes the second run of `contended` spreads them; below two, there is no second run.
    pub processes: usize,
    /// How many locks `held` keeps alive.
    pub held: usize,
    /// The expiry of the locks of `held`, unless a run is too short to see two extensions at that.
    pub held_expiry: Duration,
    /// The expiry that a killed holder leaves behind in `takeover`.
    pub takeover_expiry: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            scenarios: Scenario::ALL.to_vec(),
            each: Duration::from_secs(3),
            tasks: vec![64, 256],
            contenders: 64,
            processes: 8,
            held: 10_000,
            held_expiry: Duration::from_secs(9),
            takeover_expiry: Duration::from_millis(500),
        }
    }
}
