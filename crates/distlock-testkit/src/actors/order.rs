//! What actors are told, and what they answer.

use std::path::PathBuf;
use std::time::Duration;

use distlock_core::Options;
use serde::{Deserialize, Serialize};

use crate::history::{LockSpec, Outcome};

/// What an actor knows from the beginning.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Role {
    /// Its name: also the label of its lock ids.
    pub name: String,
    /// The folder for its log.
    pub logs: PathBuf,
    /// The options of its locks.
    pub terms: Terms,
    /// Where the store is; `None` for a thread, which gets a connection from the test.
    pub address: Option<String>,
}

/// The options that a test varies, as data.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Terms {
    /// How long a lock outlives its holder.
    pub expiry: Duration,
    /// How often it is extended; `None` for the default.
    pub cadence: Option<Duration>,
    /// Whether it is extended at all.
    pub auto_extend: bool,
    /// The least time it is kept.
    pub hold_at_least: Duration,
    /// How long an entry of a waiter may stay behind at least: far longer than a test looks for it.
    pub waiter_lasts: Duration,
    /// How long one request may take before it counts as failed.
    pub request_timeout: Duration,
}

impl Terms {
    /// This expiry, and otherwise the defaults of the suite.
    #[must_use]
    pub fn expiring(expiry: Duration) -> Self {
        Terms {
            expiry,
            cadence: None,
            auto_extend: true,
            hold_at_least: Duration::ZERO,
            waiter_lasts: Duration::ZERO,
            request_timeout: Duration::from_secs(5),
        }
    }

    /// The options. Polls are frequent at first, so that tests are quick on stores that cannot wake anybody.
    ///
    /// # Panics
    /// If they contradict each other.
    #[must_use]
    pub fn options(&self) -> Options {
        // An entry lives a little longer than its waiter sleeps.
        let longest_sleep = self.waiter_lasts.clamp(Duration::from_millis(100), Duration::from_secs(60));
        let options = Options::new()
            .expiry(self.expiry)
            .and_then(|options| options.busy_wait_sleep(Duration::from_millis(5), longest_sleep))
            .and_then(|options| options.hold_at_least(self.hold_at_least))
            .and_then(|options| options.request_timeout(self.request_timeout))
            .and_then(|options| match self.cadence {
                Some(cadence) => options.extension_cadence(cadence),
                None => Ok(options),
            });
        options
            .expect("the terms of a test fit together")
            .auto_extend(self.auto_extend)
            .adaptive_backoff(true)
    }
}

/// An order with the number that its answer will carry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Letter<T> {
    pub(super) number: u64,
    pub(super) text: T,
}

/// What an actor can do. Each order is carried out beside the others; whoever needs an order of things waits for
/// the answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Connects now, not with the first lock.
    Connect,
    /// Takes a lock and keeps it under this number.
    Take {
        /// The number.
        slot: u32,
        /// The lock.
        spec: LockSpec,
        /// A time limit.
        within: Option<Duration>,
        /// Whether a thread of its own keeps looking whether it is held, and writes it down.
        watch: bool,
    },
    /// Whether what it took is lost. Answered by a thread that needs no runtime.
    IsLost {
        /// The number.
        slot: u32,
    },
    /// How long it is surely held without an extension.
    TimeLeft {
        /// The number.
        slot: u32,
    },
    /// Releases what it took.
    GiveBack {
        /// The number.
        slot: u32,
    },
    /// Takes and releases many times.
    Contend(Contest),
    /// Stands still until it is thawed: what `SIGSTOP` is for a process. Only for threads.
    Freeze,
    /// Gives everything back and ends.
    Leave,
}

/// Taking and releasing many times.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contest {
    /// What to take, in turn.
    pub specs: Vec<LockSpec>,
    /// How many times.
    pub rounds: u32,
    /// How long each is held.
    pub hold: Duration,
    /// How long to pause between two.
    pub rest: Duration,
}

impl Contest {
    /// So many rounds over these, each held for a millisecond, with hardly a pause.
    #[must_use]
    pub fn over(specs: impl Into<Vec<LockSpec>>, rounds: u32) -> Self {
        Contest {
            specs: specs.into(),
            rounds,
            hold: Duration::from_millis(1),
            rest: Duration::from_micros(200),
        }
    }
}

/// What comes of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is done.
    Done,
    /// The lock was granted.
    Granted {
        /// Its token.
        token: u64,
        /// Its lock id.
        lock_id: String,
    },
    /// It was not.
    Refused {
        /// The kind of the error, as `Debug` shows it.
        kind: String,
        /// The error.
        text: String,
    },
    /// Whether it is lost.
    IsLost(bool),
    /// How long it is surely held; `None` for ever.
    TimeLeft(Option<Duration>),
    /// How the release ended.
    GivenBack(Outcome),
}
