//! Batches in a world where any session may lock a row and keep it. Such a row fails its own item, soon, and no other.
//!
//! A batch waits for row locks for a second. A row that stays locked exceeds that, and so do rows that many clients lock one
//! after the other while commits are slow. So nothing fails yet: the rows that are locked at this moment are asked for one by
//! one, each in the queue of its own row, and the others are sent again together. An item fails if its row stays locked then,
//! too. For a while such a name is looked at without waiting, so that it delays no other.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::store::Batch;
use distlock_core::store::support::batch::all_failed;
use distlock_core::{Error, RecordKind, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mysql_async::Row;

use super::LeaseState;
use super::counted::counted;
use super::verbs::{Found, Verb};
use crate::batch::{Item, Key, Rows};
use crate::error::{Cause, Failure};
use crate::identifier::Tables;
use crate::rows::required;

/// A request that is older does not wait for a row once more. One wait takes a second, on MySQL up to two; the default time
/// limit of a request is five.
const PATIENCE: Duration = Duration::from_millis(2500);
/// How many items are sent alone at the same time, each on a connection.
const ALONE_AT_ONCE: usize = 4;
/// After so many rows that stayed locked, the other locked rows of a request are not waited for.
const ENOUGH_LOCKED: usize = 4;
/// How long a name is looked at without waiting after its row stayed locked.
const APART: Duration = Duration::from_secs(10);
/// How often, and how long apart, the rows of such names are looked at.
const LOOKS_APART: u32 = 10;
const PAUSE_APART: Duration = Duration::from_millis(30);
/// How often a transaction that was in conflict with another is sent again.
const TRIES_AFTER_CONFLICT: u32 = 30;
/// A larger statement is split: servers have a limit of 1 MB and more (`max_allowed_packet`).
pub(super) const LARGEST_STATEMENT: usize = 700_000;

/// Names whose rows stayed locked a moment ago.
#[derive(Debug)]
pub(super) struct LockedRows {
    apart: Mutex<HashMap<Key, Instant>>,
    find: [String; 2],
}

impl LockedRows {
    pub(super) fn new(tables: &Tables) -> Self {
        let find = tables.statement(include_str!("../sql/locked_rows.sql"));
        let find = ["", "_pool"].map(|ending| find.replace("{table}", &tables.quoted(ending)));
        LockedRows { apart: Mutex::default(), find }
    }

    fn apart(&self) -> MutexGuard<'_, HashMap<Key, Instant>> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The items whose rows stayed locked a moment ago, and the others.
    fn part<'a>(&self, items: Vec<Item<'a>>) -> (Vec<Item<'a>>, Vec<Item<'a>>) {
        let mut apart = self.apart();
        if apart.is_empty() {
            return (Vec::new(), items);
        }
        apart.retain(|_, since| since.elapsed() < APART);
        items.into_iter().partition(|item| apart.contains_key(&item.key))
    }
}

fn index(record: RecordKind) -> usize {
    match record {
        RecordKind::Lock => 0,
        RecordKind::Pool => 1,
    }
}

/// What was answered, by the place of the item in its request.
struct Replies(Vec<Option<Result<Found>>>);

