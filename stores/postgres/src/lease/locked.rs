//! Rows that another session keeps locked: an administrator in a transaction, a program that was stopped in the middle of
//! one. A statement waits for such a row for a moment only, and fails as a whole then; here its items are told apart. Those
//! whose rows are free go through, and the others fail, each alone and with the reason.
//!
//! A row that was found locked is remembered: requests for it do not go into a batch again before it is free, so that they
//! hold up neither the batch nor the connection.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::store::Batch;
use distlock_core::{Error, RecordKind, Resource, Result};
use tokio_postgres::types::Type;

use super::Inner;
use crate::failure;
use crate::names::Key;
use crate::statement::{Patience, Statement, Tables};
use crate::values::get;

/// How long a row may be locked by one transaction before that is an error, beside the time for which the statement waited.
/// The engine sends the next request of a verb when this one is answered, so that others wait as well.
const ONE: Duration = Duration::from_millis(250);
/// The same for a row that is locked by one transaction after the other, on a server that many use.
const MANY: Duration = Duration::from_secs(1);
/// How often it is looked at meanwhile.
const PAUSE: Duration = Duration::from_millis(25);
/// How many rows are remembered at most.
const MOST: usize = 10_000;

static LOOK: [Type; 1] = [Type::TEXT_ARRAY];

#[derive(Debug)]
pub(super) struct Statements {
    locks: Statement,
    pools: Statement,
    /// By table and key: the transaction that has the row locked. `None` for a row that cannot be seen yet.
    marks: Mutex<HashMap<(RecordKind, String), Option<String>>>,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        let text = |rows| include_str!("../sql/row_locks.sql").replace("{rows}", rows);
        Statements {
            locks: Statement::new(12, &text("{table}"), tables, &LOOK),
            pools: Statement::new(13, &text("{pool}"), tables, &LOOK),
            marks: Mutex::default(),
        }
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<(RecordKind, String), Option<String>>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A verb on the rows of one table.
pub(super) trait Verb {
    type Item: Sync;
    type Answer: Send;
    const KIND: RecordKind;

    fn resource(item: &Self::Item) -> &Resource;

    /// Asks for all of them in one statement.
    fn ask<'a>(
        store: &'a Inner,
        items: &'a [&'a Self::Item],
        patience: Patience,
    ) -> impl Future<Output = Batch<Self::Answer>> + Send + 'a;
}

/// Asks for all of them in one statement; if rows are locked, for those that are not.
pub(super) async fn run<V: Verb>(store: &Inner, items: &[&V::Item]) -> Batch<V::Answer> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    if !store.locked.marks().is_empty() {
        return Box::pin(around::<V>(store, items)).await;
    }
    let answers = V::ask(store, items, Patience::Usual).await;
    let in_the_way = match &answers {
        Ok(answers) => answers.iter().any(|answer| answer.as_ref().is_err_and(failure::is_row_locked)),
        Err(error) => failure::is_row_locked(error),
    };
    match in_the_way {
        true => Box::pin(after::<V>(store, items, answers)).await,
        false => answers,
    }
}

/// Asks for those whose rows are not known to be locked as ever, and for the others apart.
async fn around<V: Verb>(store: &Inner, items: &[&V::Item]) -> Batch<V::Answer> {
    let keys = keys::<V>(store, items);
    let usual: Vec<usize> = {
        let marks = store.locked.marks();
        (0..items.len()).filter(|at| !marks.contains_key(&(V::KIND, keys[*at].clone()))).collect()
    };
    let mut answers: Vec<Option<Result<V::Answer>>> = items.iter().map(|_| None).collect();
    if !usual.is_empty() {
        let some: Vec<&V::Item> = usual.iter().map(|at| items[*at]).collect();
        settle(&mut answers, &usual, V::ask(store, &some, Patience::Usual).await);
    }
    apart::<V>(store, items, &keys, answers).await
}

/// A request failed because of a row that is locked: asks for its items apart.
async fn after<V: Verb>(store: &Inner, items: &[&V::Item], failed: Batch<V::Answer>) -> Batch<V::Answer> {
    let mut answers: Vec<Option<Result<V::Answer>>> = items.iter().map(|_| None).collect();
    let all: Vec<usize> = (0..answers.len()).collect();
    settle(&mut answers, &all, failed);
    apart::<V>(store, items, &keys::<V>(store, items), answers).await
}

fn keys<V: Verb>(store: &Inner, items: &[&V::Item]) -> Vec<String> {
    items.iter().map(|item| Key::of(V::resource(item), store.server.utf8).key).collect()
}

/// Notes answers. What failed because of a row that is locked stays open.
fn settle<A>(answers: &mut [Option<Result<A>>], at: &[usize], answered: Batch<A>) {
    match answered {
        Ok(answered) => {
            for (at, answer) in at.iter().zip(answered) {
                if !answer.as_ref().is_err_and(failure::is_row_locked) {
                    answers[*at] = Some(answer);
                }
            }
        }
        Err(error) if failure::is_row_locked(&error) => {}
        Err(error) => {
            for at in at {
                answers[*at] = Some(Err(error.clone()));
            }
        }
    }
}

