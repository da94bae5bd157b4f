//! Taking a mutex. A lone claim is one `findAndModify`; many are one `update` and one read that tells who won.
//! Who waits joins the line first, where others are known to be there, and asks for the lock itself only if nobody
//! stands before it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::{Attempt, Claim, Waiting};
use distlock_core::{LockId, Result};
use futures_util::future::{join, join_all};
use mongodb::bson::Document;

use super::{expiry_ms, line};
use crate::batch;
use crate::core::Core;
use crate::failure;
use crate::known::{Answered, Stand};
use crate::pipelines::{self, Taking};
use crate::record::{LineRecord, LockRecord, ask_again, token};
use crate::wire::{Concern, Found, Making, Place, Step, Version, WIDEST, WideStep};

/// Whoever stands behind others looks at the lock itself after this long for each of them: by then it was its turn,
/// or one of them holds for longer, and only the lock says until when.
const LOOK_AFTER: Duration = Duration::from_millis(50);
const LOOK_AT_LAST: Duration = Duration::from_secs(1);
/// The holder had looked for waiters just before we joined, and is about to release.
const ABOUT_TO_RELEASE: Duration = Duration::from_millis(5);
const CLOSING_MS: i64 = 200;
/// Other programs release by deleting the document and wake nobody: we look this often.
const FOREIGN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(200));

/// What a look at the lock found.
enum Look {
    Granted { token: i64 },
    Busy { record: LockRecord, now: Option<i64> },
}

impl Look {
    /// Nobody holds it any more.
    fn is_free(&self) -> bool {
        match self {
            Look::Granted { .. } => false,
            Look::Busy { record, now } => match now {
                Some(now) => record.left(*now).is_none(),
                None => record.expires_at.is_none(),
            },
        }
    }
}

/// One answer for each claim.
pub(crate) async fn try_acquire(core: &Arc<Core>, claims: &[&Claim]) -> Vec<Result<Attempt>> {
    let (lined, direct) = batch::partition(claims, |claim| begins_in_line(core, claim));
    let in_line = join_all(batch::pick(claims, &lined).into_iter().map(|claim| stand_in_line(core, claim)));
    let (in_line, at_once) = join(in_line, take_directly(core, batch::pick(claims, &direct))).await;
    let answers = batch::merge((lined, in_line), (direct, at_once));
    answers
        .into_iter()
        .zip(claims)
        .map(|(answer, claim)| answer.map_err(|e| e.about(&claim.resource)))
        .collect()
}

fn begins_in_line(core: &Core, claim: &Claim) -> bool {
    claim.waiting.is_some()
        && core.has_lines()
        && (claim.no_overtaking
            || matches!(core.known.stand(&claim.lock_id), Some(Stand::Waiting | Stand::Holding))
            || core.known.is_contended(claim.resource.name()))
}

async fn take_directly(core: &Arc<Core>, claims: Vec<&Claim>) -> Vec<Result<Attempt>> {
    let looks = match claims.as_slice() {
        [] => Vec::new(),
        [claim] => vec![look(core, claim, false).await],
        _ => look_at_many(core, &claims).await,
    };
    // Whoever found it taken, and waits, joins the line now.
    join_all(looks.into_iter().zip(claims).map(|(look, claim)| async move {
        match look? {
            Look::Granted { token: number } => Ok(Attempt::granted(token(number))),
            Look::Busy { .. } if claim.waiting.is_some() && core.has_lines() => {
                stand_in_line(core, claim).await
            }
            Look::Busy { record, now } => Ok(busy(core, &record, now, None)),
        }
    }))
    .await
}

fn step(core: &Core, claim: &Claim, mark: bool) -> Step {
    let taking = Taking {
        lock_id: claim.lock_id.as_str(),
        expiry_ms: expiry_ms(claim.expiry),
        floor: core.floor.get(),
        mark,
    };
    Step {
        id: claim.resource.name().to_owned(),
        when: Document::new(),
        pipeline: pipelines::lock_acquire(taking),
        upsert: true,
    }
}

async fn look(core: &Arc<Core>, claim: &Claim, mark: bool) -> Result<Look> {
    let step = step(core, claim, mark);
    let found = core.wire.step(Place::Locks, &step, Version::After, Concern::Majority).await?;
    judge(core, claim, found.as_ref().ok_or_else(|| failure::odd("an upsert without a document"))?).await
}

async fn judge(core: &Arc<Core>, claim: &Claim, found: &Found) -> Result<Look> {
    let record = LockRecord::read_countable(&found.document, core.wire.collection(Place::Locks))?;
    if record.lock_id == claim.lock_id {
        core.granted(record.token, found.now).await?;
        Ok(Look::Granted { token: record.token })
    } else {
        core.saw(found.now);
        Ok(Look::Busy { record, now: found.now })
    }
}

