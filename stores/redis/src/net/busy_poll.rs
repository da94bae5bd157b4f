//! When a task looks at the socket for its reply instead of sleeping. A server nearby replies before a thread that went to sleep is
//! awake again, and waking one costs the server as much as serving a request. So while the server usually replies within [`NEAR`], a task
//! keeps its thread until its reply is there, for [`LONGEST`] at the most.
//!
//! Other tasks of the thread run in between. A machine with one processor, or one whose processors have other work, is left alone: a thread that
//! polls and finds that it was not running for a while ends polling for all tasks, for longer and longer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How soon a server nearby replies, a sleep of our thread included.
const NEAR: Duration = Duration::from_micros(150);
/// How long a task polls for one reply.
const LONGEST: Duration = Duration::from_micros(60);
/// After so long without a reply, requests that wait for company are written.
const LONG: Duration = Duration::from_micros(30);
/// How long it polls before it lets the other tasks of its thread run, while there are other requests in flight.
const SLICE: Duration = Duration::from_micros(10);
/// How long a thread polls for one reply after the other before it lets other tasks run.
const MOST: Duration = Duration::from_micros(250);
/// After so much time between two requests the thread has done something else.
const OTHER_WORK: Duration = Duration::from_micros(20);
/// A lone task that sends its next request within this time of a reply is one that sends many.
const DENSE: Duration = Duration::from_micros(100);
/// With more requests in flight no task polls: the server is never idle, and neither is the client.
const MOST_IN_FLIGHT: usize = 32;
/// Of how many replies the usual time is the mean, about.
const SAMPLES: u64 = 8;
/// A thread that polls and finds that so much time has passed was not running: another one needs the processor.
const PREEMPTED: Duration = Duration::from_micros(200);
/// For how long no task polls after that: at first, and at the most.
const PAUSE: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(640)];

/// How long replies take, and whether a task may poll for one.
#[derive(Debug)]
pub(super) struct BusyPoll {
    opened: Instant,
    /// How long it usually takes from the reply before to a reply, in ns: a moving mean.
    usual: AtomicU64,
    /// When the last reply came, in ns after `opened`.
    replied: AtomicU64,
    /// Since when a thread polls for one reply after the other.
    since: AtomicU64,
    /// Until when no task polls, and how long that pause is.
    paused_until: AtomicU64,
    pause: AtomicU64,
    turns: AtomicU64,
    /// The server may be on this machine, so it needs a processor too.
    has_processors: bool,
}

/// A task that polls.
pub(super) struct Looking<'a> {
    busy_poll: &'a BusyPoll,
    until: u64,
    yields_at: u64,
    since: u64,
    last: u64,
}

impl BusyPoll {
    pub(super) fn new() -> Self {
        BusyPoll {
            opened: Instant::now(),
            usual: AtomicU64::new(0),
            replied: AtomicU64::new(0),
            since: AtomicU64::new(0),
            paused_until: AtomicU64::new(0),
            pause: AtomicU64::new(nanos(PAUSE[0])),
            turns: AtomicU64::new(0),
            has_processors: std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1),
        }
    }

    /// Now, in ns after it was opened.
    pub(super) fn now(&self) -> u64 {
        nanos(self.opened.elapsed())
    }

    /// Whether tasks may poll, with so many requests in flight.
    pub(super) fn allows(&self, now: u64, in_flight: usize) -> bool {
        self.has_processors
            && in_flight <= MOST_IN_FLIGHT
            && self.usual.load(Ordering::Relaxed) <= nanos(NEAR)
            && now >= self.paused_until.load(Ordering::Relaxed)
    }

    /// Whether a task that began to poll at this moment sends one request after the other.
    pub(super) fn is_dense(&self, since: u64) -> bool {
        since.saturating_sub(self.replied.load(Ordering::Relaxed)) < nanos(DENSE)
    }

    /// Begins a slice of polling, by a task that has polled since then.
    pub(super) fn look(&self, since: u64, is_lone: bool) -> Looking<'_> {
        let now = self.now();
        let until = since.saturating_add(nanos(LONGEST));
        if now.saturating_sub(self.replied.load(Ordering::Relaxed)) > nanos(OTHER_WORK) {
            self.since.store(now, Ordering::Relaxed);
        }
        let most = self.since.load(Ordering::Relaxed).saturating_add(nanos(MOST));
        let yields_at = if is_lone { most } else { most.min(now.saturating_add(nanos(SLICE))) };
        Looking { busy_poll: self, until, yields_at, since, last: now }
    }

    /// The reply to a request came now. `since`: when it was sent, or when its task began to poll.
    pub(super) fn replied(&self, since: u64, now: u64) {
        let before = self.replied.swap(now, Ordering::Relaxed);
        // One reply that took very long must not count for thousands. Where two tasks do this at once, one sample is missing.
        let took = now.saturating_sub(since.max(before)).min(8 * nanos(NEAR));
        let usual = self.usual.load(Ordering::Relaxed);
        self.usual.store(usual - usual / SAMPLES + took / SAMPLES, Ordering::Relaxed);
    }

    pub(super) fn count_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn pause_for_test(&self) {
        self.paused_until.store(u64::MAX, Ordering::Relaxed);
    }

    /// On a machine with several processors.
    #[cfg(test)]
    pub(super) fn resume_for_test(&self) {
        self.usual.store(0, Ordering::Relaxed);
        self.paused_until.store(0, Ordering::Relaxed);
    }

    fn preempted(&self, now: u64) {
        let pause = self.pause.load(Ordering::Relaxed);
        let ended = self.paused_until.load(Ordering::Relaxed);
        // After a good while, it begins anew.
        let pause = if now.saturating_sub(ended) > 8 * pause {
            nanos(PAUSE[0])
        } else {
            (2 * pause).min(nanos(PAUSE[1]))
        };
        self.pause.store(pause, Ordering::Relaxed);
        self.paused_until.store(now + pause, Ordering::Relaxed);
    }
}

