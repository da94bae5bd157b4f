//! Inspection, forced release and diagnosis of a quorum: the nodes' answers, merged.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::QuorumInner;
use super::error::Failures;
use super::generation::callers_lock_id;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{LockId, Resource};
use crate::store::{Finding, Holder, LeaseStore, Level, Query, Record, Waiter};

/// How long a node may take to answer an operator: longer than for a lock.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks every node, each in a task of its own.
async fn ask_all<T, F>(inner: &Arc<QuorumInner>, call: impl Fn(Arc<dyn LeaseStore>) -> F) -> Vec<Result<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let limit = ADMIN_TIMEOUT.max(inner.options.node_timeout);
    join_all(inner.nodes.iter().map(|node| {
        let task = tokio::spawn(call(Arc::clone(&node.store)));
        async move {
            match tokio::time::timeout(limit, task).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(Error::new(ErrorKind::Internal, "the task of the call ended early")),
                Err(_) => {
                    let what = format!("no answer within {limit:?}");
                    Err(Error::new(ErrorKind::Unavailable, what).with_unknown_outcome())
                }
            }
        }
    }))
    .await
}

/// The answers of a majority, or an error that names the nodes that failed.
fn majority<T>(inner: &QuorumInner, answers: Vec<Result<T>>) -> Result<Vec<T>> {
    let mut failures = Failures::new(inner);
    let mut good = Vec::new();
    for (node, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(answer) => good.push(answer),
            Err(error) => failures.add(node, error),
        }
    }
    if good.len() >= inner.majority { Ok(good) } else { Err(failures.into_error(good.len())) }
}

/// The records that a majority of all nodes agrees on. Votes of an attempt in progress are below a majority and not shown.
pub(super) async fn inspect(inner: &Arc<QuorumInner>, query: &Query) -> Result<Vec<Record>> {
    let query = query.clone();
    let answers = ask_all(inner, |store| {
        let query = query.clone();
        async move { store.inspect(&query).await }
    });
    let answers = majority(inner, answers.await)?;
    let mut merged: BTreeMap<_, Vec<Record>> = BTreeMap::new();
    for record in answers.into_iter().flatten() {
        merged.entry((record.name.clone(), record.key.clone(), record.kind)).or_default().push(record);
    }
    let records = merged.into_values().filter_map(|records| merge(records, inner.majority));
    Ok(records.collect())
}

fn merge(records: Vec<Record>, needed: usize) -> Option<Record> {
    let first = records.first()?;
    let (kind, name, key) = (first.kind, first.name.clone(), first.key.clone());
    let capacity = records.iter().map(|record| record.capacity).max()?;
    let mut waiters: Vec<Waiter> = Vec::new();
    for waiter in records.iter().flat_map(|record| &record.waiters) {
        let lock_id = callers_lock_id(&waiter.lock_id);
        if !waiters.iter().any(|known| known.lock_id == lock_id) {
            waiters.push(Waiter { lock_id, weight: waiter.weight });
        }
    }
    let holders = merge_holders(records.into_iter().flat_map(|record| record.holders), needed);
    waiters.retain(|waiter| !holders.iter().any(|holder| holder.lock_id == waiter.lock_id));
    let empty = holders.is_empty() && waiters.is_empty();
    (!empty).then_some(Record { kind, name, key, capacity, holders, waiters })
}

/// The holders that at least `needed` nodes report. A holder's time left ends when fewer nodes report it.
fn merge_holders(holders: impl Iterator<Item = Holder>, needed: usize) -> Vec<Holder> {
    let mut votes: BTreeMap<LockId, Vec<Holder>> = BTreeMap::new();
    for holder in holders {
        votes.entry(callers_lock_id(&holder.lock_id)).or_default().push(holder);
    }
    let won = votes.into_iter().filter(|(_, votes)| votes.len() >= needed);
    won.map(|(lock_id, mut votes)| {
        votes.sort_by_key(|vote| std::cmp::Reverse(vote.expires_in));
        // A majority has the holder's token; a node that granted late may have a larger one of its own.
        let mut tokens: Vec<_> = votes.iter().filter_map(|vote| vote.token).collect();
        tokens.sort_unstable_by_key(|token| std::cmp::Reverse(*token));
        Holder {
            lock_id,
            token: tokens.get(needed - 1).or(tokens.first()).copied(),
            acquired_at: votes.iter().filter_map(|vote| vote.acquired_at).min(),
            expires_in: votes.get(needed - 1).and_then(|vote| vote.expires_in),
            weight: votes.iter().map(|vote| vote.weight).max().unwrap_or(1),
            also_held: Vec::new(),
        }
    })
    .collect()
}

/// Breaks the lock on every node. Returns the holders that may have had a majority, judged by the nodes that answered.
pub(super) async fn break_lock(inner: &Arc<QuorumInner>, resource: &Resource) -> Result<Vec<Holder>> {
    let answers = ask_all(inner, |store| {
        let resource = resource.clone();
        async move { store.break_lock(&resource).await }
    });
    let answers = majority(inner, answers.await)?;
    let unanswered = inner.nodes.len() - answers.len();
    let needed = inner.majority.saturating_sub(unanswered).max(1);
    Ok(merge_holders(answers.into_iter().flatten(), needed))
}

pub(super) async fn doctor(inner: &Arc<QuorumInner>) -> Result<Vec<Finding>> {
    let answers = ask_all(inner, |store| async move { store.doctor().await }).await;
    if answers.iter().all(Result::is_err) {
        return Err(majority(inner, answers).err().unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, "no node answered").advise("start the nodes")
        }));
    }
    let mut findings = node_findings(inner);
    for (node, answer) in inner.nodes.iter().zip(answers) {
        match answer {
            Ok(found) => findings.extend(
                found
                    .into_iter()
                    .map(|finding| Finding { what: format!("{}: {}", node.name, finding.what), ..finding }),
            ),
            Err(error) => findings.push(Finding::warning(
                format!("{}: {error:#}", node.name),
                "bring this node back: every missing node reduces the failures that the quorum tolerates",
            )),
        }
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level == Level::Warning));
    Ok(findings)
}

/// Findings about the number and the choice of the nodes.
fn node_findings(inner: &QuorumInner) -> Vec<Finding> {
    let count = inner.nodes.len();
    let spare = count - inner.majority;
    let mut findings = Vec::new();
    if count < 3 {
        findings.push(Finding::warning(
            format!("a quorum of {count} tolerates no failed node"),
            "use three or five nodes, on machines that do not fail together",
        ));
    } else if count.is_multiple_of(2) {
        findings.push(Finding::warning(
            format!("a quorum of {count} tolerates {spare} failed nodes, no more than one of {}", count - 1),
            "use an odd number of nodes",
        ));
    } else {
        findings.push(Finding::ok(format!("a quorum of {count}: it tolerates {spare} failed nodes")));
    }
    let mut names: Vec<String> = inner.nodes.iter().map(|node| node.store.describe()).collect();
    names.sort_unstable();
    if let Some(twin) = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| &pair[0]) {
        findings.push(Finding::warning(
            format!("more than one node is {twin:?}"),
            "give each node a server of its own: two votes of one server count as one",
        ));
    }
    if inner.nodes.iter().any(|node| !node.store.capabilities().durable) {
        findings.push(Finding::warning(
            "some nodes forget their grants when they restart",
            "let them persist every write, or keep a restarted node out for longer than the longest expiry",
        ));
    }
    findings
}
