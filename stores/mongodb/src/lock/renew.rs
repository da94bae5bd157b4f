//! Extending mutexes: one command, however many.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::{Lease, Renewal};
use futures_util::future::join_all;
use mongodb::bson::Timestamp;

use super::{expiry_ms, one_is_ours, read, still_ours};
use crate::batch;
use crate::core::Core;
use crate::failure;
use crate::pipelines::{self, LAST_TOKEN};
use crate::wire::{Concern, Place, Step, Version, WIDEST, WideStep};

fn step(lease: &Lease) -> Step {
    Step {
        id: lease.resource.name().to_owned(),
        when: still_ours(&lease.lock_id),
        pipeline: pipelines::lock_renew(expiry_ms(lease.expiry), number(lease)),
        upsert: false,
    }
}

fn number(lease: &Lease) -> i64 {
    i64::try_from(lease.token.get()).unwrap_or(LAST_TOKEN).min(LAST_TOKEN)
}

/// One answer for each lease.
pub(crate) async fn renew(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Renewal>> {
    match leases {
        [] => Vec::new(),
        [lease] => vec![renew_one(core, lease).await],
        _ => renew_many(core, leases).await,
    }
}

async fn renew_one(core: &Arc<Core>, lease: &Lease) -> Result<Renewal> {
    let found = core.wire.step(Place::Locks, &step(lease), Version::After, Concern::Majority).await?;
    if let Some(found) = &found {
        core.saw(found.now);
    }
    Ok(if found.is_some() { Renewal::Renewed } else { Renewal::NotYours })
}

/// Lock ids are unique: a document with one of these names and one of these lock ids is one of these leases.
fn wide_step(leases: &[&Lease]) -> WideStep {
    let lock_ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let tokens: Vec<i64> = leases.iter().map(|lease| number(lease)).collect();
    let expiry = leases.first().map(|lease| expiry_ms(lease.expiry)).unwrap_or_default();
    WideStep {
        ids: leases.iter().map(|lease| lease.resource.name().to_owned()).collect(),
        when: one_is_ours(&lock_ids),
        pipeline: pipelines::lock_renew_each(expiry, &lock_ids, &tokens),
    }
}

/// One command for all of them. Gives the moment of the write, or `None` if each of them was extended.
async fn renew_at_once(core: &Arc<Core>, leases: &[&Lease]) -> Result<Option<Option<Timestamp>>> {
    if leases.is_empty() {
        return Ok(None);
    }
    let portions = batch::portions(leases, WIDEST, |lease| lease.expiry);
    let steps = portions.iter().map(|places| wide_step(&batch::pick(leases, places))).collect();
    let outcome = core.wire.wide_steps(Place::Locks, Vec::new(), steps).await?;
    if let Some((code, words)) = outcome.failed.into_values().next() {
        return Err(failure::from_code(code, "write error", &words));
    }
    let all = usize::try_from(outcome.matched) == Ok(leases.len());
    Ok((!all).then_some(outcome.time))
}

async fn renew_many(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Renewal>> {
    let written = match renew_at_once(core, leases).await {
        Ok(Some(written)) => written,
        Ok(None) => return leases.iter().map(|_| Ok(Renewal::Renewed)).collect(),
        Err(error) => return batch::all_failed(&error, leases.len()),
    };
    // Some are not ours any more. Which: the documents say.
    let names: Vec<&str> = leases.iter().map(|lease| lease.resource.name()).collect();
    let found = match core.wire.read(Place::Locks, &names, written).await {
        Ok(found) => found,
        Err(error) => return batch::all_failed(&error, leases.len()),
    };
    let is_ours = |lease: &Lease| match found.get(lease.resource.name()) {
        Some(found) => read(core, found).map(|record| record.lock_id == lease.lock_id),
        None => Ok(false),
    };
    let seen: Vec<Result<bool>> = leases.iter().map(|lease| is_ours(lease)).collect();
    // A document that is ours does not say that this renewal extended it: an earlier one, stalled until now, may have,
    // and for less time. So the rest is renewed once more; those are all of them, unless one is lost in between.
    let ours: Vec<&Lease> = leases
        .iter()
        .zip(&seen)
        .filter(|(_, seen)| matches!(seen, Ok(true)))
        .map(|(lease, _)| *lease)
        .collect();
    let mut again = match renew_at_once(core, &ours).await {
        Ok(None) => ours.iter().map(|_| Ok(Renewal::Renewed)).collect(),
        Ok(Some(_)) => join_all(ours.iter().map(|lease| renew_one(core, lease))).await,
        Err(error) => batch::all_failed(&error, ours.len()),
    }
    .into_iter();
    let answer = |seen: Result<bool>| match seen {
        Ok(true) => again.next().unwrap_or_else(|| Err(failure::odd("fewer answers than leases"))),
        Ok(false) => Ok(Renewal::NotYours),
        Err(error) => Err(error),
    };
    seen.into_iter().map(answer).collect()
}
