//! One line of a log.

use std::fmt;

use distlock_core::{BootClock, Clock};
use serde::{Deserialize, Serialize};

/// Now, in nanoseconds on a clock that all processes of this machine share and that counts suspended time
/// (`CLOCK_BOOTTIME` on Linux).
#[must_use]
pub fn now() -> u64 {
    BootClock.now().as_nanos()
}

/// What one actor saw of one of its requests at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, on the clock of [`now`].
    pub at: u64,
    /// Who.
    pub actor: String,
    /// Which of the actor's requests, from 1; zero for what concerns the actor itself.
    pub ask: u64,
    /// What.
    pub what: What,
}

/// What there is to see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A lock is asked for: from this moment on it may be granted.
    Asked {
        /// Kind and name.
        resource: String,
        /// How much of the capacity.
        weight: u32,
        /// The capacity.
        capacity: u32,
    },
    /// The request was granted, and the guard is there.
    Granted {
        /// The lock id of the grant.
        lock_id: String,
        /// Its token.
        token: u64,
        /// Whether the guard, asked after the clock was read, said that it is held.
        held: bool,
    },
    /// The guard, asked after the clock was read, said that it is held.
    Kept,
    /// The guard said that it is lost.
    Lost {
        /// Why.
        reason: String,
    },
    /// The guard is about to be released or dropped.
    GivingBack {
        /// Whether the guard, asked after the clock was read, said that it is held.
        held: bool,
    },
    /// The release returned.
    GivenBack {
        /// How.
        outcome: Outcome,
    },
    /// The request ended without a grant: busy, a time limit, an error.
    Refused {
        /// Why.
        why: String,
    },
    /// The request was dropped before it was answered.
    Cancelled,
    /// The actor was stopped by force, and writes nothing more.
    Killed,
    /// The actor was paused.
    Paused,
    /// The actor goes on.
    Resumed,
    /// An operator is about to take a resource from whoever holds it. This is the one thing that may give a lock to
    /// somebody else before its holder knows: the holder is told with its next extension.
    Broken {
        /// Kind and name.
        resource: String,
    },
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The store confirmed it.
    Clean,
    /// The lock had been lost.
    Lost,
    /// The store did not answer.
    Unknown,
}

impl Event {
    /// The line as people read it, with the time since `origin` in milliseconds.
    pub(super) fn shown(&self, origin: u64) -> String {
        let since = self.at.saturating_sub(origin);
        let (ms, rest) = (since / 1_000_000, since % 1_000_000);
        let ask = if self.ask == 0 { String::new() } else { format!(" #{}", self.ask) };
        format!("{ms:>6}.{rest:06} ms  {}{ask}: {}", self.actor, self.what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Asked { resource, weight, capacity } => {
                write!(f, "asks for {weight} of {capacity} of {resource}")
            }
            What::Granted { lock_id, token, held } => {
                let held = if *held { "" } else { ", lost by then" };
                write!(f, "granted with token {token} under {lock_id}{held}")
            }
            What::Kept => f.write_str("says that it is held"),
            What::Lost { reason } => write!(f, "told that it is lost: {reason}"),
            What::GivingBack { held: true } => f.write_str("gives back what it holds"),
            What::GivingBack { held: false } => f.write_str("gives back what it lost"),
            What::GivenBack { outcome } => write!(f, "has given back: {outcome:?}"),
            What::Refused { why } => write!(f, "got nothing: {why}"),
            What::Cancelled => f.write_str("gave up"),
            What::Killed => f.write_str("was killed"),
            What::Paused => f.write_str("was paused"),
            What::Resumed => f.write_str("goes on"),
            What::Broken { resource } => write!(f, "breaks {resource}"),
        }
    }
}
