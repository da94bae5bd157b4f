//! Batches in a world where any session may lock a row and keep it. Such a row fails its own item, soon, and no other.
//!
//! A batch waits for row locks for a second. If that is not enough, the rows that stay locked are found without waiting,
//! their items fail, and the others are sent again. For a while such a name is then asked for alone and without waiting, so
//! that it delays no other.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::store::Batch;
use distlock_core::store::support::batch::all_failed;
use distlock_core::{Error, RecordKind, Result};
use mysql_async::Row;

use super::LeaseState;
use super::verbs::Verb;
use crate::batch::{Item, Key, Rows};
use crate::error::{Cause, Failure};
use crate::identifier::Tables;
use crate::rows::required;

/// How long a name is asked for alone after its row was found locked.
const APART: Duration = Duration::from_secs(10);
/// How often, and how long apart, a name that is asked for alone tries to lock its row.
const TRIES_APART: u32 = 10;
const PAUSE_APART: Duration = Duration::from_millis(30);
/// How often a transaction that was in conflict with another is sent again.
const TRIES_AFTER_CONFLICT: u32 = 30;
/// How often a batch is sent again after locked rows were taken out.
const TRIES_AFTER_LOCKED: u32 = 3;
/// A larger statement is split: servers have a limit of 1 MB and more (`max_allowed_packet`).
pub(super) const LARGEST_STATEMENT: usize = 700_000;

#[derive(Debug)]
pub(super) struct LockedRows {
    apart: Mutex<HashMap<Key, Instant>>,
    find: [String; 2],
    no_wait: [String; 2],
}

impl LockedRows {
    pub(super) fn new(tables: &Tables) -> Self {
        let quoted = [tables.quoted(""), tables.quoted("_pool")];
        let find = tables.statement(include_str!("../sql/locked_rows.sql"));
        LockedRows {
            apart: Mutex::default(),
            find: [find.replace("{table}", &quoted[0]), find.replace("{table}", &quoted[1])],
            no_wait: quoted.map(|table| {
                format!(
                    "START TRANSACTION; SELECT COUNT(*) INTO @distlock_rows FROM {table} WHERE k = {{key}} FOR UPDATE NOWAIT"
                )
            }),
        }
    }

    fn apart(&self) -> MutexGuard<'_, HashMap<Key, Instant>> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_apart(&self, key: Key) {
        self.apart().insert(key, Instant::now());
    }

    /// Whether a name is asked for alone.
    fn is_apart(&self, key: &Key) -> bool {
        let mut apart = self.apart();
        if apart.is_empty() {
            return false;
        }
        apart.retain(|_, since| since.elapsed() < APART);
        apart.contains_key(key)
    }
}

fn index(record: RecordKind) -> usize {
    match record {
        RecordKind::Lock => 0,
        RecordKind::Pool => 1,
    }
}

/// The rows of a reply by the place of their item.
type Replies = HashMap<usize, Result<Option<Row>>>;

/// Runs a verb for items, and calls `answer` for each with its row, if there is one. Answers are in the order of `items`.
pub(super) async fn run<A>(
    state: &LeaseState,
    verb: &Verb,
    items: Vec<Item<'_>>,
    answer: impl Fn(&Item<'_>, Option<&Row>) -> Result<A>,
) -> Batch<A> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let (apart, together): (Vec<_>, Vec<_>) =
        items.iter().cloned().partition(|item| state.locked_rows.is_apart(&item.key));
    let mut replies = Replies::new();
    let parts = if together.is_empty() { Vec::new() } else { Rows::new(together).split(LARGEST_STATEMENT) };
    if parts.len() == 1 && apart.is_empty() {
        // One request: if it fails as a whole, so does the batch.
        for rows in parts {
            send(state, verb, rows, &mut replies).await?;
        }
    } else {
        let apart =
            futures_util::future::join_all(apart.into_iter().map(|item| send_apart(state, verb, item)));
        let together = async {
            let mut replies = Replies::new();
            for rows in parts {
                let places: Vec<usize> = rows.items.iter().map(|item| item.n).collect();
                if let Err(error) = send(state, verb, rows, &mut replies).await {
                    replies.extend(places.iter().copied().zip(all_failed(&error, places.len())));
                }
            }
            replies
        };
        let (apart, together) = futures_util::future::join(apart, together).await;
        replies = together;
        replies.extend(apart);
    }
    Ok(items
        .iter()
        .map(|item| match replies.remove(&item.n) {
            Some(Err(error)) => Err(error),
            Some(Ok(row)) => answer(item, row.as_ref()),
            None => answer(item, None),
        })
        .collect())
}

