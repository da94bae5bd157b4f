//! Acquiring: new claims in a transaction, waiters that ask again by a plain read first.

use std::collections::{HashMap, HashSet};

use distlock_core::store::support::batch;
use distlock_core::store::support::errors;
use distlock_core::store::{Attempt, Batch, Claim};
use distlock_core::{RecordKind, Result};

use super::locked_rows::LARGEST_STATEMENT;
use super::{LeaseState, locked_rows, verbs};
use crate::batch::{Item, Rows};
use crate::rows::{optional, required};

/// Acquires claims about one record.
pub(super) async fn acquire(state: &LeaseState, record: RecordKind, claims: Vec<&Claim>) -> Batch<Attempt> {
    let (polls, others): (Vec<usize>, Vec<usize>) =
        (0..claims.len()).partition(|at| is_poll(record, claims[*at]));
    let of = |places: &[usize]| places.iter().map(|at| claims[*at]).collect::<Vec<&Claim>>();
    if polls.is_empty() {
        return acquire_now(state, record, claims).await;
    }
    if others.is_empty() {
        return poll(state, record, claims).await;
    }
    let (polled, acquired) =
        futures_util::future::join(poll(state, record, of(&polls)), acquire_now(state, record, of(&others)))
            .await;
    let each = |places: &[usize], answers: Batch<Attempt>| match answers {
        Ok(answers) => answers,
        Err(error) => batch::all_failed(&error, places.len()),
    };
    let mut answers: Vec<(usize, Result<Attempt>)> = Vec::with_capacity(claims.len());
    answers.extend(polls.iter().copied().zip(each(&polls, polled)));
    answers.extend(others.iter().copied().zip(each(&others, acquired)));
    answers.sort_unstable_by_key(|(at, _)| *at);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// Whether a waiter asks again that has an entry in the wait queue: a mutex does without one at the first attempt.
fn is_poll(record: RecordKind, claim: &Claim) -> bool {
    let written_by = match record {
        RecordKind::Lock => 2,
        RecordKind::Pool => 1,
    };
    claim.waiting.as_ref().is_some_and(|waiting| waiting.attempt > written_by)
}

/// Answers waiters by a plain read, which locks nothing. The claims of those that it does not answer are sent.
async fn poll(state: &LeaseState, record: RecordKind, claims: Vec<&Claim>) -> Batch<Attempt> {
    let items: Vec<Item<'_>> = claims.iter().enumerate().map(|(n, claim)| Item::of_claim(n, claim)).collect();
    let mut answers: HashMap<usize, Result<Attempt>> = HashMap::new();
    let mut old = Vec::new();
    for rows in Rows::new(items.clone()).split(LARGEST_STATEMENT) {
        let found = state.connections.run(&rows.fill(state.verbs.poll(record))).await;
        for row in &found.map_err(|failure| failure.error)? {
            let n: usize = required(row, "n")?;
            if let Some(item) = items.get(n) {
                answers.insert(n, verbs::attempt_of(item, claims[n].capacity, row));
                if optional::<i64>(row, "is_old")? == Some(1) {
                    old.push(item.clone());
                }
            }
        }
    }
    for rows in Rows::new(old).split(LARGEST_STATEMENT) {
        if locked_rows::execute(state, &rows.fill(state.verbs.keep_entry())).await.is_err() {
            // A row stays locked, perhaps: the claim itself finds out whose.
            for item in &rows.items {
                answers.remove(&item.n);
            }
        }
    }
    let left: Vec<usize> = (0..claims.len()).filter(|at| !answers.contains_key(at)).collect();
    if !left.is_empty() {
        let sent = acquire_now(state, record, left.iter().map(|at| claims[*at]).collect()).await;
        let sent = match sent {
            Err(error) if left.len() < claims.len() => batch::all_failed(&error, left.len()),
            sent => sent?,
        };
        answers.extend(left.into_iter().zip(sent));
    }
    Ok((0..claims.len())
        .map(|at| answers.remove(&at).unwrap_or_else(|| Err(errors::too_few_answers())))
        .collect())
}

/// Sends claims. A statement decides on one claim for a mutex, and on one claim of each lock id for a
/// pool; others are decided after it.
async fn acquire_now(state: &LeaseState, record: RecordKind, claims: Vec<&Claim>) -> Batch<Attempt> {
    let mut answers: Vec<Option<Result<Attempt>>> = claims.iter().map(|_| None).collect();
    let mut left = Vec::new();
    for (n, claim) in claims.iter().enumerate() {
        let item = Item::of_claim(n, claim);
        match item.check() {
            Ok(()) => left.push(item),
            Err(error) => answers[n] = Some(Err(error)),
        }
    }
    while !left.is_empty() {
        let mut seen = HashSet::new();
        let (now, later): (Vec<_>, Vec<_>) = left.into_iter().partition(|item| {
            let id = (record == RecordKind::Pool).then(|| claims[item.n].lock_id.as_str());
            seen.insert((item.key, id))
        });
        left = later;
        let sent: Vec<&Claim> = now.iter().map(|item| claims[item.n]).collect();
        let places: Vec<usize> = now.iter().map(|item| item.n).collect();
        let verb = state.verbs.acquire(record, &sent);
        let answered = locked_rows::run(state, verb, now, |item, found| {
            verbs::attempt(item, claims[item.n].capacity, found)
        })
        .await;
        let answered = match answered {
            Err(error) if places.len() < claims.len() => batch::all_failed(&error, places.len()),
            answered => answered?,
        };
        for (n, answer) in places.into_iter().zip(answered) {
            answers[n] = Some(answer);
        }
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(errors::too_few_answers()))).collect())
}
