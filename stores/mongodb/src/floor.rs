//! The server's clock as we know it. It is the term that keeps tokens rising after the record of a name is gone; if it
//! is set back, or the next primary's is behind, tokens must not fall with it.
//!
//! Each process remembers how far the server's clock was ahead of its own steady one, at most, and gives the time
//! that follows from it to the server as the lowest token of a new grant. While the server's clock runs as it should,
//! that is a moment in the past and does nothing.
//!
//! Processes that start later learn it too. A replica set counts a logical time that follows the clock and never goes
//! back, and tells it in every reply. A standalone server has none: there, by how much the clock was set back is written
//! down in the collection of queues, by whoever notices it, before the next mutex is granted.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use distlock_core::Result;
use mongodb::bson::{Document, Timestamp, doc};

use crate::failure::number;
use crate::pipelines::LAST_DATE_MS;
use crate::wire::{Concern, Found, Place, Step, Version, Wire};

/// Clocks of the members of a set differ by a little, and are corrected by a little all the time.
const NOTEWORTHY_MS: i64 = 1000;

/// A token tells how far the clock had been only if it is no further ahead of it than this. Anything else is another
/// program's way of counting: taken for a clock, it would shift the tokens of every name for good.
pub(crate) const DAY_MS: i64 = 24 * 60 * 60 * 1000;

pub(crate) const ID: &str = "clock";

/// By how much the clock was set back, as the document says: `None` if the clock cannot have been there.
pub(crate) fn noted(document: &Document, now: i64) -> Option<i64> {
    let behind = document.get("behind").and_then(number).unwrap_or_default().max(0);
    now.checked_add(behind).is_some_and(|then| then <= LAST_DATE_MS).then_some(behind)
}

/// Milliseconds of a clock that nobody sets.
fn steady() -> i64 {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    i64::try_from(BEGUN.elapsed().as_millis()).unwrap_or(i64::MAX)
}

#[derive(Debug)]
pub(crate) struct Floor {
    /// The server's clock less the steady one: the most we have seen.
    ahead: AtomicI64,
    /// By how much it was behind that, at most.
    behind: AtomicI64,
    /// By how much it was behind when that was last written down.
    noted: AtomicI64,
}

impl Default for Floor {
    fn default() -> Self {
        Floor { ahead: AtomicI64::new(i64::MIN), behind: AtomicI64::new(0), noted: AtomicI64::new(0) }
    }
}

impl Floor {
    /// The lowest token that may be granted.
    pub(crate) fn get(&self) -> i64 {
        self.ahead.load(Ordering::Relaxed).saturating_add(steady()).max(0)
    }

    /// The server's clock showed this, a moment ago. True: it is behind, and that is not written down yet.
    pub(crate) fn saw(&self, now: Option<i64>) -> bool {
        let Some(now) = now else { return false };
        let seen = now.saturating_sub(steady());
        let most = self.ahead.fetch_max(seen, Ordering::Relaxed);
        if most == i64::MIN || most.saturating_sub(seen) < NOTEWORTHY_MS {
            return false;
        }
        self.behind.fetch_max(most.saturating_sub(seen), Ordering::Relaxed);
        self.noted.load(Ordering::Relaxed).saturating_add(NOTEWORTHY_MS) < most.saturating_sub(seen)
    }

    /// A token that was granted when the server's clock showed `now`. True: it is ahead of what we know of the clock, which
    /// was set back before we came.
    pub(crate) fn saw_token(&self, token: i64, now: Option<i64>) -> bool {
        let known = self.get();
        let is_clock = token <= now.unwrap_or(known).saturating_add(DAY_MS);
        if !is_clock || token.saturating_sub(known) < NOTEWORTHY_MS {
            return false;
        }
        self.ahead.fetch_max(token.saturating_sub(steady()), Ordering::Relaxed);
        true
    }

