//! Rows that another session has locked: by an administrator in a transaction, or by a program that was stopped inside of one.
//! A statement waits for such a row only briefly and then fails as a whole. Here its items are separated: items whose rows are
//! free are applied, and the others fail, each alone and with the reason.
//!
//! A row that was found locked is remembered: requests for it stay out of batches until it is free, so that they delay neither
//! the batch nor the connection.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::store::Batch;
use distlock_core::store::support::batch::BatchItem;
use distlock_core::store::support::errors;
use distlock_core::{Error, RecordKind, Resource, Result};
use tokio_postgres::types::Type;

use super::store::StoreState;
use crate::error;
use crate::keys::Key;
use crate::statement::{Request, RowLockTimeout, Slot, Statement};
use crate::tables::Tables;
use crate::values::column;

/// How long one transaction may lock a row before that is an error, beyond the time for which the statement waited. The engine
/// sends the next request of a verb after this one is answered, so other requests wait as well.
const ONE_BLOCKER: Duration = Duration::from_millis(250);
/// The same for a row that one transaction after another locks, on a busy server.
const MANY_BLOCKERS: Duration = Duration::from_secs(1);
/// The pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);
/// How many rows are remembered at most.
const MAX_REMEMBERED: usize = 10_000;

static ROW_LOCKS: [Type; 1] = [Type::TEXT_ARRAY];

/// The transaction that has locked a row; `None` for a row that is not visible yet.
type Blocker = Option<String>;

/// The rows of a store that were found locked.
#[derive(Debug)]
pub(super) struct LockedRows {
    lock_statement: Statement,
    pool_statement: Statement,
    remembered: Mutex<HashMap<(RecordKind, String), Blocker>>,
}

impl LockedRows {
    pub(super) fn new(tables: &Tables) -> Self {
        let statement = |slot: Slot, rows: &str| {
            let template = include_str!("../sql/row_locks.sql").replace("{rows}", rows);
            Statement::new(slot, &template, tables, &ROW_LOCKS)
        };
        LockedRows {
            lock_statement: statement(Slot::LockRowLocks, "{table}"),
            pool_statement: statement(Slot::PoolRowLocks, "{pool}"),
            remembered: Mutex::default(),
        }
    }

    /// Whether no row is known to be locked.
    pub(super) fn is_empty(&self) -> bool {
        self.remembered().is_empty()
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<(RecordKind, String), Blocker>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A verb of a lease store.
pub(super) trait Verb {
    type Item: BatchItem;
    type Answer: Send;

    /// Sends all items in one statement on one table.
    fn send(
        state: &StoreState,
        record: RecordKind,
        items: &[&Self::Item],
        timeout: RowLockTimeout,
    ) -> impl Future<Output = Batch<Self::Answer>> + Send;
}

/// Whether a request failed because of a locked row, as a whole or for some of its items.
pub(super) fn is_blocked<A>(answers: &Batch<A>) -> bool {
    match answers {
        Ok(answers) => answers.iter().any(|answer| answer.as_ref().is_err_and(error::is_row_locked)),
        Err(error) => error::is_row_locked(error),
    }
}

/// Sends the blocked items of a request again, each when its row is free.
pub(super) async fn send_blocked<V: Verb>(
    state: &StoreState,
    record: RecordKind,
    items: Vec<&V::Item>,
    answers: Batch<V::Answer>,
) -> Batch<V::Answer> {
    let mut split = Split::<V>::new(state, record, items);
    let all: Vec<usize> = (0..split.items.len()).collect();
    split.settle(&all, answers);
    split.finish().await
}

/// Sends the items whose rows are not known to be locked in one statement, and the others each when its row is free.
pub(super) async fn send_around<V: Verb>(
    state: &StoreState,
    record: RecordKind,
    items: Vec<&V::Item>,
) -> Batch<V::Answer> {
    let mut split = Split::<V>::new(state, record, items);
    let free = {
        let remembered = state.locked_rows.remembered();
        let is_free = |at: &usize| !remembered.contains_key(&(record, split.keys[*at].clone()));
        (0..split.items.len()).filter(is_free).collect::<Vec<usize>>()
    };
    split.send(&free, RowLockTimeout::Default).await;
    split.finish().await
}

/// Whether another session has locked a row.
#[derive(Clone, Debug)]
enum RowState {
    Free,
    Locked { blocker: String, pid: Option<i32> },
}

/// A batch whose items are answered separately.
struct Split<'a, V: Verb> {
    state: &'a StoreState,
    record: RecordKind,
    items: Vec<&'a V::Item>,
    keys: Vec<String>,
    answers: Vec<Option<Result<V::Answer>>>,
    started: Instant,
    /// By key: the transaction that has locked the row, and since when.
    blockers: HashMap<String, (Blocker, Instant)>,
}

impl<'a, V: Verb> Split<'a, V> {
    fn new(state: &'a StoreState, record: RecordKind, items: Vec<&'a V::Item>) -> Self {
        let key = |item: &&V::Item| Key::new(item.resource(), state.server.utf8).key;
        Split {
            state,
            record,
            keys: items.iter().map(key).collect(),
            answers: items.iter().map(|_| None).collect(),
            items,
            started: Instant::now(),
            blockers: HashMap::new(),
        }
    }