impl Replies {
    /// Room for these items, and for no place that a reply makes up.
    fn of(items: &[Item<'_>]) -> Self {
        let places = items.iter().map(|item| item.n + 1).max().unwrap_or_default();
        Replies(std::iter::repeat_with(|| None).take(places).collect())
    }

    fn insert(&mut self, n: usize, answer: Result<Found>) {
        if let Some(place) = self.0.get_mut(n) {
            *place = Some(answer);
        }
    }

    fn take(&mut self, n: usize) -> Option<Result<Found>> {
        self.0.get_mut(n)?.take()
    }

    fn fail(&mut self, places: &[usize], error: &Error) {
        for (n, failed) in places.iter().zip(all_failed(error, places.len())) {
            self.insert(*n, failed);
        }
    }

    /// Takes the answers of a part that has none of ours.
    fn merge(&mut self, other: Replies) {
        for (n, answer) in other.0.into_iter().enumerate() {
            if let Some(answer) = answer {
                self.insert(n, answer);
            }
        }
    }
}

/// The answer to one request.
type Answer = Result<Vec<Row>, Failure>;

/// Runs a verb for items, and calls `answer` for each with what was found, if there is anything. Answers are in the order of
/// `items`.
pub(super) async fn run<A>(
    state: &LeaseState,
    verb: &Verb,
    items: Vec<Item<'_>>,
    answer: impl Fn(&Item<'_>, Option<&Found>) -> Result<A>,
) -> Batch<A> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let (apart, together) = state.locked_rows.part(items.clone());
    let mut replies = Replies::of(&items);
    let mut parts = Rows::new(together).split(LARGEST_STATEMENT);
    if parts.len() == 1 && apart.is_empty() {
        // One request: if it fails as a whole, so does the batch.
        if let Some(rows) = parts.pop() {
            send(state, verb, rows, &mut replies).await?;
        }
    } else {
        let mut replies_apart = Replies::of(&apart);
        futures_util::future::join(
            send_apart(state, verb, apart, &mut replies_apart),
            send_parts(state, verb, parts, &mut replies),
        )
        .await;
        replies.merge(replies_apart);
    }
    Ok(items
        .iter()
        .map(|item| match replies.take(item.n) {
            Some(Err(error)) => Err(error),
            Some(Ok(found)) => answer(item, Some(&found)),
            None => answer(item, None),
        })
        .collect())
}

/// Sends batches one after the other. The error of one of them is that of its items.
async fn send_parts(state: &LeaseState, verb: &Verb, parts: Vec<Rows<'_>>, replies: &mut Replies) {
    for rows in parts {
        let places: Vec<usize> = rows.items.iter().map(|item| item.n).collect();
        if let Err(error) = send(state, verb, rows, replies).await {
            replies.fail(&places, &error);
        }
    }
}

/// Sends a batch. An item whose row stays locked fails alone.
async fn send(state: &LeaseState, verb: &Verb, mut rows: Rows<'_>, replies: &mut Replies) -> Result<()> {
    let begun = Instant::now();
    if rows.items.len() == 1
        && let Some(item) = rows.items.pop()
    {
        return match send_alone(state, verb, item, begun).await {
            (_, Err(failure)) if failure.cause != Cause::Locked => Err(failure.error),
            (item, answer) => note_alone(state, verb, &item, answer, replies),
        };
    }
    let mut alone = Vec::new();
    for is_second in [false, true] {
        match execute(state, &rows.fill(&verb.statements)).await {
            Ok(found) => {
                note(verb, &rows.items, found, replies)?;
                rows.items.clear();
                break;
            }
            Err(failure) if failure.cause == Cause::Locked => {}
            Err(failure) => return Err(failure.error),
        }
        if is_second {
            break;
        }
        // Not found is a row that is free again, and one that a transaction has inserted and not committed.
        let locked = find_locked(state, verb.record, &rows).await.map_err(|failure| failure.error)?;
        let rest;
        (alone, rest) = rows.items.into_iter().partition(|item| locked.contains(&item.key));
        rows = Rows::new(rest);
        if rows.items.is_empty() {
            break;
        }
    }
    alone.append(&mut rows.items);
    if verb.is_repeated {
        // Soon: the others of the batch are renewed, and their answers wait for these.
        for item in &alone {
            note_alone(state, verb, item, Err(Failure::row_stays_locked()), replies)?;
        }
        return Ok(());
    }
    send_each_alone(state, verb, alone, begun, replies).await
}

/// Sends items one by one, a few at the same time.
async fn send_each_alone(
    state: &LeaseState,
    verb: &Verb,
    mut items: Vec<Item<'_>>,
    begun: Instant,
    replies: &mut Replies,
) -> Result<()> {
    while !items.is_empty() {
        let mut waiting = items.into_iter();
        let mut in_flight = FuturesUnordered::new();
        let mut stayed_locked = 0;
        loop {
            while in_flight.len() < ALONE_AT_ONCE
                && stayed_locked < ENOUGH_LOCKED
                && let Some(item) = waiting.next()
            {
                in_flight.push(send_alone(state, verb, item, begun));
            }
            let Some((item, answer)) = in_flight.next().await else { break };
            stayed_locked += usize::from(is_locked(&answer));
            note_alone(state, verb, &item, answer, replies)?;
        }
        let left: Vec<_> = waiting.collect();
        if left.is_empty() {
            return Ok(());
        }
        // One session may have locked all of them.
        let (locked, free) = part_locked(state, verb, left).await?;
        for item in &locked {
            note_alone(state, verb, item, Err(Failure::row_stays_locked()), replies)?;
        }
        items = free;
    }
    Ok(())
}

/// Sends items whose rows stayed locked a moment ago. Those that are still locked fail after a fraction of a second.
async fn send_apart(state: &LeaseState, verb: &Verb, mut items: Vec<Item<'_>>, replies: &mut Replies) {
    for look in 0..LOOKS_APART {
        if items.is_empty() {
            return;
        }
        if look > 0 {
            tokio::time::sleep(PAUSE_APART.mul_f64(0.5 + fastrand::f64())).await;
        }
        let places: Vec<usize> = items.iter().map(|item| item.n).collect();
        let (locked, free) = match part_locked(state, verb, items).await {
            Ok(parts) => parts,
            Err(error) => {
                replies.fail(&places, &error);
                return;
            }
        };
        for item in &free {
            state.locked_rows.apart().remove(&item.key);
        }
        send_parts(state, verb, Rows::new(free).split(LARGEST_STATEMENT), replies).await;
        items = locked;
    }
    for item in &items {
        replies.insert(item.n, Err(Failure::row_stays_locked().error.about(item.resource)));
    }
}

/// Sends one item, which waits in the queue of its row: once, and again while the request is young. A verb that the engine
/// repeats waits once.
async fn send_alone<'a>(
    state: &LeaseState,
    verb: &Verb,
    item: Item<'a>,
    begun: Instant,
) -> (Item<'a>, Answer) {
    let text = Rows::new(vec![item.clone()]).fill(&verb.statements);
    let answer = match verb.is_repeated {
        true => execute(state, &text).await,
        false => execute_patiently(state, &text, begun).await,
    };
    (item, answer)
}

