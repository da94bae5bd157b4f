//! The server's clock as this process has seen it.
//!
//! The clock is the term that keeps tokens rising after the record of a name is purged. Tokens must not fall when the clock
//! is set back, or when the clock of the next primary is behind.
//!
//! Each process remembers the largest difference it has seen between the server's clock and its own monotonic clock, and
//! sends the time that follows from it as the lowest token of a new grant. While the server's clock runs normally that
//! time is in the past and has no effect.
//!
//! Processes that start later learn it too. A replica set has a logical time that follows the clock, never moves back and
//! comes with every reply. A standalone server has none: there the first client that notices writes the difference into
//! the document `clock` of the queue collection, before the next mutex is granted.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use distlock_core::Result;
use mongodb::bson::{Document, Timestamp, doc};

use crate::commands::{Commands, DocumentUpdate, Durability, Image, Namespace, Snapshot};
use crate::error::number;
use crate::pipelines::LAST_DATE_MS;

/// Smaller differences are normal: the members' clocks differ a little and are corrected all the time.
const SIGNIFICANT_MS: i64 = 1000;

/// A token further ahead of the clock than this is another program's count, not an earlier reading of the clock. Taken for
/// a reading, it would shift the tokens of every name for good.
pub(crate) const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The id of the document that says how far the clock was set back.
pub(crate) const CLOCK_NOTE: &str = "clock";

/// How far the clock was set back, by the note. `None`: no clock can have been there.
pub(crate) fn noted_setback(note: &Document, now: i64) -> Option<i64> {
    let behind = note.get("behind").and_then(number).unwrap_or_default().max(0);
    now.checked_add(behind).is_some_and(|then| then <= LAST_DATE_MS).then_some(behind)
}

/// Milliseconds of a clock that is never set.
fn monotonic_ms() -> i64 {
    static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
    i64::try_from(STARTED.elapsed().as_millis()).unwrap_or(i64::MAX)
}

#[derive(Debug)]
pub(crate) struct ServerClock {
    /// The server's clock minus the monotonic one: the largest seen.
    ahead: AtomicI64,
    /// How far the server's clock was behind that at most.
    behind: AtomicI64,
    /// How far it was behind when that was last written down.
    noted: AtomicI64,
}

impl Default for ServerClock {
    fn default() -> Self {
        ServerClock { ahead: AtomicI64::new(i64::MIN), behind: AtomicI64::new(0), noted: AtomicI64::new(0) }
    }
}

impl ServerClock {
    /// The lowest token that may be granted.
    pub(crate) fn lowest_token(&self) -> i64 {
        self.ahead.load(Ordering::Relaxed).saturating_add(monotonic_ms()).max(0)
    }

    /// The server's clock now, if it was read before. Too late if the clock was set back since.
    pub(crate) fn estimate(&self) -> Option<i64> {
        let ahead = self.ahead.load(Ordering::Relaxed);
        (ahead != i64::MIN).then(|| ahead.saturating_add(monotonic_ms()))
    }

    /// Records a reading of the server's clock. True: it is behind, and that is not written down yet.
    pub(crate) fn observe(&self, now: Option<i64>) -> bool {
        let Some(now) = now else { return false };
        let seen = now.saturating_sub(monotonic_ms());
        let most = self.ahead.fetch_max(seen, Ordering::Relaxed);
        if most == i64::MIN || most.saturating_sub(seen) < SIGNIFICANT_MS {
            return false;
        }
        self.behind.fetch_max(most.saturating_sub(seen), Ordering::Relaxed);
        self.noted.load(Ordering::Relaxed).saturating_add(SIGNIFICANT_MS) < most.saturating_sub(seen)
    }

    /// Records a token that was granted when the server's clock read `now`. True: it is ahead of every reading, so the clock
    /// was set back before this process connected.
    pub(crate) fn observe_token(&self, token: i64, now: Option<i64>) -> bool {
        let lowest = self.lowest_token();
        let is_reading = token <= now.unwrap_or(lowest).saturating_add(DAY_MS);
        if !is_reading || token.saturating_sub(lowest) < SIGNIFICANT_MS {
            return false;
        }
        self.ahead.fetch_max(token.saturating_sub(monotonic_ms()), Ordering::Relaxed);
        true
    }

