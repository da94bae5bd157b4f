//! The configuration of an actor, its commands and its replies.

use std::path::PathBuf;
use std::time::Duration;

use distlock_core::Options;
use serde::{Deserialize, Serialize};

use crate::history::{LockSpec, ReleaseOutcome};

/// How to start an actor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActorConfig {
    /// Its name, which is also the label of its lock ids.
    pub name: String,
    /// The folder for its log.
    pub logs: PathBuf,
    /// The options of its locks.
    pub options: TestOptions,
    /// Where the store is; `None` for a thread, which gets its connection from the test.
    pub address: Option<String>,
}

/// The lock options that tests vary, in a form that can be sent to another process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TestOptions {
    /// The expiry of a lock.
    pub expiry: Duration,
    /// The renewal interval; `None` for the default.
    pub cadence: Option<Duration>,
    /// Whether locks are renewed at all.
    pub auto_extend: bool,
    /// The minimum time that a lock is kept.
    pub hold_at_least: Duration,
    /// The minimum lifetime of a waiter's queue entry. Make it longer than a test looks for a leaked entry.
    pub waiter_ttl: Duration,
    /// The time limit of one request to the store.
    pub request_timeout: Duration,
}

impl TestOptions {
    /// This expiry, and otherwise the defaults of the suite.
    #[must_use]
    pub fn with_expiry(expiry: Duration) -> Self {
        TestOptions {
            expiry,
            cadence: None,
            auto_extend: true,
            hold_at_least: Duration::ZERO,
            waiter_ttl: Duration::ZERO,
            request_timeout: Duration::from_secs(5),
        }
    }

    /// The options for [`Locks`](distlock_core::Locks). The first polls follow each other quickly, so that tests are fast
    /// on stores without wake-ups.
    ///
    /// # Panics
    /// If the values contradict each other.
    #[must_use]
    pub fn to_options(&self) -> Options {
        // A queue entry outlives the longest sleep of its waiter by a little.
        let longest_sleep = self.waiter_ttl.clamp(Duration::from_millis(100), Duration::from_secs(60));
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
            .expect("the options of a test are consistent")
            .auto_extend(self.auto_extend)
            .adaptive_backoff(true)
    }
}

/// A command or a reply, with the id that connects the two.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Envelope<T> {
    pub(super) id: u64,
    pub(super) body: T,
}

/// A command for an actor. Commands run concurrently; to order them, wait for the reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorCommand {
    /// Connect now, not with the first lock.
    Connect,
    /// Acquire a lock and keep its guard under this slot number.
    Acquire {
        /// The slot number.
        slot: u32,
        /// The lock.
        spec: LockSpec,
        /// The time limit.
        timeout: Option<Duration>,
        /// Whether a thread of its own checks and records all the time whether the guard is held.
        watch: bool,
    },
    /// Report whether the guard is lost. A thread outside the runtime answers.
    IsLost {
        /// The slot number.
        slot: u32,
    },
    /// Report how long the lock is held without a renewal.
    TimeLeft {
        /// The slot number.
        slot: u32,
    },
    /// Release the lock.
    Release {
        /// The slot number.
        slot: u32,
    },
    /// Acquire and release many times.
    Contend(Contention),
    /// Block the runtime until resumed, as `SIGSTOP` does to a process. For threads only.
    Pause,
    /// Release everything and end.
    Shutdown,
}

/// A loop of acquisitions and releases.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contention {
    /// The locks, acquired in rotation.
    pub specs: Vec<LockSpec>,
    /// The number of acquisitions.
    pub rounds: u32,
    /// How long each lock is held.
    pub hold: Duration,
    /// The pause after each release.
    pub pause: Duration,
}

impl Contention {
    /// This many rounds over these locks: hold for 1 ms, pause for 0.2 ms.
    #[must_use]
    pub fn over(specs: impl Into<Vec<LockSpec>>, rounds: u32) -> Self {
        Contention {
            specs: specs.into(),
            rounds,
            hold: Duration::from_millis(1),
            pause: Duration::from_micros(200),
        }
    }
}

/// The reply to an [`ActorCommand`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorReply {
    /// The command was executed.
    Done,
    /// The lock was granted.
    Granted {
        /// Its token.
        token: u64,
        /// Its lock id.
        lock_id: String,
    },
    /// The lock was not granted.
    Refused {
        /// The kind of the error, as `Debug` prints it.
        kind: String,
        /// The error.
        text: String,
    },
    /// Whether the guard is lost.
    IsLost(bool),
    /// How long the lock is held without a renewal; `None` without a limit.
    TimeLeft(Option<Duration>),
    /// The result of the release.
    Released(ReleaseOutcome),
}
