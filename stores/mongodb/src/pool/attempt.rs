//! Asking pools: a lone claim is one `findAndModify`, many are one `update` and one read.

use std::sync::Arc;

use distlock_core::store::{Attempt, Claim};
use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::join_all;

use super::{document_id, is_pool};
use crate::batch;
use crate::core::Core;
use crate::failure;
use crate::message;
use crate::pipelines::{self, Asking};
use crate::record::{PoolRecord, above_zero, ask_again, countable, in_ms, token};
use crate::wire::{Concern, Found, Place, Step, Version};

/// One answer for each claim.
pub(crate) async fn try_acquire(core: &Arc<Core>, claims: &[&Claim]) -> Vec<Result<Attempt>> {
    // What is wrong with a claim whatever the state of its pool is not sent.
    let refused: Vec<Option<Error>> = claims.iter().map(|claim| claim.check_weight().err()).collect();
    let good: Vec<&Claim> = claims
        .iter()
        .zip(&refused)
        .filter(|(_, refused)| refused.is_none())
        .map(|(claim, _)| *claim)
        .collect();
    let answers = match good.as_slice() {
        [] => Vec::new(),
        [claim] => vec![ask_one(core, claim).await],
        _ => ask_many(core, &good).await,
    };
    let mut answers = answers.into_iter();
    refused
        .into_iter()
        .zip(claims)
        .map(|(refused, claim)| {
            let answer = match refused {
                Some(error) => Err(error),
                None => answers.next().unwrap_or_else(|| Err(failure::odd("fewer answers than claims"))),
            };
            answer.map_err(|error| error.about(&claim.resource))
        })
        .collect()
}

fn step(core: &Core, claim: &Claim) -> Step {
    // A holder that never waited is told too if its lock is broken.
    let inbox = claim.waiting.as_ref().map(|waiting| waiting.inbox.clone()).or_else(|| claim.lock_id.inbox());
    let call = inbox.map(|inbox| message::call(&claim.lock_id, &inbox)).unwrap_or_default();
    let asking = Asking {
        lock_id: claim.lock_id.as_str(),
        call: &call,
        weight: i64::from(claim.weight),
        capacity: i64::from(claim.capacity),
        expiry_ms: in_ms(claim.expiry),
        ttl_ms: claim.waiting.as_ref().map(|waiting| in_ms(waiting.ttl)),
        attempt: claim.waiting.as_ref().map_or(i64::MAX, |waiting| number(waiting.attempt)),
        floor: core.floor.get(),
        retention_ms: core.retention_ms(),
    };
    Step {
        id: document_id(claim.resource.kind(), claim.resource.name()),
        when: is_pool(),
        pipeline: pipelines::pool_attempt(&asking),
        upsert: true,
    }
}

fn number(attempt: u64) -> i64 {
    i64::try_from(attempt).unwrap_or(i64::MAX)
}

async fn ask_one(core: &Arc<Core>, claim: &Claim) -> Result<Attempt> {
    let step = step(core, claim);
    let found = core.wire.step(Place::Queues, &step, Version::After, Concern::Majority).await?;
    judge(core, claim, found.as_ref().ok_or_else(|| failure::odd("an upsert without a document"))?)
}

async fn ask_many(core: &Arc<Core>, claims: &[&Claim]) -> Vec<Result<Attempt>> {
    let steps: Vec<Step> = claims.iter().map(|claim| step(core, claim)).collect();
    let mut ids: Vec<&str> = steps.iter().map(|step| step.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    let found = async {
        let outcome = core.wire.steps(Place::Queues, &steps).await?;
        let found = core.wire.read(Place::Queues, &ids, outcome.time).await;
        Ok((outcome, found.map_err(|error| error.with_unknown_outcome())?))
    };
    let (outcome, found) = match found.await {
        Ok(found) => found,
        Err(error) => return batch::all_failed(&error, claims.len()),
    };
    join_all(claims.iter().zip(&steps).enumerate().map(|(at, (claim, step))| {
        let (failed, found) = (outcome.failed.get(&at), found.get(&step.id));
        async move {
            match (failed, found) {
                (Some((code, words)), _) if *code != failure::DUPLICATE_KEY => {
                    Err(failure::from_code(*code, "write error", words))
                }
                (Some(_), _) | (None, None) => ask_one(core, claim).await,
                (None, Some(found)) => judge(core, claim, found),
            }
        }
    }))
    .await
}

fn judge(core: &Arc<Core>, claim: &Claim, found: &Found) -> Result<Attempt> {
    core.saw(found.now);
    let pool = PoolRecord::read(&found.document)?;
    countable(&found.document, "token", core.wire.collection(Place::Queues))?;
    if pool.is_in_use() && pool.capacity != claim.capacity {
        let (theirs, ours) = (pool.capacity, claim.capacity);
        return Err(Error::new(
            ErrorKind::Mismatch,
            format!("it is in use with a capacity of {theirs}, and {ours} was asked for"),
        )
        .advise("use one capacity everywhere; it can change once nobody holds it or waits for it"));
    }
    if let Some(held) = pool.holders.iter().find(|held| held.lock_id == claim.lock_id) {
        return Ok(Attempt::granted(token(held.token)));
    }
    let place = pool.queue.iter().position(|waiter| waiter.lock_id == claim.lock_id);
    let decided_at = place.map(|place| pool.queue[place].decided_at);
    let ahead = pool.queue.iter().take(place.unwrap_or(pool.queue.len()));
    let changes =
        pool.holders.iter().map(|held| held.expires_at).chain(ahead.map(|waiter| waiter.expires_at));
    let now = found.now.or(decided_at);
    let mut retry_after = changes.min().zip(now).and_then(|(moment, now)| above_zero(moment - now));
    if let (Some(place), Some(now), false) = (place, now, core.topology.pushes()) {
        // A place that is given to the first in the queue stays empty until that one asks.
        let latest = pool.holders.iter().filter_map(|held| held.acquired_at).max();
        let soon = latest.map(|latest| ask_again(latest, now));
        let soon = soon.map(|soon| soon.saturating_mul(u32::try_from(place + 1).unwrap_or(u32::MAX)));
        retry_after = retry_after.into_iter().chain(soon).min();
    }
    Ok(Attempt::busy(retry_after))
}
