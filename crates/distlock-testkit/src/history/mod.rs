//! Records what every actor of a run observes, and checks the merged history against the contract.
//!
//! Each actor (a task, a thread, a process) writes events with a [`Recorder`]: requested, granted, held, lost, releasing,
//! released. All processes of the machine read one clock, so their logs merge into one [`History`].
//! [`History::check`] returns every violation with the events that prove it.
//!
//! # When a lock counts as held
//! A lock counts as held from the first to the last moment at which its guard *reported* held. The clock is read
//! **before** the guard is queried: a guard that then reports held was held at that moment. A lost guard never reports
//! held again, so the lock was held between any two such moments. A pause of the process can only shorten the interval.
//! Two intervals that exceed the capacity are therefore a real overlap, whatever the load of the machine: there are no
//! false positives. The more often a holder is checked, the fewer overlaps escape.
//!
//! ```
//! use distlock_testkit::history::{Event, EventKind, History, Rule};
//!
//! let event = |at, actor: &str, kind| Event { at, actor: actor.into(), request: 1, kind };
//! let requested = || EventKind::Requested { resource: "mutex m".into(), weight: 1, capacity: 1 };
//! let granted = |lock_id: &str, token| EventKind::Granted { lock_id: lock_id.into(), token, held: true };
//! let history = History::new(vec![
//!     event(1, "a", requested()),
//!     event(2, "a", granted("a#1", 7)),
//!     event(3, "b", requested()),
//!     event(4, "b", granted("b#1", 8)),
//!     event(5, "a", EventKind::Releasing { held: true }),
//!     event(6, "b", EventKind::Releasing { held: true }),
//! ]);
//! let violations = history.check();
//! assert_eq!(violations.len(), 1);
//! assert_eq!(violations[0].rule, Rule::CapacityExceeded);
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod check;
mod event;
mod lock_spec;
mod operation;
mod record;
mod recorded_guard;
mod tokens;

pub use check::{History, Rule, Violation};
pub use event::{Event, EventKind, ReleaseOutcome, now};
pub use lock_spec::LockSpec;
pub use record::{RecordedRequest, Recorder};
pub use recorded_guard::RecordedGuard;
