//! Renewing mutexes: one command, however many there are.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::support::batch::{all_failed, chunks_by_key};
use distlock_core::store::support::errors;
use distlock_core::store::{Batch, Lease, Renewal};
use futures_util::future::join_all;
use mongodb::bson::Timestamp;

use super::{is_held_by_any, read, update_held};
use crate::batch;
use crate::commands::{MULTI_UPDATE_SIZE, MultiUpdate, Namespace};
use crate::documents::{stored_token, whole_ms};
use crate::pipelines;
use crate::state::StoreState;

/// One answer per lease.
pub(crate) async fn renew(state: &Arc<StoreState>, leases: Vec<&Lease>) -> Batch<Renewal> {
    match leases.as_slice() {
        [lease] => Ok(vec![renew_one(state, lease).await]),
        leases => renew_many(state, leases).await,
    }
}

async fn renew_one(state: &Arc<StoreState>, lease: &Lease) -> Result<Renewal> {
    let pipeline = pipelines::lock_renew(whole_ms(lease.expiry), stored_token(lease.token));
    let renewed = update_held(state, lease.resource.name(), &lease.lock_id, pipeline).await?;
    Ok(if renewed.is_some() { Renewal::Renewed } else { Renewal::NotYours })
}

/// Lock ids are unique: a document with one of these names and one of these lock ids belongs to one of these leases.
fn multi_update(leases: &[&Lease]) -> MultiUpdate {
    let lock_ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let tokens: Vec<i64> = leases.iter().map(|lease| stored_token(lease.token)).collect();
    let expiry = leases.first().map(|lease| whole_ms(lease.expiry)).unwrap_or_default();
    MultiUpdate {
        ids: leases.iter().map(|lease| lease.resource.name().to_owned()).collect(),
        filter: is_held_by_any(&lock_ids),
        pipeline: pipelines::lock_renew_each(expiry, &lock_ids, &tokens),
    }
}

/// How a batch of renewals ended.
enum BatchedRenewal {
    All,
    /// At least one lease was lost. The time of the write, for a read that must see it.
    Some(Option<Timestamp>),
}

async fn renew_together(state: &Arc<StoreState>, leases: &[&Lease]) -> Result<BatchedRenewal> {
    if leases.is_empty() {
        return Ok(BatchedRenewal::All);
    }
    let chunks = chunks_by_key(leases, MULTI_UPDATE_SIZE, |lease| lease.expiry);
    let updates = chunks.iter().map(|indices| multi_update(&batch::pick(leases, indices))).collect();
    let outcome = state.commands.update_many(Namespace::Locks, Vec::new(), updates).await?;
    if let Some(failed) = outcome.failed.values().next() {
        return Err(failed.to_error());
    }
    let all = usize::try_from(outcome.matched) == Ok(leases.len());
    Ok(if all { BatchedRenewal::All } else { BatchedRenewal::Some(outcome.time) })
}

async fn renew_many(state: &Arc<StoreState>, leases: &[&Lease]) -> Batch<Renewal> {
    let written = match renew_together(state, leases).await? {
        BatchedRenewal::All => return Ok(leases.iter().map(|_| Ok(Renewal::Renewed)).collect()),
        BatchedRenewal::Some(written) => written,
    };
    // The documents show which leases were lost.
    let names: Vec<&str> = leases.iter().map(|lease| lease.resource.name()).collect();
    let found = state.commands.read(Namespace::Locks, &names, written).await?;
    let is_ours = |lease: &Lease| match found.get(lease.resource.name()) {
        Some(found) => read(state, found).map(|lock| lock.lock_id == lease.lock_id),
        None => Ok(false),
    };
    let ours: Vec<Result<bool>> = leases.iter().map(|lease| is_ours(lease)).collect();
    // A document that is ours may have been renewed by an earlier, stalled renewal, for less time. So the rest is renewed
    // once more; that renews all of them unless another one is lost in between.
    let rest: Vec<&Lease> = leases
        .iter()
        .zip(&ours)
        .filter(|(_, ours)| matches!(ours, Ok(true)))
        .map(|(lease, _)| *lease)
        .collect();
    let mut again = match renew_together(state, &rest).await {
        Ok(BatchedRenewal::All) => rest.iter().map(|_| Ok(Renewal::Renewed)).collect(),
        Ok(BatchedRenewal::Some(_)) => join_all(rest.iter().map(|lease| renew_one(state, lease))).await,
        Err(error) => all_failed(&error, rest.len()),
    }
    .into_iter();
    let answer = |ours: Result<bool>| match ours {
        Ok(true) => again.next().unwrap_or_else(|| Err(errors::too_few_answers())),
        Ok(false) => Ok(Renewal::NotYours),
        Err(error) => Err(error),
    };
    Ok(ours.into_iter().map(answer).collect())
}
