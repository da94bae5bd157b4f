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

/// Begins after a random part of a minute, so that a fleet that starts together does not sweep together. The task ends
/// with the store.
pub(super) fn start(store: &Arc<Inner>, tables: &Tables, retention: Duration) {
    let store = Arc::downgrade(store);
    let sweeps = [
        Statement::new(6, include_str!("../sql/lock_sweep.sql"), tables, &SWEEP),
        Statement::new(7, include_str!("../sql/pool_sweep.sql"), tables, &SWEEP),
    ];
    // A program that lives for a moment may sweep too, or nobody would where there are only such programs.
    let first = if fastrand::u8(..16) == 0 { Duration::ZERO } else { REST.mul_f64(0.2 + fastrand::f64()) };
    tokio::spawn(async move {
        tokio::time::sleep(first).await;
        loop {
            for statement in &sweeps {
                if sweep_table(&store, statement, retention).await.is_none() {
                    return;
                }
            }
            tokio::time::sleep(REST.mul_f64(0.5 + fastrand::f64())).await;
        }
    });
}

/// Walks through a table once. `None`: the store is gone.
async fn sweep_table(store: &Weak<Inner>, statement: &Statement, retention: Duration) -> Option<()> {
    let mut after = String::new();
    loop {
        let step = {
            let store = store.upgrade()?;
            sweep(&store, statement, &after, retention).await
        };
        match step {
            Ok(Some(last)) => after = last,
            Ok(None) => return Some(()),
            Err(error) => {
                tracing::debug!(%error, "cannot sweep the lock tables now");
                return Some(());
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// One step: the key that was looked at last, if there are more.
async fn sweep(
    store: &Inner,
    statement: &Statement,
    after: &str,
    retention: Duration,
) -> Result<Option<String>> {
    let rows = store.link.run(statement, &[&after, &AT_ONCE, &micros(retention)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (last, seen): (Option<String>, i64) = (get(row, "last")?, get(row, "seen")?);
    Ok(last.filter(|_| seen == AT_ONCE))
}
