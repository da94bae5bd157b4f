//! The line of a mutex: the document beside it that says who waits. It is a hint throughout, and kept like one: only
//! what somebody is to be told of waits for a majority.

use std::sync::Arc;
use std::time::Instant;

use distlock_core::store::{Claim, Waiting};
use distlock_core::{Kind, LockId, Result};
use mongodb::bson::doc;

use crate::core::Core;
use crate::message::{self, Next};
use crate::pipelines::{self, Registration};
use crate::pool::document_id;
use crate::record::{self, LineRecord};
use crate::wire::{Concern, Place, Step, Version};

pub(super) fn id(name: &str) -> String {
    document_id(Kind::Mutex, name)
}

/// Joins the line of a claim's name, or starts the time of its entry anew. Gives the line as it is then.
pub(super) async fn register(core: &Arc<Core>, claim: &Claim, waiting: &Waiting) -> Result<LineRecord> {
    let name = claim.resource.name();
    let done = core.known.take_done(name);
    let registration = Registration {
        lock_id: claim.lock_id.as_str(),
        call: &message::call(&claim.lock_id, &waiting.inbox),
        introduction: &message::introduction(&claim.lock_id, &waiting.inbox, claim.expiry),
        direct: message::speaks_for_itself(&claim.lock_id, &waiting.inbox),
        introduces_itself: !core.passes(),
        expiry_ms: record::in_ms(claim.expiry),
        ttl_ms: record::in_ms(waiting.ttl),
        done: &done,
        retention_ms: core.retention_ms(),
    };
    let step = Step {
        id: id(name),
        when: doc! { "queue": { "$type": "array" } },
        pipeline: pipelines::line_register(&registration),
        upsert: true,
    };
    let sent = Instant::now();
    // Where the one before us is to be told: a change stream shows nothing before a majority has it.
    let concern = if registration.introduces_itself { Concern::Majority } else { Concern::Hint };
    let found = core.wire.step(Place::Queues, &step, Version::After, concern).await?;
    let line = found.map(|found| LineRecord::read(&found.document)).unwrap_or_default();
    if line.place(&claim.lock_id).is_some() {
        core.known.joined(&claim.lock_id, sent, waiting.ttl);
    }
    Ok(line)
}

/// Leaves the line. Says whether it stood there, and who stood behind it.
pub(super) async fn withdraw(core: &Arc<Core>, name: &str, lock_id: &LockId) -> Result<(bool, Option<Next>)> {
    let step = Step {
        id: id(name),
        when: doc! { "queue.lockId": lock_id.as_str() },
        pipeline: pipelines::line_withdraw(lock_id.as_str(), !core.passes()),
        upsert: false,
    };
    let found = core.wire.step(Place::Queues, &step, Version::Before, Concern::Majority).await?;
    let Some(found) = found else { return Ok((false, None)) };
    let line = LineRecord::read(&found.document);
    let behind =
        line.place(lock_id).and_then(|at| line.queue.get(at + 1)).and_then(|entry| entry.next.clone());
    Ok((true, behind))
}

/// Whoever leaves the lock asks who is next.
pub(super) async fn next(core: &Arc<Core>, name: &str, lock_id: &LockId) -> Result<Option<Next>> {
    let step = Step {
        id: id(name),
        when: doc! { "queue": { "$type": "array" } },
        pipeline: pipelines::line_next(lock_id.as_str()),
        upsert: false,
    };
    let found = core.wire.step(Place::Queues, &step, Version::After, Concern::Hint).await?;
    let line = found.map(|found| LineRecord::read(&found.document)).unwrap_or_default();
    Ok(line.queue.into_iter().next().and_then(|entry| entry.next))
}

/// After the lock was taken from this lock id: tells its holder to renew, and the first of the line to ask again.
pub(super) async fn tell_broken(core: &Arc<Core>, name: &str, lock_id: &LockId) -> Result<()> {
    let call = lock_id.inbox().map(|inbox| message::call(lock_id, &inbox));
    let step = Step {
        id: id(name),
        when: doc! { "queue": { "$type": "array" } },
        pipeline: pipelines::line_break(lock_id.as_str(), call.as_deref(), core.retention_ms()),
        // Messages travel in the document of the line, also if it has no waiter.
        upsert: call.is_some(),
    };
    core.wire.step(Place::Queues, &step, Version::After, Concern::Majority).await.map(drop)
}

/// Tells the first of the line to ask again.
pub(super) async fn ring(core: &Arc<Core>, name: &str) -> Result<()> {
    let step = Step {
        id: id(name),
        when: doc! { "queue.0": { "$exists": true } },
        pipeline: pipelines::line_ring(),
        upsert: false,
    };
    core.wire.step(Place::Queues, &step, Version::After, Concern::Majority).await.map(drop)
}
