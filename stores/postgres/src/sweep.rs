//! Deleting unused rows in the background, by one process at a time, without slowing down the locks. For both stores.
//!
//! A statement reads [`PAGE`] rows, and a sweep uses at most a fifth of the time of its connection: tens of thousands of rows a
//! second that stay, and about ten thousand that are deleted. A pass over the tables follows the last one after a minute; if
//! a large table had little to delete, after up to a quarter of an hour. So an unused row outlives its retention time by
//! that, and by the time of one pass.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use distlock_core::Result;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::statement::{Slot, Statement};
use crate::tables::{PoolTable, Tables};
use crate::values::column;

/// How many rows one statement reads.
pub(crate) const PAGE: i64 = 1000;
/// The pause between two passes.
const INTERVAL: Duration = Duration::from_secs(60);
const LONGEST_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Passes over fewer rows than this cost too little to save.
const SMALL_TABLE: u64 = 20_000;
/// A pass is worth its cost if one row in this many was deleted.
const WORTHWHILE: u64 = 20;

static SWEEP: [Type; 3] = [Type::TEXT, Type::INT8, Type::INT8];

/// Deletes unused rows of the lease table. Its parameters: the last key of the page before, [`PAGE`], the retention.
pub(crate) fn lock_statement(tables: &Tables) -> Statement {
    let unless_waiters = include_str!("sql/sweep_unless_waiters.sql");
    statement(Slot::LockSweep, "{table}", "expire_time", unless_waiters, tables)
}

/// Deletes unused rows of a pool table. `used_until` covers its waiters.
pub(crate) fn pool_statement(tables: &Tables, table: PoolTable) -> Statement {
    statement(Slot::PoolSweep, &table.template("{pool}"), "used_until", "", tables)
}

fn statement(slot: Slot, rows: &str, used_until: &str, unless_waiters: &str, tables: &Tables) -> Statement {
    let template = include_str!("sql/sweep.sql").replace("{rows}", rows).replace("{used_until}", used_until);
    Statement::new(slot, &template.replace("{unless_waiters}", unless_waiters), tables, &SWEEP)
}

/// A store whose tables are swept.
pub(crate) trait Sweep: Send + Sync + 'static {
    /// How many tables it has.
    const TABLES: usize;

    /// Sweeps the page after this key. `None`: there is no connection now, and none is opened for a sweep.
    fn sweep_page(&self, table: usize, after: &str) -> impl Future<Output = Result<Option<Vec<Row>>>> + Send;
}

/// What a pass has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    pub(crate) seen: u64,
    pub(crate) deleted: u64,
}

impl Pass {
    /// Counts the reply to a page. Returns the last key if there are more pages and no other process sweeps.
    fn count(&mut self, rows: &[Row]) -> Result<Option<String>> {
        let Some(row) = rows.first() else { return Ok(None) };
        let (seen, deleted): (i64, i64) = (column(row, "seen")?, column(row, "deleted")?);
        self.seen += seen.unsigned_abs();
        self.deleted += deleted.unsigned_abs();
        let last: Option<String> = column(row, "last")?;
        Ok(last.filter(|_| seen == PAGE && column(row, "ours").unwrap_or(false)))
    }
}

/// Starts the background task. It ends with the store.
pub(crate) fn start<S: Sweep>(store: &Arc<S>) {
    let store = Arc::downgrade(store);
    tokio::spawn(async move {
        let mut interval = Interval::new();
        tokio::time::sleep(Interval::before_first()).await;
        while let Some(pass) = pass(&store, pause_after).await {
            tokio::time::sleep(interval.after(&pass)).await;
        }
    });
}

/// Makes one pass without pauses, and returns how many rows were deleted.
pub(crate) async fn once<S: Sweep>(store: &Arc<S>) -> Result<u64> {
    // Only a store that is gone returns `None`, and this one is not.
    let pass = pass(&Arc::downgrade(store), |_| Duration::ZERO).await;
    pass.map_or(Ok(0), |pass| Ok(pass?.deleted))
}

/// One pass over all tables. `None`: the store is gone.
pub(crate) async fn pass<S: Sweep>(store: &Weak<S>, pause: fn(Duration) -> Duration) -> Option<Result<Pass>> {
    let mut pass = Pass::default();
    for table in 0..S::TABLES {
        let mut after = String::new();
        loop {
            let started = Instant::now();
            // Upgraded for each page: a long pass does not keep the store alive.
            let page = store.upgrade()?.sweep_page(table, &after).await;
            let last = page.and_then(|rows| rows.map_or(Ok(None), |rows| pass.count(&rows)));
            match last {
                Ok(Some(last)) => after = last,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "cannot sweep the lock tables now");
                    return Some(Err(error));
                }
            }
            tokio::time::sleep(pause(started.elapsed())).await;
        }
    }
    Some(Ok(pass))
}

/// The pause after a statement that took this long.
pub(crate) fn pause_after(took: Duration) -> Duration {
    (took * 4).clamp(Duration::from_millis(2), Duration::from_secs(1))
}

/// The pause between two passes, with jitter: processes that start together do not sweep together.
#[derive(Debug)]
struct Interval(Duration);

impl Interval {
    fn new() -> Self {
        Interval(INTERVAL)
    }

    /// Before the first pass. Some short-lived programs sweep at once: where all programs are short-lived, no other would.
    fn before_first() -> Duration {
        if fastrand::u8(..16) == 0 { Duration::ZERO } else { INTERVAL.mul_f64(0.2 + fastrand::f64()) }
    }

    /// After a pass, or one that failed.
    fn after(&mut self, pass: &Result<Pass>) -> Duration {
        let worthwhile = match pass {
            Ok(pass) => pass.seen < SMALL_TABLE || pass.deleted * WORTHWHILE >= pass.seen,
            Err(_) => true,
        };
        self.0 = if worthwhile { INTERVAL } else { (self.0 * 2).min(LONGEST_INTERVAL) };
        self.0.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_deleted_little_is_not_repeated_soon_and_none_is_late() {
        let mut interval = Interval::new();
        let mut after = |seen, deleted| {
            interval.after(&Ok(Pass { seen, deleted }));
            interval.0
        };
        assert_eq!(after(1_000, 0), INTERVAL);
        assert_eq!(after(1_000_000, 900_000), INTERVAL);
        assert_eq!(after(1_000_000, 10), 2 * INTERVAL);
        assert_eq!((0..20).map(|_| after(1_000_000, 10)).last(), Some(LONGEST_INTERVAL));
        assert_eq!(after(1_000_000, 60_000), INTERVAL);
    }
}