impl Looking<'_> {
    /// Whether it has taken too long, or another thread needs the processor.
    pub(super) fn is_over(&mut self, now: u64) -> bool {
        let since = now.saturating_sub(std::mem::replace(&mut self.last, now));
        if since > nanos(PREEMPTED) {
            self.busy_poll.preempted(now);
            return true;
        }
        now >= self.until
    }

    /// Whether it has looked for so long that requests which wait for company are written.
    pub(super) fn is_long(&self, now: u64) -> bool {
        now.saturating_sub(self.since) >= nanos(LONG)
    }

    /// Whether other tasks of the thread come first.
    pub(super) fn yields(&self, now: u64) -> bool {
        let yields = now >= self.yields_at;
        if yields {
            self.busy_poll.since.store(now, Ordering::Relaxed);
        }
        yields
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_processors() -> BusyPoll {
        BusyPoll { has_processors: true, ..BusyPoll::new() }
    }

    #[test]
    fn the_only_processor_is_left_to_the_server() {
        let busy_poll = BusyPoll { has_processors: false, ..BusyPoll::new() };
        assert!(!busy_poll.allows(0, 1));
    }

    #[test]
    fn with_many_requests_in_flight_no_task_polls() {
        let busy_poll = with_processors();
        assert!(busy_poll.allows(0, MOST_IN_FLIGHT) && !busy_poll.allows(0, MOST_IN_FLIGHT + 1));
    }

    #[test]
    fn a_server_far_away_is_slept_for_until_it_is_near() {
        let busy_poll = with_processors();
        let request = |at: u64, took: Duration| {
            let polls = busy_poll.allows(at, 1);
            busy_poll.replied(at, at + nanos(took));
            polls
        };
        let far: usize =
            (1..100).map(|n| usize::from(request(n * 10_000_000, Duration::from_millis(1)))).sum();
        assert!(far <= 2, "{far}");
        // One reply that took an hour counts as little as one that took a millisecond.
        request(2_000_000_000, Duration::from_secs(3600));
        let near = (0..100).position(|n| request(10_000_000_000_000 + n * 10_000_000, NEAR / 5));
        assert!(near.is_some_and(|slow| slow < 40), "{near:?}");
    }

    #[test]
    fn replies_to_requests_that_were_sent_together_count_from_one_to_the_next() {
        let busy_poll = with_processors();
        for n in 1..100 {
            busy_poll.replied(0, n * 10_000);
        }
        assert!(busy_poll.usual.load(Ordering::Relaxed) < 11_000);
    }

    #[test]
    fn a_task_polls_for_a_short_time_and_lets_others_run_in_between() {
        let busy_poll = with_processors();
        let (now, slice) = (busy_poll.now(), nanos(SLICE));
        let mut looking = busy_poll.look(now, false);
        assert!(!looking.is_over(now + slice / 2) && !looking.yields(now + slice / 2));
        assert!(looking.yields(busy_poll.now() + slice));
        assert!(looking.is_over(now + nanos(LONGEST)));
    }

    /// Whose replies come at once, so that it would never wait for one.
    #[test]
    fn a_lone_task_lets_others_run_although_its_replies_come_at_once() {
        let busy_poll = with_processors();
        let begun = busy_poll.now();
        let mut yielded = 0;
        while busy_poll.now() - begun < 20 * nanos(MOST) {
            let now = busy_poll.now();
            yielded += u32::from(busy_poll.look(now, true).yields(busy_poll.now()));
            busy_poll.replied(now, busy_poll.now());
        }
        assert!((1..=20).contains(&yielded), "{yielded}");
    }

    #[test]
    fn a_thread_that_was_not_running_ends_polling_for_longer_and_longer() {
        let busy_poll = with_processors();
        let (mut now, mut pauses) = (busy_poll.now(), Vec::new());
        for _ in 0..10 {
            let mut looking = busy_poll.look(now, false);
            looking.last = now;
            now += nanos(PREEMPTED) + 1;
            assert!(looking.is_over(now) && !busy_poll.allows(now, 1));
            let ends = busy_poll.paused_until.load(Ordering::Relaxed);
            pauses.push(ends - now);
            now = ends;
            assert!(busy_poll.allows(now, 1));
        }
        assert!(pauses.is_sorted() && pauses[1] == 2 * pauses[0], "{pauses:?}");
        assert_eq!(pauses.last(), Some(&nanos(PAUSE[1])));
        // After a good while it is short again.
        busy_poll.preempted(now + 20 * nanos(PAUSE[1]));
        let ends = busy_poll.paused_until.load(Ordering::Relaxed);
        assert_eq!(ends - (now + 20 * nanos(PAUSE[1])), nanos(PAUSE[0]));
    }
}
