//! When a command that may lose its lock must be told to end, and when it must be dead.

use std::time::Duration;

use distlock::Moment;

/// Processes need a moment to die, the more so the larger they are.
const KILL_MARGIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// With the lock certainly gone another holder may be at work: SIGKILL follows SIGTERM after this long, whatever grace was
/// asked for. With the time to notice and to die, that is the second that the help of `run` promises.
pub(crate) const GRACE_WHEN_GONE: Duration = Duration::from_millis(500);

/// Two moments before a lease ends, on the boot clock, which is one and the same for all processes of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// SIGTERM, if no extension has come by then.
    pub(crate) term_at: Moment,
    /// SIGKILL: early enough that everybody is dead when the lease ends.
    pub(crate) kill_at: Moment,
}

impl Deadlines {
    /// For a lease that ends at `deadline` unless it is extended, and is to be extended every `cadence` (a third of
    /// what is left, if the store does not say).
    ///
    /// What lies between the next extension and the deadline is divided: half of it, at least, is left for
    /// extensions that come late, so that one failed request ends nothing; the rest may be grace.
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

/// Whether a lease that ended at `before` was extended when it now ends at `end`, with so much left. The same end read
/// twice differs by the pauses between two looks at the clock; an extension moves it by far more. How far depends on
/// the store: a session has a time limit of its own, which may be much shorter than the cadence that was asked for.
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
    fn the_default_lease_leaves_the_whole_grace() {
        assert_eq!(of(29_700, 10_000, 5_000), (6_000 * MS, 1_000 * MS));
    }

    #[test]
    fn nobody_is_told_to_end_before_an_extension_had_its_chance() {
        for (left, cadence) in [(100, 33), (1_000, 333), (3_000, 1_000), (10_000, 9_900), (2_000, 10_000)] {
            for grace in [0, 10, 5_000, 3_600_000] {
                let (term, kill) = of(left, cadence, grace);
                let due = if cadence < left { cadence } else { left / 3 };
                assert!((left - due) * MS > term, "{left} {cadence} {grace}: told to end {term:?} before");
                assert!(term >= kill && kill > Duration::ZERO, "{left} {cadence} {grace}: {term:?} {kill:?}");
            }
        }
    }

    #[test]
    fn without_grace_both_come_at_once() {
        let (term, kill) = of(29_700, 10_000, 0);
        assert_eq!(term, kill);
    }

    #[test]
    fn a_session_far_shorter_than_the_cadence_is_seen_to_be_extended() {
        let cadence = 10_000 * MS;
        for session in [300, 2_000, 6_000, 30_000] {
            let session = session * MS;
            let now = Moment::from_origin(Duration::from_secs(1000));
            let before = now.after(session);
            let at = Deadlines::of(now, before, Some(cadence), 5_000 * MS);
            // Its heartbeat comes every third of it, and is seen before anybody is told to end.
            let beat = now.after(session / 3);
            let end = beat.after(session);
            assert!(beat < at.term_at, "{session:?}");
            assert!(has_moved(before, end, end.since(beat), cadence), "{session:?}");
            // A look that comes a little late is no extension.
            assert!(!has_moved(before, before.after(MS), session, cadence), "{session:?}");
        }
    }
}
