//! Extending mutexes: one command, however many.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::{Lease, Renewal};
use futures_util::future::join_all;

use super::{expiry_ms, one_is_ours, read, still_ours};
use crate::batch;
use crate::core::Core;
use crate::failure;
use crate::pipelines;
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
    i64::try_from(lease.token.get()).unwrap_or(i64::MAX)
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
    Ok(if found.is_some() { Renewal::Extended } else { Renewal::NotYours })
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

async fn renew_many(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Renewal>> {
    let portions = batch::portions(leases, WIDEST, |lease| lease.expiry);
    let steps = portions.iter().map(|places| wide_step(&batch::pick(leases, places))).collect();
    let outcome = match core.wire.wide_steps(Place::Locks, Vec::new(), steps).await {
        Ok(outcome) => outcome,
        Err(error) => return batch::all_failed(&error, leases.len()),
    };
    if let Some((code, words)) = outcome.failed.into_values().next() {
        return batch::all_failed(&failure::from_code(code, "write error", &words), leases.len());
    }
    if usize::try_from(outcome.matched) == Ok(leases.len()) {
        return leases.iter().map(|_| Ok(Renewal::Extended)).collect();
    }
    // Some are not ours any more. Which: the documents say, now that the others were extended.
    let names: Vec<&str> = leases.iter().map(|lease| lease.resource.name()).collect();
    let found = match core.wire.read(Place::Locks, &names, outcome.time).await {
        Ok(found) => found,
        Err(error) => return batch::all_failed(&error, leases.len()),
    };
    join_all(leases.iter().map(|lease| {
        let found = found.get(lease.resource.name());
        async move {
            let Some(found) = found else { return Ok(Renewal::NotYours) };
            let record = read(core, found)?;
            if record.lock_id != lease.lock_id {
                return Ok(Renewal::NotYours);
            }
            match found.now {
                Some(now) if record.left(now).is_some() => Ok(Renewal::Extended),
                Some(_) => Ok(Renewal::NotYours),
                // A server that does not tell its time: it decides once more.
                None => renew_one(core, lease).await,
            }
        }
    }))
    .await
}
