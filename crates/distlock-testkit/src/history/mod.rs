//! What happened in a run, and whether it was allowed to happen.
//!
//! Everybody who takes locks in a test writes down what they saw with a [`Recorder`]: asked, granted, still held,
//! lost, giving back, given back. The time of every line is read from one clock that all processes of the machine
//! share, so the logs of many processes merge into one [`History`], and [`History::check`] lists what breaks the
//! contract, with the lines that show it.
//!
//! # When a lock counts as held
//! From the first to the last moment at which its guard *said* so. A moment is read from the clock **before** the
//! guard is asked: if the guard then says that it is held, it was held at that moment. A guard that was lost never
//! says that it is held again, so it was held between any two such moments. Whatever pauses the process in between
//! can only make the interval shorter. Two intervals that exceed the capacity together are therefore a real overlap,
//! whatever the machine was doing; there are no false alarms. The more often a holder looks, the less escapes.
//!
//! ```
//! use distlock_testkit::history::{Event, History, Rule, What};
//!
//! let event = |at, actor: &str, what| Event { at, actor: actor.into(), ask: 1, what };
//! let asked = || What::Asked { resource: "mutex m".into(), weight: 1, capacity: 1 };
//! let granted = |lock_id: &str, token| What::Granted { lock_id: lock_id.into(), token, held: true };
//! let history = History::new(vec![
//!     event(1, "a", asked()),
//!     event(2, "a", granted("a#1", 7)),
//!     event(3, "b", asked()),
//!     event(4, "b", granted("b#1", 8)),
//!     event(5, "a", What::GivingBack { held: true }),
//!     event(6, "b", What::GivingBack { held: true }),
//! ]);
//! let violations = history.check();
//! assert_eq!(violations.len(), 1);
//! assert_eq!(violations[0].rule, Rule::HeldBeyondCapacity);
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
pub use event::{Event, Outcome, What, now};
pub use lock_spec::LockSpec;
pub use record::{Asked, Recorder};
pub use recorded_guard::RecordedGuard;
