//! Giving mutexes back. One that nobody waits for is a single step; a batch of them is a single command.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::store::{Lease, Released};
use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::{join, join_all};

use super::hand_on::{end, hand_on, pass_on, transfer};
use super::{line, one_is_ours, read, still_ours};
use crate::batch;
use crate::core::Core;
use crate::failure;
use crate::known::Stand;
use crate::pipelines::{self, Marked};
use crate::record::{LockRecord, in_ms};
use crate::wire::{Concern, Found, Place, Step, Version, WIDEST, WideStep};

/// One answer for each lease.
pub(crate) async fn release(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Released>> {
    let (lined, plain) = batch::partition(leases, |lease| core.known.stand(&lease.lock_id).is_some());
    let in_line = join_all(batch::pick(leases, &lined).into_iter().map(|lease| leave(core, lease)));
    let (in_line, plainly) = join(in_line, release_plainly(core, batch::pick(leases, &plain))).await;
    let answers = batch::merge((lined, in_line), (plain, plainly));
    answers
        .into_iter()
        .zip(leases)
        .map(|(answer, lease)| answer.map_err(|e| e.about(&lease.resource)))
        .collect()
}

/// Leaves a line in which it stands: as the one who holds, or as one who gives up waiting. Somebody who left before
/// leaves again: an attempt that was under way meanwhile may have brought it back.
async fn leave(core: &Arc<Core>, lease: &Lease) -> Result<Released> {
    let (name, lock_id) = (lease.resource.name(), &lease.lock_id);
    let next = core.known.take_next(lock_id);
    let stood = core.known.leaves(lock_id);
    let left = match stood {
        Some(Stand::Holding) => hand_on(core, name, lock_id, next).await,
        _ => withdraw(core, lease).await,
    };
    match (&left, stood) {
        (Err(_), Some(stood)) => core.known.stays(lock_id, stood),
        (left, _) => {
            let handed = core.known.left(lock_id);
            let held = matches!(left, Ok(Released::Done { woke: true }));
            if handed && !held {
                // It was given to us behind our back, too late for us to give it back ourselves.
                let next = core.known.take_next(lock_id);
                tokio::spawn(pass_on(Arc::clone(core), name.to_owned(), lock_id.clone(), next));
            }
        }
    }
    left
}

async fn withdraw(core: &Arc<Core>, lease: &Lease) -> Result<Released> {
    let (name, lock_id) = (lease.resource.name(), &lease.lock_id);
    let (stood, behind) = match line::withdraw(core, name, lock_id).await {
        Err(error) if !error.can_retry() => {
            // There is no line any more to leave; the lock itself may still be ours.
            core.refuse_lines(&error);
            (false, None)
        }
        left => left?,
    };
    // The lock may have been handed to us while we were leaving, or may be in a moment: then it is for them.
    core.known.followed_by(lock_id, behind.clone());
    let held = match &behind {
        Some(behind) if behind.direct => transfer(core, name, lock_id, behind).await?,
        _ => end(core, name, lock_id).await?,
    };
    Ok(if stood || held { Released::Done { woke: held && behind.is_some() } } else { Released::NotYours })
}

async fn release_plainly(core: &Arc<Core>, leases: Vec<&Lease>) -> Vec<Result<Released>> {
    if let [lease] = leases.as_slice() {
        return vec![release_one(core, lease).await];
    }
    // Which of two leases of one name was ours could not be told afterwards.
    let mut count: HashMap<&str, usize> = HashMap::with_capacity(leases.len());
    for lease in &leases {
        *count.entry(lease.resource.name()).or_default() += 1;
    }
    let (alone, together) = batch::partition(&leases, |lease| count[lease.resource.name()] > 1);
    let one_by_one = join_all(batch::pick(&leases, &alone).into_iter().map(|lease| release_one(core, lease)));
    let many = batch::pick(&leases, &together);
    let (one_by_one, at_once) = join(one_by_one, release_many(core, &many)).await;
    batch::merge((alone, one_by_one), (together, at_once))
}

/// A marked lock is kept from being freed only where there are lines to look into.
fn marked(core: &Core) -> Marked {
    if core.has_lines() { Marked::Keep } else { Marked::Free }
}

async fn release_one(core: &Arc<Core>, lease: &Lease) -> Result<Released> {
    let step = Step {
        id: lease.resource.name().to_owned(),
        when: still_ours(&lease.lock_id),
        pipeline: pipelines::lock_release(marked(core)),
        upsert: false,
    };
    let found = core.wire.step(Place::Locks, &step, Version::After, Concern::Majority).await?;
    let Some(found) = found else { return Ok(Released::NotYours) };
    conclude(core, lease, &found).await
}

/// The document after its release: free, or still ours because somebody may wait.
async fn conclude(core: &Arc<Core>, lease: &Lease, found: &Found) -> Result<Released> {
    core.saw(found.now);
    let record = read(core, found)?;
    if record.lock_id == lease.lock_id {
        hand_on(core, lease.resource.name(), &lease.lock_id, None).await
    } else {
        Ok(Released::Done { woke: false })
    }
}

/// One step for all of them. The server says how many were ours, not which: if it was not all, or if some are as they
/// were because somebody may wait for them, the documents tell.
async fn release_many(core: &Arc<Core>, leases: &[&Lease]) -> Vec<Result<Released>> {
    if leases.is_empty() {
        return Vec::new();
    }
    let portions = batch::portions(leases, WIDEST, |_| ());
    let steps = portions.iter().map(|places| wide_step(core, &batch::pick(leases, places))).collect();
    let sent = Instant::now();
    let outcome = match core.wire.wide_steps(Place::Locks, Vec::new(), steps).await {
        Ok(outcome) => outcome,
        Err(error) => return batch::all_failed(&error, leases.len()),
    };
    if usize::try_from(outcome.modified) == Ok(leases.len()) {
        return leases.iter().map(|_| Ok(Released::Done { woke: false })).collect();
    }
    let names: Vec<&str> = leases.iter().map(|lease| lease.resource.name()).collect();
    let found = match core.wire.read(Place::Locks, &names, outcome.time).await {
        Ok(found) => found,
        Err(error) => return batch::all_failed(&error.with_unknown_outcome(), leases.len()),
    };
    let lasted = sent.elapsed();
    let portion_of = |at: usize| portions.iter().position(|places| places.contains(&at));
    join_all(leases.iter().enumerate().map(|(at, lease)| {
        let failed = portion_of(at).and_then(|portion| outcome.failed.get(&portion));
        let found = found.get(lease.resource.name());
        async move {
            if let Some((code, words)) = failed {
                // Those before the one that failed were released.
                return Err(failure::from_code(*code, "write error", words).with_unknown_outcome());
            }
            let Some(found) = found else { return Ok(Released::NotYours) };
            match What::of(&read(core, found)?, lease, found.now, lasted) {
                What::Waited => hand_on(core, lease.resource.name(), &lease.lock_id, None).await,
                What::Released => Ok(Released::Done { woke: false }),
                What::Lost => Ok(Released::NotYours),
                What::Unclear => {
                    let what = "another took it while it was being given back; whether it was ours until then cannot be told";
                    Err(Error::new(ErrorKind::Lost, what).with_unknown_outcome())
                }
            }
        }
    }))
    .await
}

fn wide_step(core: &Core, leases: &[&Lease]) -> WideStep {
    let lock_ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    WideStep {
        ids: leases.iter().map(|lease| lease.resource.name().to_owned()).collect(),
        when: one_is_ours(&lock_ids),
        pipeline: pipelines::lock_release(marked(core)),
    }
}

/// What a document says of the release of a lease, after a step that released some of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// It is still held: somebody may wait for it.
    Waited,
    Released,
    /// It was not ours any more.
    Lost,
    /// It was given up and taken again during the step: whether it was ours until then cannot be seen.
    Unclear,
}

