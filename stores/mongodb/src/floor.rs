//! The server's clock as far as we have seen it. It is the term that keeps tokens rising after the record of a name
//! is gone; if it is set back, or the next primary's is behind, tokens must not fall with it.
//!
//! Each process remembers the latest time it has seen and gives it to the server as the lowest token of a new grant.
//! That does nothing while the clock runs forward. Once it was set back, the time is also written down for processes
//! that start later.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use distlock_core::Result;
use mongodb::bson::{Document, doc};

use crate::failure::number;
use crate::wire::{Concern, Found, Place, Step, Version, Wire};

/// Clocks of the members of a set differ by a little, and are corrected by a little all the time.
const NOTEWORTHY_MS: i64 = 1000;

const ID: &str = "clock";

#[derive(Debug, Default)]
pub(crate) struct Floor {
    latest: AtomicI64,
    noted: AtomicBool,
}

impl Floor {
    /// The lowest token that may be granted.
    pub(crate) fn get(&self) -> i64 {
        self.latest.load(Ordering::Relaxed)
    }

    /// The server's clock showed this. True if it was set back and nobody wrote that down yet.
    pub(crate) fn saw(&self, now: Option<i64>) -> bool {
        let Some(now) = now else { return false };
        let latest = self.latest.fetch_max(now, Ordering::Relaxed);
        now + NOTEWORTHY_MS < latest && !self.noted.swap(true, Ordering::Relaxed)
    }

    /// Reads what others have seen.
    pub(crate) async fn load(&self, wire: &Wire) -> Result<()> {
        let found = wire.read(Place::Queues, &[ID], None).await?;
        if let Some(Found { document, .. }) = found.get(ID) {
            self.latest
                .fetch_max(document.get("token").and_then(number).unwrap_or_default(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes down what we have seen.
    pub(crate) async fn store(&self, wire: &Wire) -> Result<()> {
        let higher: Document = doc! { "$max": [{ "$ifNull": ["$token", 0_i64] }, self.get()] };
        let step = Step {
            id: ID.to_owned(),
            when: Document::new(),
            pipeline: vec![doc! { "$set": { "token": higher } }],
            upsert: true,
        };
        wire.step(Place::Queues, &step, Version::After, Concern::Majority).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_never_falls_and_a_clock_that_was_set_back_is_noted_once() {
        let floor = Floor::default();
        assert!(!floor.saw(Some(10_000)) && !floor.saw(Some(9_500)));
        assert!(floor.saw(Some(1_000)));
        assert!(!floor.saw(Some(1_000)));
        assert_eq!(floor.get(), 10_000);
    }
}