/// What was found out about a row.
#[derive(Clone, Debug)]
enum Row {
    Free,
    Locked { blocker: String, pid: Option<i32> },
}

async fn apart<V: Verb>(
    store: &Inner,
    items: &[&V::Item],
    keys: &[String],
    mut answers: Vec<Option<Result<V::Answer>>>,
) -> Batch<V::Answer> {
    let mut watch = Watch { begun: Instant::now(), seen: HashMap::new() };
    loop {
        let open: Vec<usize> = (0..answers.len()).filter(|at| answers[*at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let rows = match look(store, V::KIND, open.iter().map(|at| keys[*at].as_str()).collect()).await {
            Ok(rows) => rows,
            // The whole table is locked, or the server is gone.
            Err(error) => {
                for at in open {
                    answers[at] = Some(Err(error.clone()));
                }
                break;
            }
        };
        let (mut free, mut unseen) = (Vec::new(), Vec::new());
        for at in open {
            match rows.get(&keys[at]) {
                Some(Row::Free) => free.push(at),
                Some(Row::Locked { blocker, pid }) => {
                    if watch.is_over(store, (V::KIND, &keys[at]), Some(blocker)) {
                        answers[at] = Some(Err(failure::row_locked(*pid)));
                    }
                }
                None => unseen.push(at),
            }
        }
        ask_for::<V>(store, items, keys, &mut answers, &free, Patience::Usual).await;
        ask_for::<V>(store, items, keys, &mut answers, &unseen, Patience::Brief).await;
        unseen.retain(|at| answers[*at].is_none());
        for at in unseen {
            ask_for::<V>(store, items, keys, &mut answers, &[at], Patience::Brief).await;
            if answers[at].is_none() && watch.is_over(store, (V::KIND, &keys[at]), None) {
                answers[at] = Some(Err(failure::row_locked(None)));
            }
        }
        if watch.begun.elapsed() > MANY {
            // Free whenever it was looked at, and locked whenever it was asked for.
            for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
                *answer = Some(Err(failure::row_locked(None)));
            }
        } else if answers.iter().any(Option::is_none) {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(super::unanswered)).collect())
}

/// Asks for items whose rows are free, as it seems. Those that were answered are not remembered any more.
async fn ask_for<V: Verb>(
    store: &Inner,
    items: &[&V::Item],
    keys: &[String],
    answers: &mut [Option<Result<V::Answer>>],
    at: &[usize],
    patience: Patience,
) {
    if at.is_empty() {
        return;
    }
    let some: Vec<&V::Item> = at.iter().map(|at| items[*at]).collect();
    settle(answers, at, V::ask(store, &some, patience).await);
    let mut marks = store.locked.marks();
    for at in at.iter().filter(|at| answers[**at].is_some()) {
        marks.remove(&(V::KIND, keys[*at].clone()));
    }
}

/// For how long which transactions are in the way of a request.
struct Watch {
    begun: Instant,
    /// By key: the transaction, and since when it is that one.
    seen: HashMap<String, (Option<String>, Instant)>,
}

impl Watch {
    /// Whether a row that is locked by this transaction is an error now. It is remembered then.
    fn is_over(
        &mut self,
        store: &Inner,
        (kind, key): (RecordKind, &String),
        blocker: Option<&String>,
    ) -> bool {
        let now = Instant::now();
        let (same, since) = self.seen.entry(key.clone()).or_insert_with(|| (blocker.cloned(), now));
        if same.as_ref() != blocker {
            (*same, *since) = (blocker.cloned(), now);
        }
        let mut marks = store.locked.marks();
        let mark = (kind, key.clone());
        let known = marks.get(&mark).is_some_and(|known| known.as_ref() == blocker);
        let over = known || now.duration_since(*since) >= ONE || now.duration_since(self.begun) >= MANY;
        if over && !known {
            if marks.len() >= MOST {
                marks.clear();
            }
            marks.insert(mark, blocker.cloned());
        }
        over
    }
}

async fn look(store: &Inner, kind: RecordKind, keys: Vec<&str>) -> Result<HashMap<String, Row>> {
    let statement = match kind {
        RecordKind::Lock => &store.locked.locks,
        RecordKind::Pool => &store.locked.pools,
    };
    let rows = store.link.run(statement, &[&keys]).await?;
    let read = |row: &tokio_postgres::Row| {
        let found = match get(row, "free")? {
            true => Row::Free,
            false => Row::Locked { blocker: get(row, "blocker")?, pid: get(row, "pid")? },
        };
        Ok((get(row, "key")?, found))
    };
    rows.iter().map(read).collect()
}

/// The reason why a lone request failed, with the session that is in the way.
pub(super) async fn explain(store: &Inner, resource: &Resource, error: Error) -> Error {
    if !failure::is_row_locked(&error) {
        return error;
    }
    let (kind, key) = (resource.kind().record(), Key::of(resource, store.server.utf8).key);
    match look(store, kind, vec![&key]).await {
        Ok(rows) => match rows.get(&key) {
            Some(Row::Locked { pid, .. }) => failure::row_locked(*pid),
            _ => error,
        },
        Err(_) => error,
    }
}