impl What {
    /// `lasted`: how long ago the step was sent, at most.
    fn of(record: &LockRecord, lease: &Lease, now: Option<i64>, lasted: Duration) -> What {
        let during_the_step = record.acquired_at.zip(now).map(|(since, now)| now - since <= in_ms(lasted));
        if record.lock_id == lease.lock_id {
            // A server that does not tell its time: whoever hands it on asks whether it is still ours.
            let held = now.is_none_or(|now| record.left(now).is_some());
            return if held { What::Waited } else { What::Lost };
        }
        let given_up = record.lock_id.as_str().is_empty();
        match during_the_step {
            Some(false) => What::Lost,
            // What is left of a released name says when that was.
            Some(true) if given_up => What::Released,
            _ => What::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distlock_core::{FencingToken, Kind, LockId, Resource};

    const NOW: i64 = 1_000_000;

    fn seen(lock_id: &str, acquired_at: i64, expires_at: Option<i64>, now: Option<i64>) -> What {
        let record = LockRecord {
            lock_id: LockId::from_stored(lock_id),
            acquired_at: Some(acquired_at),
            expires_at,
            token: 7,
        };
        let lease = Lease::new(
            Resource::new(Kind::Mutex, "name").expect("a good name"),
            LockId::from_stored("ours"),
            FencingToken::new(7),
            Duration::from_secs(9),
        );
        What::of(&record, &lease, now, Duration::from_millis(20))
    }

    #[test]
    fn a_document_tells_what_came_of_a_release_among_others() {
        assert_eq!(seen("ours", NOW - 5000, Some(NOW + 1), Some(NOW)), What::Waited);
        assert_eq!(seen("ours", NOW - 5000, Some(NOW), Some(NOW)), What::Lost, "it had expired");
        assert_eq!(seen("", NOW - 20, None, Some(NOW)), What::Released);
        assert_eq!(seen("", NOW - 21, None, Some(NOW)), What::Lost, "it was broken before");
        assert_eq!(seen("theirs", NOW - 21, Some(NOW + 1), Some(NOW)), What::Lost);
        assert_eq!(seen("theirs", NOW - 3, Some(NOW + 1), Some(NOW)), What::Unclear);
        assert_eq!(seen("", NOW - 3, None, None), What::Unclear, "a server that does not tell its time");
    }
}
