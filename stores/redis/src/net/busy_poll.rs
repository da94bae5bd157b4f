//! When a task looks at the socket for its reply instead of sleeping. A server nearby replies before a thread that went to sleep is
//! awake again, so a lone task keeps its thread for the few microseconds that this takes.
//!
//! The thread can do nothing else meanwhile, so this is limited: to tasks that have the connection to themselves, and while the server
//! usually replies within [`NEAR`], on a machine with more than one processor; for [`LONGEST`] in one request, and for [`MOST`] without a sleep. It also ends when another task
//! sends a request, since that task may need the thread for its reply.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How soon a server nearby replies, a sleep of our thread included.
const NEAR: Duration = Duration::from_micros(150);
/// How long a task polls for one reply.
const LONGEST: Duration = Duration::from_micros(60);
/// How long a thread polls for one reply after the other. Other tasks of the thread, and its timers, wait for as long.
const MOST: Duration = Duration::from_micros(250);
/// After a pause of this length between two requests the thread has done something else.
const PAUSE: Duration = Duration::from_micros(20);
/// So many requests in a row must have had the connection to themselves.
const ALONE: u32 = 16;
/// Of how many replies the usual time is the mean, about.
const SAMPLES: u64 = 8;

/// How long replies take, and who polls for one.
#[derive(Debug)]
pub(super) struct BusyPoll {
    opened: Instant,
    is_polling: AtomicBool,
    /// How long a reply usually takes, in ns: a moving mean.
    usual: AtomicU64,
    /// Since when a thread polls for one reply after the other, in ns after `opened`.
    since: AtomicU64,
    /// When it got the last one.
    replied: AtomicU64,
    /// How many requests in a row had the connection to themselves.
    alone: AtomicU32,
    /// The server may be on this machine, so it needs a processor too.
    has_processors: bool,
}

/// The right to poll for one reply.
pub(super) struct Polling<'a> {
    busy_poll: &'a BusyPoll,
    until: u64,
}

impl BusyPoll {
    pub(super) fn new() -> Self {
        BusyPoll {
            opened: Instant::now(),
            is_polling: AtomicBool::new(false),
            usual: AtomicU64::new(0),
            since: AtomicU64::new(0),
            replied: AtomicU64::new(0),
            alone: AtomicU32::new(0),
            has_processors: std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1),
        }
    }

    /// The next request may poll, as far as its server and other tasks are concerned, on a machine with several processors.
    #[cfg(test)]
    pub(super) fn count_as_lone(&self) {
        self.usual.store(0, Ordering::Relaxed);
        self.alone.store(ALONE, Ordering::Relaxed);
    }

    /// Now, in ns after it was opened.
    pub(super) fn now(&self) -> u64 {
        nanos(self.opened.elapsed())
    }

    /// Whether a task may poll for the reply to a request that it sent now. `in_flight`: how many requests are.
    pub(super) fn begin(&self, sent: u64, in_flight: usize) -> Option<Polling<'_>> {
        if in_flight > 1 {
            self.alone.store(0, Ordering::Relaxed);
            return None;
        }
        if self.alone.fetch_add(1, Ordering::Relaxed) < ALONE || !self.has_processors {
            return None;
        }
        if self.usual.load(Ordering::Relaxed) > nanos(NEAR) || self.is_polling.swap(true, Ordering::Relaxed) {
            return None;
        }
        if sent.saturating_sub(self.replied.load(Ordering::Relaxed)) > nanos(PAUSE) {
            self.since.store(sent, Ordering::Relaxed);
        }
        let most = self.since.load(Ordering::Relaxed).saturating_add(nanos(MOST));
        let polling = Polling { busy_poll: self, until: most.min(sent.saturating_add(nanos(LONGEST))) };
        (sent < most).then_some(polling)
    }

    /// The reply to a request that was sent at this time came now. With `slept`, its task has slept.
    pub(super) fn replied(&self, sent: u64, now: u64, slept: bool) {
        self.replied.store(now, Ordering::Relaxed);
        if slept {
            self.since.store(now, Ordering::Relaxed);
        }
        // One reply that took very long must not count for thousands. Where two tasks do this at once, one sample is missing.
        let took = now.saturating_sub(sent).min(8 * nanos(NEAR));
        let usual = self.usual.load(Ordering::Relaxed);
        self.usual.store(usual - usual / SAMPLES + took / SAMPLES, Ordering::Relaxed);
    }
}

impl Polling<'_> {
    pub(super) fn is_over(&self, now: u64) -> bool {
        now >= self.until
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.busy_poll.is_polling.store(false, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONE: usize = 1;

    fn with_processors() -> BusyPoll {
        BusyPoll { has_processors: true, ..BusyPoll::new() }
    }

    /// One after which the next lone request may poll.
    fn of_a_lone_task() -> BusyPoll {
        let busy_poll = with_processors();
        busy_poll.count_as_lone();
        busy_poll
    }

    #[test]
    fn only_a_task_that_has_the_connection_to_itself_polls() {
        let busy_poll = with_processors();
        let mut polled = 0;
        for at in 0..ALONE + 3 {
            polled += usize::from(busy_poll.begin(1_000_000 * u64::from(at), LONE).is_some());
        }
        assert_eq!(polled, 3);
        assert!(busy_poll.begin(60_000_000, 2).is_none(), "another request is in flight");
        assert!(busy_poll.begin(61_000_000, LONE).is_none(), "there was one just now");

        let busy_poll = of_a_lone_task();
        let first = busy_poll.begin(0, LONE);
        assert!(first.is_some() && busy_poll.begin(0, LONE).is_none(), "one at a time");
        drop(first);
        assert!(busy_poll.begin(0, LONE).is_some());
    }

    #[test]
    fn a_task_leaves_the_only_processor_to_the_server() {
        let busy_poll = BusyPoll { has_processors: false, ..BusyPoll::new() };
        busy_poll.count_as_lone();
        assert!(busy_poll.begin(0, LONE).is_none());
    }

    #[test]
    fn a_server_far_away_is_slept_for_until_it_is_near() {
        let busy_poll = of_a_lone_task();
        let request = |at: u64, took: Duration| {
            let polls = busy_poll.begin(at, LONE).is_some();
            busy_poll.replied(at, at + nanos(took), !polls);
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
    fn a_thread_polls_for_a_short_time_and_then_sleeps() {
        let busy_poll = of_a_lone_task();
        let polling = busy_poll.begin(5_000_000, LONE).unwrap();
        assert!(
            !polling.is_over(5_000_000 + nanos(LONGEST) - 1) && polling.is_over(5_000_000 + nanos(LONGEST))
        );
        drop(polling);

        // One request after the other, each answered after 30 µs.
        let (took, mut now, mut slept) = (30_000, 10_000_000, Vec::new());
        for n in 0..100 {
            let polls = busy_poll.begin(now, LONE).is_some();
            slept.extend((!polls).then_some(n));
            busy_poll.replied(now, now + took, !polls);
            now += took;
        }
        let most = usize::try_from(nanos(MOST) / took).unwrap();
        assert!(slept.windows(2).all(|two| two[1] - two[0] <= most + 2), "{slept:?}");
        assert!(slept.len() < 20, "{slept:?}");
        // After a pause it begins anew.
        assert!(busy_poll.begin(now + 2 * nanos(PAUSE), LONE).is_some());
    }
}