    /// Records the logical time of a replica set, in whole seconds. It is ahead of the clock only if that was set back.
    fn observe_logical(&self, time: Timestamp, now: i64) {
        let ms = i64::from(time.time).saturating_mul(1000);
        if ms - now > SIGNIFICANT_MS {
            self.ahead.fetch_max(ms.saturating_add(1000).saturating_sub(monotonic_ms()), Ordering::Relaxed);
        }
    }

    /// Starts with a reading of the server's clock and what other processes wrote down.
    pub(crate) async fn load(&self, commands: &Commands, now: i64, logical: Option<Timestamp>) -> Result<()> {
        self.observe(Some(now));
        if let Some(time) = logical {
            self.observe_logical(time, now);
        }
        let found = commands.read(Namespace::Queues, &[CLOCK_NOTE], None).await?;
        if let Some(Snapshot { document, .. }) = found.get(CLOCK_NOTE) {
            let Some(behind) = noted_setback(document, now) else {
                tracing::warn!(
                    "the document \"clock\" is not a note of the clock and is ignored; see `distlock doctor`"
                );
                return Ok(());
            };
            self.noted.fetch_max(behind, Ordering::Relaxed);
            let ahead = now.saturating_add(behind).saturating_sub(monotonic_ms());
            self.ahead.fetch_max(ahead, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes down how far the clock is behind where it was.
    pub(crate) async fn store(&self, commands: &Commands) -> Result<()> {
        let known = self.behind.load(Ordering::Relaxed);
        let behind = doc! { "$subtract": [self.lowest_token(), { "$toLong": "$$NOW" }] };
        let most = doc! { "$max": [{ "$ifNull": ["$behind", 0_i64] }, behind] };
        let update = DocumentUpdate {
            id: CLOCK_NOTE.to_owned(),
            filter: Document::new(),
            pipeline: vec![doc! { "$set": { "behind": most } }],
            upsert: true,
        };
        commands.find_and_modify(Namespace::Queues, &update, Image::After, Durability::Majority).await?;
        self.noted.fetch_max(known, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000;

    #[test]
    fn the_lowest_token_never_falls_and_a_clock_that_was_set_back_is_noticed() {
        let clock = ServerClock::default();
        assert_eq!(clock.lowest_token(), 0, "nothing is known yet");
        assert!(!clock.observe(Some(NOW)) && !clock.observe(Some(NOW - 500)));
        assert!(clock.observe(Some(NOW - 5_000)));
        clock.noted.store(5_000, Ordering::Relaxed);
        assert!(!clock.observe(Some(NOW - 5_000)), "it was written down");
        assert!(clock.observe(Some(NOW - 50_000)), "it was set back further");
        assert!(clock.lowest_token() >= NOW && clock.lowest_token() < NOW + 10_000);
        assert!(!clock.observe(None));
    }

    #[test]
    fn a_note_of_an_impossible_time_is_ignored() {
        assert_eq!(noted_setback(&doc! { "behind": 5_i64 }, NOW), Some(5));
        assert_eq!(noted_setback(&doc! { "behind": "five" }, NOW), Some(0));
        for behind in [i64::MAX, LAST_DATE_MS] {
            assert_eq!(noted_setback(&doc! { "behind": behind }, NOW), None);
        }
    }

    #[test]
    fn a_process_that_connects_after_a_setback_learns_it_from_tokens_and_logical_time() {
        let clock = ServerClock::default();
        clock.observe(Some(NOW));
        for unremarkable in [NOW + 10, 5, i64::MIN, i64::MAX, NOW + DAY_MS + 1] {
            assert!(!clock.observe_token(unremarkable, Some(NOW)), "{unremarkable}");
        }
        assert!(!clock.observe_token(NOW + 2 * DAY_MS, None), "a server that does not send its clock");
        assert!(
            clock.observe_token(NOW + 60_000, Some(NOW)) && !clock.observe_token(NOW + 60_001, Some(NOW))
        );
        assert!(clock.lowest_token() >= NOW + 60_000 && clock.lowest_token() < NOW + 70_000);
        clock.observe_logical(
            Timestamp { time: u32::try_from(NOW / 1000).unwrap() + 3_600, increment: 1 },
            NOW,
        );
        assert!(clock.lowest_token() >= NOW + 3_600_000 && clock.lowest_token() < NOW + 3_610_000);
    }
}