    /// The logical time of a replica set, in whole seconds. It is ahead of the clock only if that was set back.
    fn saw_logical(&self, time: Timestamp, now: i64) {
        let ms = i64::from(time.time).saturating_mul(1000);
        if ms - now > NOTEWORTHY_MS {
            self.ahead.fetch_max(ms.saturating_add(1000).saturating_sub(steady()), Ordering::Relaxed);
        }
    }

    /// Begins with the server's clock and what others know of it.
    pub(crate) async fn load(&self, wire: &Wire, now: i64, logical: Option<Timestamp>) -> Result<()> {
        self.saw(Some(now));
        if let Some(time) = logical {
            self.saw_logical(time, now);
        }
        let found = wire.read(Place::Queues, &[ID], None).await?;
        if let Some(Found { document, .. }) = found.get(ID) {
            let Some(behind) = noted(document, now) else {
                tracing::warn!("the document \"clock\" is not ours, and not believed; see `distlock doctor`");
                return Ok(());
            };
            self.noted.fetch_max(behind, Ordering::Relaxed);
            self.ahead.fetch_max(now.saturating_add(behind).saturating_sub(steady()), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes down by how much the clock is behind what it was.
    pub(crate) async fn store(&self, wire: &Wire) -> Result<()> {
        let known = self.behind.load(Ordering::Relaxed);
        let behind = doc! { "$subtract": [self.get(), { "$toLong": "$$NOW" }] };
        let most: Document = doc! { "$max": [{ "$ifNull": ["$behind", 0_i64] }, behind] };
        let step = Step {
            id: ID.to_owned(),
            when: Document::new(),
            pipeline: vec![doc! { "$set": { "behind": most } }],
            upsert: true,
        };
        wire.step(Place::Queues, &step, Version::After, Concern::Majority).await?;
        self.noted.fetch_max(known, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000;

    #[test]
    fn the_floor_never_falls_and_a_clock_that_was_set_back_is_noticed() {
        let floor = Floor::default();
        assert_eq!(floor.get(), 0, "nothing is known yet");
        assert!(!floor.saw(Some(NOW)) && !floor.saw(Some(NOW - 500)));
        assert!(floor.saw(Some(NOW - 5_000)));
        floor.noted.store(5_000, Ordering::Relaxed);
        assert!(!floor.saw(Some(NOW - 5_000)), "it was written down");
        assert!(floor.saw(Some(NOW - 50_000)), "it was set back further");
        assert!(floor.get() >= NOW && floor.get() < NOW + 10_000);
        assert!(!floor.saw(None));
    }

    #[test]
    fn a_note_of_a_time_that_no_clock_shows_is_not_believed() {
        assert_eq!(noted(&doc! { "behind": 5_i64 }, NOW), Some(5));
        assert_eq!(noted(&doc! { "behind": "five" }, NOW), Some(0));
        for behind in [i64::MAX, LAST_DATE_MS] {
            assert_eq!(noted(&doc! { "behind": behind }, NOW), None);
        }
    }

    #[test]
    fn who_comes_after_the_clock_was_set_back_learns_it_from_tokens_and_logical_time() {
        let floor = Floor::default();
        floor.saw(Some(NOW));
        for no_news in [NOW + 10, 5, i64::MIN, i64::MAX, NOW + DAY_MS + 1] {
            assert!(!floor.saw_token(no_news, Some(NOW)), "{no_news}");
        }
        assert!(!floor.saw_token(NOW + 2 * DAY_MS, None), "a server that does not tell its time");
        assert!(floor.saw_token(NOW + 60_000, Some(NOW)) && !floor.saw_token(NOW + 60_001, Some(NOW)));
        assert!(floor.get() >= NOW + 60_000 && floor.get() < NOW + 70_000);
        floor.saw_logical(Timestamp { time: u32::try_from(NOW / 1000).unwrap() + 3_600, increment: 1 }, NOW);
        assert!(floor.get() >= NOW + 3_600_000 && floor.get() < NOW + 3_610_000);
    }
}