    /// Stores the answers to the items at these positions. An item that failed because of a locked row stays open.
    fn settle(&mut self, positions: &[usize], answers: Batch<V::Answer>) {
        match answers {
            Ok(answers) => {
                for (at, answer) in positions.iter().zip(answers) {
                    if !answer.as_ref().is_err_and(error::is_row_locked) {
                        self.answers[*at] = Some(answer);
                    }
                }
            }
            Err(error) if error::is_row_locked(&error) => {}
            Err(error) => self.fail(positions, &error),
        }
    }

    fn fail(&mut self, positions: &[usize], error: &Error) {
        for at in positions {
            self.answers[*at] = Some(Err(error.clone()));
        }
    }

    fn open(&self) -> Vec<usize> {
        (0..self.answers.len()).filter(|at| self.answers[*at].is_none()).collect()
    }

    /// Sends the items at these positions, and forgets the locks of those that were answered.
    async fn send(&mut self, positions: &[usize], timeout: RowLockTimeout) {
        if positions.is_empty() {
            return;
        }
        let items: Vec<&V::Item> = positions.iter().map(|at| self.items[*at]).collect();
        let answers = V::send(self.state, self.record, &items, timeout).await;
        self.settle(positions, answers);
        let mut remembered = self.state.locked_rows.remembered();
        for at in positions.iter().filter(|at| self.answers[**at].is_some()) {
            remembered.remove(&(self.record, self.keys[*at].clone()));
        }
    }

    /// Checks the rows of the open items until each item is answered or its row was locked for too long.
    async fn finish(mut self) -> Batch<V::Answer> {
        loop {
            let open = self.open();
            if open.is_empty() {
                break;
            }
            let keys = open.iter().map(|at| self.keys[*at].as_str()).collect();
            let rows = match row_states(self.state, self.record, keys).await {
                Ok(rows) => rows,
                // The whole table is locked, or the server is unavailable.
                Err(error) => {
                    self.fail(&open, &error);
                    break;
                }
            };
            let (mut free, mut invisible) = (Vec::new(), Vec::new());
            for at in open {
                match rows.get(&self.keys[at]) {
                    Some(RowState::Free) => free.push(at),
                    Some(RowState::Locked { blocker, pid }) => {
                        if self.is_locked_too_long(at, Some(blocker)) {
                            self.answers[at] = Some(Err(error::row_locked(*pid)));
                        }
                    }
                    None => invisible.push(at),
                }
            }
            self.send(&free, RowLockTimeout::Default).await;
            self.send(&invisible, RowLockTimeout::Short).await;
            invisible.retain(|at| self.answers[*at].is_none());
            for at in invisible {
                self.send(&[at], RowLockTimeout::Short).await;
                if self.answers[at].is_none() && self.is_locked_too_long(at, None) {
                    self.answers[at] = Some(Err(error::row_locked(None)));
                }
            }
            let open = self.open();
            if self.started.elapsed() > MANY_BLOCKERS {
                // Free at every check, and locked at every request.
                self.fail(&open, &error::row_locked(None));
            } else if !open.is_empty() {
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        }
        let unanswered = || Err(errors::too_few_answers());
        Ok(self.answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect())
    }

    /// Whether the row is an error now. It is remembered then.
    fn is_locked_too_long(&mut self, at: usize, blocker: Option<&String>) -> bool {
        let (now, key) = (Instant::now(), &self.keys[at]);
        let (last, since) = self.blockers.entry(key.clone()).or_insert_with(|| (blocker.cloned(), now));
        if last.as_ref() != blocker {
            (*last, *since) = (blocker.cloned(), now);
        }
        let mut remembered = self.state.locked_rows.remembered();
        let row = (self.record, key.clone());
        let known = remembered.get(&row).is_some_and(|known| known.as_ref() == blocker);
        let too_long = known
            || now.duration_since(*since) >= ONE_BLOCKER
            || now.duration_since(self.started) >= MANY_BLOCKERS;
        if too_long && !known {
            if remembered.len() >= MAX_REMEMBERED {
                remembered.clear();
            }
            remembered.insert(row, blocker.cloned());
        }
        too_long
    }
}

async fn row_states(
    state: &StoreState,
    record: RecordKind,
    keys: Vec<&str>,
) -> Result<HashMap<String, RowState>> {
    let statement = match record {
        RecordKind::Lock => &state.locked_rows.lock_statement,
        RecordKind::Pool => &state.locked_rows.pool_statement,
    };
    let rows = state.shared.query(&Request::new(statement, &[&keys])).await?;
    let read = |row: &tokio_postgres::Row| {
        let found = match column(row, "free")? {
            true => RowState::Free,
            false => RowState::Locked { blocker: column(row, "blocker")?, pid: column(row, "pid")? },
        };
        Ok((column(row, "key")?, found))
    };
    rows.iter().map(read).collect()
}

/// Adds the blocking session to the error of a lone request.
pub(super) async fn explain(state: &StoreState, resource: &Resource, error: Error) -> Error {
    if !error::is_row_locked(&error) {
        return error;
    }
    let (record, key) = (resource.kind().record(), Key::new(resource, state.server.utf8).key);
    match row_states(state, record, vec![&key]).await {
        Ok(rows) => match rows.get(&key) {
            Some(RowState::Locked { pid, .. }) => error::row_locked(*pid),
            _ => error,
        },
        Err(_) => error,
    }
}
