//! Forgetting what nobody used for long: expired rows and those that only remember a token. In the background, a
//! bounded number at a time, and by one process at a time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use distlock_core::Result;
use tokio_postgres::types::Type;

use super::Inner;
use crate::statement::{Statement, Tables};
use crate::values::{get, micros};

/// How many rows one statement looks at.
const AT_ONCE: i64 = 1000;
/// How long to wait between two statements: while there is something to do, and when all was looked at.
const PAUSE: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(60);

static SWEEP: [Type; 3] = [Type::TEXT, Type::INT8, Type::INT8];

#[derive(Debug)]
pub(super) struct Statements([Statement; 2]);

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        Statements([
            Statement::new(6, include_str!("../sql/lock_sweep.sql"), tables, &SWEEP),
            Statement::new(7, include_str!("../sql/pool_sweep.sql"), tables, &SWEEP),
        ])
    }
}

/// Begins after a random part of a minute, so that a fleet that starts together does not sweep together. The task ends
/// with the store.
pub(super) fn start(store: &Arc<Inner>) {
    let store = Arc::downgrade(store);
    // A program that lives for a moment may sweep too, or nobody would where there are only such programs.
    let first = if fastrand::u8(..16) == 0 { Duration::ZERO } else { REST.mul_f64(0.2 + fastrand::f64()) };
    tokio::spawn(async move {
        tokio::time::sleep(first).await;
        while walk(&store, PAUSE).await.is_some() {
            tokio::time::sleep(REST.mul_f64(0.5 + fastrand::f64())).await;
        }
    });
}

/// Walks through both tables once, and says how many rows were forgotten.
pub(super) async fn once(store: &Arc<Inner>) -> Result<u64> {
    // Only a store that is gone gives nothing, and this one is not.
    walk(&Arc::downgrade(store), Duration::ZERO).await.unwrap_or(Ok(0))
}

/// `None`: the store is gone.
async fn walk(store: &Weak<Inner>, pause: Duration) -> Option<Result<u64>> {
    let mut forgotten = 0;
    for table in 0..2 {
        let mut after = String::new();
        loop {
            let step = {
                let store = store.upgrade()?;
                step(&store, &store.sweep.0[table], &after).await
            };
            match step {
                Ok(step) => {
                    forgotten += step.deleted;
                    let Some(last) = step.more_after else { break };
                    after = last;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot sweep the lock tables now");
                    return Some(Err(error));
                }
            }
            tokio::time::sleep(pause).await;
        }
    }
    Some(Ok(forgotten))
}

struct Step {
    deleted: u64,
    /// The key that was looked at last, if there are more.
    more_after: Option<String>,
}

async fn step(store: &Inner, statement: &Statement, after: &str) -> Result<Step> {
    let retention = micros(store.link.config().retention);
    let rows = store.link.run(statement, &[&after, &AT_ONCE, &retention]).await?;
    let Some(row) = rows.first() else { return Ok(Step { deleted: 0, more_after: None }) };
    let (seen, deleted): (i64, i64) = (get(row, "seen")?, get(row, "deleted")?);
    let last: Option<String> = get(row, "last")?;
    Ok(Step { deleted: deleted.unsigned_abs(), more_after: last.filter(|_| seen == AT_ONCE) })
}
