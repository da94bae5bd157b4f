//! One line of a log.

use std::fmt;

use distlock_core::{BootClock, Clock};
use serde::{Deserialize, Serialize};

/// The time now, in nanoseconds of a clock that all processes of this machine share and that counts suspended time
/// (`CLOCK_BOOTTIME` on Linux).
#[must_use]
pub fn now() -> u64 {
    BootClock.now().as_nanos()
}

/// What one actor observed of one of its requests at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The time, on the clock of [`now`].
    pub at: u64,
    /// The name of the actor.
    pub actor: String,
    /// The number of the actor's request, from 1; zero if the event concerns the actor itself.
    pub request: u64,
    /// What was observed.
    pub kind: EventKind,
}

/// What an [`Event`] reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A lock is requested. The store may grant it from this moment on.
    Requested {
        /// Kind and name.
        resource: String,
        /// The requested share of the capacity.
        weight: u32,
        /// The capacity.
        capacity: u32,
    },
    /// The request was granted and the guard returned.
    Granted {
        /// The lock id of the grant.
        lock_id: String,
        /// Its token.
        token: u64,
        /// Whether the guard, queried after the clock was read, reported held.
        held: bool,
    },
    /// The guard, queried after the clock was read, reported held.
    Held,
    /// The guard reported its loss.
    Lost {
        /// The reason.
        reason: String,
    },
    /// The guard is about to be released or dropped.
    Releasing {
        /// Whether the guard, queried after the clock was read, reported held.
        held: bool,
    },
    /// The release returned.
    Released {
        /// Its result.
        outcome: ReleaseOutcome,
    },
    /// The request ended without a grant: busy, timed out, or failed.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The request was dropped before it was answered.
    Cancelled,
    /// The actor was killed and writes no further events.
    Killed,
    /// The actor was paused.
    Paused,
    /// The actor was resumed.
    Resumed,
    /// An operator is about to break the lock on a resource. Only this may grant a lock to the next holder before the
    /// previous one reports its loss: the previous holder learns of it from its next renewal.
    Broken {
        /// Kind and name.
        resource: String,
    },
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseOutcome {
    /// The store confirmed it.
    Clean,
    /// The lock had been lost.
    Lost,
    /// The store did not answer: outcome unknown.
    Unknown,
}

impl Event {
    /// Formats the event for people, with the time since `origin` in milliseconds.
    pub(super) fn format(&self, origin: u64) -> String {
        let since = self.at.saturating_sub(origin);
        let (ms, rest) = (since / 1_000_000, since % 1_000_000);
        let request = if self.request == 0 { String::new() } else { format!(" #{}", self.request) };
        format!("{ms:>6}.{rest:06} ms  {}{request}: {}", self.actor, self.kind)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventKind::Requested { resource, weight, capacity } => {
                write!(f, "requests {weight} of {capacity} of {resource}")
            }
            EventKind::Granted { lock_id, token, held } => {
                let held = if *held { "" } else { ", already lost" };
                write!(f, "granted with token {token} as {lock_id}{held}")
            }
            EventKind::Held => f.write_str("reports held"),
            EventKind::Lost { reason } => write!(f, "reports lost: {reason}"),
            EventKind::Releasing { held: true } => f.write_str("releases, still held"),
            EventKind::Releasing { held: false } => f.write_str("releases, already lost"),
            EventKind::Released { outcome } => write!(f, "released: {outcome:?}"),
            EventKind::Refused { reason } => write!(f, "refused: {reason}"),
            EventKind::Cancelled => f.write_str("cancelled"),
            EventKind::Killed => f.write_str("killed"),
            EventKind::Paused => f.write_str("paused"),
            EventKind::Resumed => f.write_str("resumed"),
            EventKind::Broken { resource } => write!(f, "breaks {resource}"),
        }
    }
}