/// A step for all of them, on documents that are there or are made first; and a read that tells who won. One name may
/// be among them twice: the first claim is meant by the step, and the other finds it taken.
async fn look_at_many(core: &Arc<Core>, claims: &[&Claim]) -> Vec<Result<Look>> {
    let names: Vec<&str> = claims.iter().map(|claim| claim.resource.name()).collect();
    let makings = names
        .iter()
        .filter(|name| !core.seen.has(name))
        .map(|name| Making { id: (*name).to_owned(), fields: pipelines::lock_beginning() });
    let portions = batch::portions(claims, WIDEST, |claim| claim.expiry);
    let steps = portions.iter().map(|places| wide_step(core, &batch::pick(claims, places)));
    let found = async {
        let outcome = core.wire.wide_steps(Place::Locks, makings.collect(), steps.collect()).await?;
        let found = core.wire.read(Place::Locks, &names, outcome.time).await;
        // The writes are done: that we do not know who won does not undo them.
        Ok((outcome, found.map_err(|error| error.with_unknown_outcome())?))
    };
    let (outcome, found) = match found.await {
        Ok(found) => found,
        Err(error) => return batch::all_failed(&error, claims.len()),
    };
    core.seen.saw(found.keys().map(String::as_str));
    let failed: HashSet<usize> = outcome.failed.keys().flat_map(|at| &portions[*at]).copied().collect();
    join_all(claims.iter().enumerate().map(|(at, claim)| {
        let found = found.get(claim.resource.name()).filter(|_| !failed.contains(&at));
        async move {
            let seen = match found {
                Some(found) => Some(judge(core, claim, found).await?),
                None => None,
            };
            match seen {
                Some(seen) if !seen.is_free() => Ok(seen),
                // Something was wrong with one of its portion, the document was deleted, or it is free by now: once
                // more, alone.
                _ => look(core, claim, false).await,
            }
        }
    }))
    .await
}

fn wide_step(core: &Core, claims: &[&Claim]) -> WideStep {
    let names: Vec<&str> = claims.iter().map(|claim| claim.resource.name()).collect();
    let lock_ids: Vec<&str> = claims.iter().map(|claim| claim.lock_id.as_str()).collect();
    let expiry = claims.first().map(|claim| expiry_ms(claim.expiry)).unwrap_or_default();
    WideStep {
        ids: names.iter().map(|name| (*name).to_owned()).collect(),
        when: Document::new(),
        pipeline: pipelines::lock_acquire_each(&names, &lock_ids, expiry, core.floor.get()),
    }
}

/// Waits in the line: joins it, or stays in it; and looks at the lock itself unless somebody stands before us.
async fn stand_in_line(core: &Arc<Core>, claim: &Claim) -> Result<Attempt> {
    let Some(waiting) = &claim.waiting else { return Ok(Attempt::busy(None)) };
    let answered = |at| Answered { attempt: waiting.attempt, at };
    let stand = core.known.stand(&claim.lock_id);
    if stand == Some(Stand::Holding) {
        // It was handed to us, and whoever asks has not heard of it or came too late to take it.
        match look(core, claim, false).await? {
            Look::Granted { token: number } => return Ok(Attempt::granted(token(number))),
            Look::Busy { record, .. } => core.known.saw_held(&claim.lock_id, record.token),
        }
    }
    let is_new = stand != Some(Stand::Waiting);
    let (mut line, mut joined_at) = (None, None);
    if is_new || core.known.must_renew(&claim.lock_id) {
        line = join_line(core, claim, waiting).await?;
        let place = line.as_ref().and_then(|line| line.place(&claim.lock_id));
        joined_at = line.as_ref().zip(place).map(|(line, place)| line.queue[place].decided_at);
        let ahead = place.unwrap_or_default();
        if is_new && ahead > 0 {
            core.known.is_busy(&claim.lock_id, answered(joined_at));
            core.known.saw_others(claim.resource.name());
            let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
            return Ok(Attempt::busy(LOOK_AFTER.saturating_mul(ahead).min(LOOK_AT_LAST)));
        }
    }
    match look(core, claim, true).await? {
        Look::Granted { token: number } => {
            core.known.holds(&claim.lock_id, number);
            Ok(Attempt::granted(token(number)))
        }
        Look::Busy { record, now } => {
            core.known.saw_others(claim.resource.name());
            core.known.saw_held(&claim.lock_id, record.token);
            core.known.is_busy(&claim.lock_id, answered(now.or(joined_at)));
            Ok(busy(core, &record, now, line.as_ref()))
        }
    }
}

/// `None`: the server refuses us the line, and we do without.
async fn join_line(core: &Arc<Core>, claim: &Claim, waiting: &Waiting) -> Result<Option<LineRecord>> {
    core.known.joins(&claim.lock_id, claim.resource.name());
    match line::register(core, claim, waiting).await {
        Ok(line) => Ok(Some(line)),
        Err(error) if error.can_retry() => Err(error),
        Err(error) => {
            core.refuse_lines(&error);
            core.known.forget(&claim.lock_id);
            Ok(None)
        }
    }
}

/// When it is worth asking again.
fn busy(core: &Core, record: &LockRecord, now: Option<i64>, line: Option<&LineRecord>) -> Attempt {
    let left = now.and_then(|now| record.left(now));
    let closing = line.and_then(|line| line.closing.as_ref()).zip(now);
    let sooner = match closing {
        Some(((lock_id, at), now)) if *lock_id == record.lock_id && now - at < CLOSING_MS => {
            Some(ABOUT_TO_RELEASE)
        }
        _ if is_foreign(&record.lock_id) => {
            Some(FOREIGN.0 + (FOREIGN.1 - FOREIGN.0).mul_f64(fastrand::f64()))
        }
        _ if !core.has_lines() => record.acquired_at.zip(now).map(|(since, now)| ask_again(since, now)),
        _ => None,
    };
    Attempt::busy(left.into_iter().chain(sooner).min())
}

/// Every lock id of ours has its label in front of a `#`.
fn is_foreign(lock_id: &LockId) -> bool {
    !lock_id.as_str().contains('#')
}