/// Sends a batch, and without the items whose rows stay locked if there are such.
async fn send(state: &LeaseState, verb: &Verb, mut rows: Rows<'_>, replies: &mut Replies) -> Result<()> {
    for _ in 0..TRIES_AFTER_LOCKED {
        let failure = match execute(state, &rows.fill(&verb.statements)).await {
            Ok(found) => return note(&found, replies),
            Err(failure) if failure.cause == Cause::Locked => failure,
            Err(failure) => return Err(failure.error),
        };
        let locked = if rows.items.len() == 1 {
            vec![rows.items[0].key]
        } else {
            find_locked(state, verb.record, &rows).await.map_err(|failure| failure.error)?
        };
        if locked.is_empty() {
            // The row is free again.
            continue;
        }
        let (out, rest): (Vec<_>, Vec<_>) =
            rows.items.into_iter().partition(|item| locked.contains(&item.key));
        for item in out {
            state.locked_rows.set_apart(item.key);
            replies.insert(item.n, Err(is_locked(&item, &failure)));
        }
        if rest.is_empty() {
            return Ok(());
        }
        rows = Rows::new(rest);
    }
    for item in &rows.items {
        let error = distlock_core::store::support::errors::unavailable(
            "rows of this request stay locked by other sessions",
        );
        replies.insert(item.n, Err(error.about(item.resource)));
    }
    Ok(())
}

/// Sends one item whose row was found locked: it does not wait for the lock, and gives up after a fraction of a second.
async fn send_apart<'a>(state: &LeaseState, verb: &Verb, item: Item<'a>) -> (usize, Result<Option<Row>>) {
    let lock = state.locked_rows.no_wait[index(verb.record)].replace("{key}", &item.key.literal());
    let rows = Rows::new(vec![item.clone()]);
    let statements = rows.fill(&verb.statements);
    let text = statements.replacen("START TRANSACTION", &lock, 1);
    for attempt in 0..TRIES_APART {
        match execute(state, &text).await {
            Ok(found) => {
                state.locked_rows.apart().remove(&item.key);
                let mut replies = Replies::new();
                let noted = note(&found, &mut replies);
                let reply = replies.remove(&item.n).unwrap_or(Ok(None));
                return (item.n, noted.and(reply));
            }
            Err(failure) if failure.cause == Cause::Locked && attempt + 1 < TRIES_APART => {
                tokio::time::sleep(PAUSE_APART.mul_f64(0.5 + fastrand::f64())).await;
            }
            Err(failure) if failure.cause == Cause::Locked => {
                return (item.n, Err(is_locked(&item, &failure)));
            }
            Err(failure) => return (item.n, Err(failure.error)),
        }
    }
    (item.n, Ok(None))
}

fn is_locked(item: &Item<'_>, failure: &Failure) -> Error {
    failure.error.clone().about(item.resource)
}

/// The keys of which a row stays locked by another session.
async fn find_locked(state: &LeaseState, record: RecordKind, rows: &Rows<'_>) -> Result<Vec<Key>, Failure> {
    let find = rows.fill(&state.locked_rows.find[index(record)]);
    let found = state.connections.run(&find).await?;
    let mut counts: HashMap<Key, i64> = HashMap::new();
    for row in &found {
        let read = || -> Result<(Vec<u8>, i64)> { Ok((required(row, "k")?, required(row, "found")?)) };
        let (key, count) = read().map_err(|error| Failure { error, cause: Cause::Other })?;
        if let Some(key) = Key::from_bytes(&key) {
            *counts.entry(key).or_default() += count;
        }
    }
    Ok(counts.into_iter().filter(|(_, count)| *count > 0).map(|(key, _)| key).collect())
}

/// Runs a transaction, again if it was in conflict with another.
pub(super) async fn execute(state: &LeaseState, text: &str) -> Result<Vec<Row>, Failure> {
    let mut tries = 0;
    loop {
        match state.connections.run(text).await {
            Err(failure) if failure.cause == Cause::Conflict && tries < TRIES_AFTER_CONFLICT => {
                tries += 1;
                let pause = Duration::from_millis(u64::from(tries.min(10))).mul_f64(fastrand::f64());
                tokio::time::sleep(pause).await;
            }
            outcome => return outcome,
        }
    }
}

fn note(found: &[Row], replies: &mut Replies) -> Result<()> {
    for row in found {
        replies.insert(required(row, "n")?, Ok(Some(row.clone())));
    }
    Ok(())
}