fn is_locked(answer: &Answer) -> bool {
    matches!(answer, Err(failure) if failure.cause == Cause::Locked)
}

/// The items whose rows are locked by another session at this moment, and the others.
async fn part_locked<'a>(
    state: &LeaseState,
    verb: &Verb,
    items: Vec<Item<'a>>,
) -> Result<(Vec<Item<'a>>, Vec<Item<'a>>)> {
    let mut locked = Vec::new();
    let mut parts = Rows::new(items).split(LARGEST_STATEMENT);
    for rows in &parts {
        locked.extend(find_locked(state, verb.record, rows).await.map_err(|failure| failure.error)?);
    }
    let items = parts.iter_mut().flat_map(|rows| std::mem::take(&mut rows.items));
    Ok(items.partition(|item| locked.contains(&item.key)))
}

/// The keys of rows that another session has locked at this moment.
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

/// The same, again if it waited for a row in vain and its request is young.
pub(super) async fn execute_patiently(
    state: &LeaseState,
    text: &str,
    begun: Instant,
) -> Result<Vec<Row>, Failure> {
    loop {
        match execute(state, text).await {
            Err(failure) if failure.cause == Cause::Locked && begun.elapsed() < PATIENCE => {}
            outcome => return outcome,
        }
    }
}

/// Notes the answer to an item that was sent alone. If its row stayed locked, it is apart from now on.
fn note_alone(
    state: &LeaseState,
    verb: &Verb,
    item: &Item<'_>,
    answer: Answer,
    replies: &mut Replies,
) -> Result<()> {
    match answer {
        Ok(found) => note(verb, std::slice::from_ref(item), found, replies),
        Err(failure) => {
            if failure.cause == Cause::Locked {
                state.locked_rows.apart().insert(item.key, Instant::now());
            }
            replies.insert(item.n, Err(failure.error.about(item.resource)));
            Ok(())
        }
    }
}

/// Notes the answer to the items of one statement.
fn note(verb: &Verb, sent: &[Item<'_>], rows: Vec<Row>, replies: &mut Replies) -> Result<()> {
    if verb.is_counted {
        for n in counted(sent, &rows)? {
            replies.insert(n, Ok(Found::Counted));
        }
        return Ok(());
    }
    for row in rows {
        replies.insert(required(&row, "n")?, Ok(Found::Row(row)));
    }
    Ok(())
}
