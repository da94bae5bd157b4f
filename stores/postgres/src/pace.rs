//! How fast tables are swept: what fell due is deleted soon, by one process at a time, without slowing down the locks.
//!
//! A statement looks at [`AT_ONCE`] rows, and a sweep takes at most a fifth of the time of its connection: tens of thousands
//! of rows a second that are kept, and about ten thousand that are deleted. A walk over the table follows the last one after
//! a minute; where a large table had little to delete, after up to a quarter of an hour. So a row that is not used again
//! outlives its retention time by that, and by the walk itself.

use std::time::Duration;

use distlock_core::Result;
use tokio_postgres::Row;

use crate::values::get;

/// How many rows one statement looks at.
pub(crate) const AT_ONCE: i64 = 1000;
/// How long to rest when all was looked at.
const REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(15 * 60);
/// Walks over fewer rows than this cost nothing worth saving.
const SMALL: u64 = 20_000;
/// A walk is worth its cost if one row of so many was to be deleted.
const WORTH: u64 = 20;

/// What a walk has seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    pub(crate) seen: u64,
    pub(crate) deleted: u64,
}

impl Walk {
    /// Notes the answer of a statement that swept a page. The key that was looked at last, if there are more; none if
    /// another process sweeps.
    pub(crate) fn note(&mut self, rows: &[Row]) -> Result<Option<String>> {
        let Some(row) = rows.first() else { return Ok(None) };
        let (seen, deleted): (i64, i64) = (get(row, "seen")?, get(row, "deleted")?);
        self.seen += seen.unsigned_abs();
        self.deleted += deleted.unsigned_abs();
        let last: Option<String> = get(row, "last")?;
        Ok(last.filter(|_| seen == AT_ONCE && get(row, "ours").unwrap_or(false)))
    }
}

/// How long to pause after a statement that took so long.
pub(crate) fn pause_after(took: Duration) -> Duration {
    (took * 4).clamp(Duration::from_millis(2), Duration::from_secs(1))
}

/// How long to rest between two walks, times a random factor: processes that start together do not sweep together.
#[derive(Debug)]
pub(crate) struct Rest(Duration);

impl Rest {
    pub(crate) fn new() -> Self {
        Rest(REST)
    }

    /// Before the first walk. A program that lives for a moment may sweep too, or nobody would where there are only such
    /// programs.
    pub(crate) fn first() -> Duration {
        if fastrand::u8(..16) == 0 { Duration::ZERO } else { REST.mul_f64(0.2 + fastrand::f64()) }
    }

    /// After a walk, or a try that failed.
    pub(crate) fn after(&mut self, walk: &Result<Walk>) -> Duration {
        let worth = match walk {
            Ok(walk) => walk.seen < SMALL || walk.deleted * WORTH >= walk.seen,
            Err(_) => true,
        };
        self.0 = if worth { REST } else { (self.0 * 2).min(LONGEST_REST) };
        self.0.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_was_worth_little_is_not_repeated_soon_and_none_is_late() {
        let mut rest = Rest::new();
        let mut after = |seen, deleted| {
            rest.after(&Ok(Walk { seen, deleted }));
            rest.0
        };
        assert_eq!(after(1_000, 0), REST);
        assert_eq!(after(1_000_000, 900_000), REST);
        assert_eq!(after(1_000_000, 10), 2 * REST);
        assert_eq!((0..20).map(|_| after(1_000_000, 10)).last(), Some(LONGEST_REST));
        assert_eq!(after(1_000_000, 60_000), REST);
    }
}
