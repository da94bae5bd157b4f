//! When a command that may lose its lock gets SIGTERM, and when it must be dead.

use std::time::Duration;

use distlock::Moment;

/// How long processes may take to die: shortest and longest.
const KILL_MARGIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Once the lock is certainly lost, another client may hold it: SIGKILL follows SIGTERM after this long, whatever `--grace`
/// says. With the time to detect the loss and to die, this is the second that the help of `run` promises.
pub(crate) const GRACE_WHEN_GONE: Duration = Duration::from_millis(500);

/// Two moments before a lease ends, on the boot clock, which all processes of a machine share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// SIGTERM, if the lease was not renewed by then.
    pub(crate) term_at: Moment,
    /// SIGKILL: early enough that all processes are dead when the lease ends.
    pub(crate) kill_at: Moment,
}

impl Deadlines {
    /// For a lease that ends at `deadline` unless it is renewed, and is renewed every `cadence` (without one, a third of the
    /// time left).
    ///
    /// At least half of the time between the next renewal and the deadline is left for late renewals, so that one failed
    /// request does not end the command; the rest may be grace.
    pub(crate) fn of(now: Moment, deadline: Moment, cadence: Option<Duration>, grace: Duration) -> Self {
        let left = deadline.since(now);
        let cadence = cadence.filter(|cadence| *cadence < left).unwrap_or(left / 3);
        let room = left.saturating_sub(cadence);
        let margin = (left / 10).clamp(KILL_MARGIN.0, KILL_MARGIN.1).min(room / 4);
        let grace = grace.min(room.saturating_sub(margin) / 2);
        let kill_at = deadline.before(margin);
        Deadlines { term_at: kill_at.before(grace), kill_at }
    }
}

/// Whether a lease that ended at `before` was renewed if it now ends at `end`, with `left` to go. The same end read twice
/// differs by the pauses between two readings of the clock; a renewal moves it by far more. How far depends on the store: a
/// session has its own time-to-live, which may be much shorter than the cadence.
pub(crate) fn has_moved(before: Moment, end: Moment, left: Duration, cadence: Duration) -> bool {
    let noise = (cadence.min(left) / 8).max(Duration::from_millis(1));
    end.since(before) > noise
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn of(left: u32, cadence: u32, grace: u32) -> (Duration, Duration) {
        let now = Moment::from_origin(Duration::from_secs(1000));
        let end = now.after(left * MS);
        let at = Deadlines::of(now, end, Some(cadence * MS), grace * MS);
        (end.since(at.term_at), end.since(at.kill_at))
    }

    #[test]
    fn the_default_lease_leaves_the_full_grace() {
        assert_eq!(of(29_700, 10_000, 5_000), (6_000 * MS, 1_000 * MS));
    }

    #[test]
    fn no_command_is_ended_before_a_renewal_was_due() {
        for (left, cadence) in [(100, 33), (1_000, 333), (3_000, 1_000), (10_000, 9_900), (2_000, 10_000)] {
            for grace in [0, 10, 5_000, 3_600_000] {
                let (term, kill) = of(left, cadence, grace);
                let due = if cadence < left { cadence } else { left / 3 };
                assert!(
                    (left - due) * MS > term,
                    "{left} {cadence} {grace}: SIGTERM {term:?} before the end"
                );
                assert!(term >= kill && kill > Duration::ZERO, "{left} {cadence} {grace}: {term:?} {kill:?}");
            }
        }
    }

    #[test]
    fn without_grace_both_signals_are_sent_at_once() {
        let (term, kill) = of(29_700, 10_000, 0);
        assert_eq!(term, kill);
    }

    #[test]
    fn the_renewal_of_a_session_far_shorter_than_the_cadence_is_seen() {
        let cadence = 10_000 * MS;
        for session in [300, 2_000, 6_000, 30_000] {
            let session = session * MS;
            let now = Moment::from_origin(Duration::from_secs(1000));
            let before = now.after(session);
            let at = Deadlines::of(now, before, Some(cadence), 5_000 * MS);
            // The heartbeat comes every third of it, and is seen before SIGTERM is due.
            let beat = now.after(session / 3);
            let end = beat.after(session);
            assert!(beat < at.term_at, "{session:?}");
            assert!(has_moved(before, end, end.since(beat), cadence), "{session:?}");
            // A slightly late reading is no renewal.
            assert!(!has_moved(before, before.after(MS), session, cadence), "{session:?}");
        }
    }
}
