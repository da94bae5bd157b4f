//! Forgetting what is not used: rows of semaphores that only remember a token, and what sessions left behind that ended. In
//! the background, at a bounded [pace](crate::pace), and by one process at a time.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use distlock_core::Result;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::home::Home;
use super::{Inner, pool};
use crate::failure;
use crate::names::Key;
use crate::pace::{self, AT_ONCE, Rest, Walk};
use crate::statement::{Statement, Tables};
use crate::values::{get, micros};

static SWEEP: [Type; 3] = [Type::TEXT, Type::INT8, Type::INT8];
static LEFT: [Type; 2] = [Type::TEXT, Type::INT8];

#[derive(Debug)]
pub(super) struct Statements {
    tidy: String,
    left: Statement,
    sweep: Statement,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        let sweep = include_str!("../sql/pool_sweep.sql").replace("{pool}", "{session_pool}");
        Statements {
            tidy: tables.fill(include_str!("../sql/advisory_tidy.sql")),
            left: Statement::new(11, include_str!("../sql/advisory_left.sql"), tables, &LEFT),
            sweep: Statement::new(12, &sweep, tables, &SWEEP),
        }
    }
}

/// The task ends with the store.
pub(super) fn start(store: &Arc<Inner>) {
    let store = Arc::downgrade(store);
    tokio::spawn(async move {
        let mut rest = Rest::new();
        tokio::time::sleep(Rest::first()).await;
        while let Some(walked) = walk(&store, pace::pause_after).await {
            tokio::time::sleep(rest.after(&walked)).await;
        }
    });
}

/// Walks through the tables once, and says how many semaphores were forgotten.
pub(super) async fn once(store: &Arc<Inner>) -> Result<u64> {
    store.home().await?;
    let walked = walk(&Arc::downgrade(store), |_| Duration::ZERO).await;
    walked.map_or(Ok(0), |walked| Ok(walked?.deleted))
}

/// `None`: the store is gone.
async fn walk(store: &Weak<Inner>, pause: fn(Duration) -> Duration) -> Option<Result<Walk>> {
    let mut walk = Walk::default();
    let mut after = String::new();
    loop {
        let begun = Instant::now();
        let step = {
            let store = store.upgrade()?;
            // No session is opened only for this.
            let Some(home) = store.current_home().filter(|home| home.seat.is_alive()) else {
                return Some(Ok(walk));
            };
            step(&store, &home, &mut walk, &after).await
        };
        match step {
            Ok(Some(last)) => after = last,
            Ok(None) => return Some(Ok(walk)),
            Err(error) => {
                tracing::debug!(%error, "cannot sweep the tables of advisory locks now");
                return Some(Err(error));
            }
        }
        tokio::time::sleep(pause(begun.elapsed())).await;
    }
}

async fn step(store: &Inner, home: &Home, walk: &mut Walk, after: &str) -> Result<Option<String>> {
    let told = |error: tokio_postgres::Error| failure::of_statement(&error);
    if after.is_empty() {
        home.seat.wire.client().batch_execute(&store.sweep.tidy).await.map_err(told)?;
    }
    // Permits and queue entries of sessions that ended, where nobody asked since: any question takes them away.
    for row in home.seat.wire.run(&store.sweep.left, &[&after, &AT_ONCE]).await.map_err(told)? {
        let key = Key { key: key_of(&row)?, name: None };
        match pool::forget(store, home, key).await {
            Err(error) if !failure::is_row_locked(&error) => return Err(error),
            _ => {}
        }
    }
    let retention = micros(store.config.retention);
    let parameters: [&(dyn ToSql + Sync); 3] = [&after, &AT_ONCE, &retention];
    walk.note(&home.seat.wire.run(&store.sweep.sweep, &parameters).await.map_err(told)?)
}

fn key_of(row: &Row) -> Result<String> {
    get(row, "key")
}
