//! Deletes rows that were not used for the retention time: in the background, at a bounded rate, one process at a time.
//!
//! Rows are read in the order of their keys, without locks, and only those to be deleted are locked, without waiting. A
//! secondary index on the time of last use would make this cheaper and every acquisition dearer.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use distlock_core::Result;
use distlock_core::store::support::ended_session::at_least;
use mysql_async::Row;

use crate::batch::{Key, literal};
use crate::connections::{Connection, Connections, REQUEST_TIMEOUT};
use crate::error::Failure;
use crate::identifier::Tables;
use crate::rows::{required, time_left};

/// The pause between two sweeps, with jitter: a row is deleted this long after its retention at the latest.
const PAUSE: Duration = Duration::from_secs(600);
/// After each step the sweep rests for this many times as long as the step took.
const REST: u32 = 4;
/// A store whose tables are swept.
pub(crate) trait Swept: Send + Sync + 'static {
    fn connections(&self) -> &Connections;
    fn tables(&self) -> &Tables;
    fn targets(&self) -> Vec<Target>;

    /// Rows whose holder ended without a release, if the store has such.
    fn orphans(&self) -> Option<Orphans> {
        None
    }
}

/// Rows of free locks that make their next client wait. After as long a wait they need not.
#[derive(Clone, Debug)]
pub(crate) struct Orphans {
    /// Finds them, with the columns `k`, `token` and `pending` (microseconds).
    pub(crate) find: String,
    /// Settles the one with the key `{k}` if it still has the token `{token}` and is free: then no client held it since.
    pub(crate) settle: String,
}

/// One of the tables: its ending, and the condition for rows `t` that may be deleted.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) ending: &'static str,
    pub(crate) spent: String,
}

/// Starts the background task. It ends with the store.
pub(crate) fn start<S: Swept>(store: &Arc<S>) {
    let store = Arc::downgrade(store);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await;
            match sweep(&store, REST).await {
                None => return,
                Some(Err(error)) => tracing::debug!(%error, "cannot sweep the lock tables now"),
                Some(Ok(rows)) => tracing::debug!(rows, "swept the lock tables"),
            }
        }
    });
}

/// Sweeps once, without pauses, and returns the number of deleted rows.
pub(crate) async fn once<S: Swept>(store: &Arc<S>) -> Result<u64> {
    sweep(&Arc::downgrade(store), 0).await.unwrap_or(Ok(0))
}

/// `None`: the store is gone.
async fn sweep<S: Swept>(store: &Weak<S>, rest: u32) -> Option<Result<u64>> {
    let (mut sweeper, targets, orphans) = {
        let store = store.upgrade()?;
        match store.connections().open().await {
            Ok(connection) => {
                (Sweeper { connection, tables: store.tables().clone() }, store.targets(), store.orphans())
            }
            Err(error) => return Some(Err(error)),
        }
    };
    match sweeper.begin().await {
        Ok(true) => {}
        Ok(false) => return Some(Ok(0)),
        Err(failure) => return Some(Err(failure.error)),
    }
    if let Some(orphans) = orphans
        && let Err(failure) = sweeper.settle(&orphans).await
    {
        return Some(Err(failure.error));
    }
    let mut deleted = 0;
    for target in &targets {
        let mut after = Some(Vec::new());
        while let Some(key) = after {
            if store.strong_count() == 0 {
                return None;
            }
            let begun = Instant::now();
            match sweeper.step(target, &key).await {
                Ok((rows, next)) => {
                    deleted += rows;
                    after = next;
                }
                Err(failure) => return Some(Err(failure.error)),
            }
            tokio::time::sleep(begun.elapsed() * rest).await;
        }
    }
    // The lock of the sweep ends with the session.
    sweeper.connection.discard();
    Some(Ok(deleted))
}

struct Sweeper {
    connection: Connection,
    tables: Tables,
}

impl Sweeper {
    async fn query(&mut self, text: &str) -> Result<Vec<Row>, Failure> {
        self.connection.query(text, REQUEST_TIMEOUT).await
    }

    /// Whether no other process sweeps.
    async fn begin(&mut self) -> Result<bool, Failure> {
        let name = Key::hash(distlock_core::Kind::Mutex, &self.tables.quoted("")).short_hex();
        let rows = self.query(&format!("SELECT GET_LOCK('distlock.sweep.{name}', 0) AS got")).await?;
        Ok(rows.first().and_then(|row| required::<i64>(row, "got").ok()) == Some(1))
    }

    async fn settle(&mut self, orphans: &Orphans) -> Result<(), Failure> {
        let bad = |error| Failure { error, cause: crate::error::Cause::Other };
        let mut found: Vec<(Vec<u8>, u64)> = Vec::new();
        let mut longest = Duration::ZERO;
        for row in &self.query(&orphans.find).await? {
            let pending = time_left(required(row, "pending").map_err(bad)?);
            longest = longest.max(pending);
            found.push((required(row, "k").map_err(bad)?, required(row, "token").map_err(bad)?));
        }
        // Their sessions had ended before this.
        tokio::time::sleep(at_least(longest)).await;
        for (key, token) in found {
            let settle = orphans.settle.replace("{k}", &literal(&key)).replace("{token}", &token.to_string());
            self.query(&settle).await?;
        }
        Ok(())
    }

    /// Looks at the rows after a key. Returns how many were deleted, and the last key if there may be more.
    async fn step(&mut self, target: &Target, after: &[u8]) -> Result<(u64, Option<Vec<u8>>), Failure> {
        let fill = |text: &str, tables: &Tables| {
            tables
                .statement(text)
                .replace("{spent}", &target.spent)
                .replace("{spent, quoted}", &target.spent.replace('\'', "''"))
                .replace("{table}", &tables.quoted(target.ending))
        };
        let find = format!("SET @distlock_now = {{now}}; {}", include_str!("sql/sweep_find.sql"));
        let rows = self.query(&fill(&find, &self.tables).replace("{after}", &literal(after))).await?;
        let bad = |error| Failure { error, cause: crate::error::Cause::Other };
        let mut spent: Vec<Vec<u8>> = Vec::new();
        let mut last = None;
        for row in &rows {
            let key: Vec<u8> = required(row, "k").map_err(bad)?;
            if required::<i64>(row, "spent").map_err(bad)? == 1 && spent.last() != Some(&key) {
                spent.push(key.clone());
            }
            last = Some(key);
        }
        let mut deleted = 0;
        if !spent.is_empty() {
            let keys = spent.iter().map(|key| literal(key)).collect::<Vec<_>>().join(", ");
            let delete = include_str!("sql/sweep_delete.sql");
            let rows = self.query(&fill(delete, &self.tables).replace("{keys}", &keys)).await?;
            if let Some(row) = rows.first() {
                deleted = required(row, "deleted").map_err(bad)?;
            }
        }
        Ok((deleted, last.filter(|_| rows.len() == 1000)))
    }
}
