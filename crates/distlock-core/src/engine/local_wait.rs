//! Waiting in the local wait queue. A single attempt or a time limit ends as contention only if the store said "busy"
//! recently or this process holds the lock. Otherwise the store is asked.

use std::sync::Arc;
use std::time::Duration;

use super::local_queue::{Joined, Probe, QueueHead, QueueMessage};
use super::telemetry::WaitGauge;
use super::{Shared, Wait, own_holds};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;

/// How long the store may take to answer the head before a waiter asks the store itself.
const GRACE: Duration = Duration::from_millis(500);

/// How waiting in the local queue ended.
pub(super) enum LocalOutcome {
    /// We are the head.
    Head(QueueHead),
    /// We are not the head, and it is unknown whether the lock is contended: make one attempt with this time limit.
    Probe { probe: Probe, limit: Duration },
    /// Contended.
    Busy,
}

/// Where the head waits for a contended lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitSite {
    /// In the engine: the head asks the store repeatedly, and shares each answer.
    Engine,
    /// In the server, which says nothing until it grants.
    Server,
}

/// Waits, for as long as asked, until this task is the head of its local queue.
pub(super) async fn wait_for_head(
    shared: &Arc<Shared>,
    resource: &Resource,
    request_timeout: Duration,
    wait: Wait,
    site: WaitSite,
    gauge: &WaitGauge<'_>,
) -> Result<LocalOutcome> {
    if wait == Wait::Once {
        return next_answer(shared, resource, site, request_timeout, request_timeout).await;
    }
    let receiver = match shared.queues.join(resource) {
        Joined::Waiting(receiver) => receiver,
        Joined::Head(head) => return Ok(LocalOutcome::Head(head)),
        Joined::Busy | Joined::Probe(_) => return Ok(LocalOutcome::Busy),
    };
    gauge.begin(None);
    own_holds::warn_if_holder(shared, resource);
    tokio::select! {
        biased;
        // First: a head that a guard passes on because the engine ended must not be used to ask the store.
        () = shared.closing.cancelled() => return Err(shared.stopped()),
        message = receiver => match message {
            Ok(QueueMessage::Head(head)) => return Ok(LocalOutcome::Head(head)),
            Ok(QueueMessage::Failed(error)) => return Err(error),
            Ok(QueueMessage::Busy | QueueMessage::Retry) => return Ok(LocalOutcome::Busy),
            Err(_) => return Err(shared.stopped()),
        },
        () = sleep_until(&*shared.clock, wait.limit()) => {}
    }
    if let Some(error) = shared.queues.last_error(resource) {
        return Err(error);
    }
    let longest = 2 * GRACE.min(request_timeout / 2);
    // A server that waits by itself is asked by a probe, which gets the whole request time-out.
    let limit = if site == WaitSite::Server { request_timeout } else { longest / 2 };
    next_answer(shared, resource, site, longest, limit).await
}

/// The store's next answer about the lock: through the head, or by a probe of at most `limit`.
async fn next_answer(
    shared: &Arc<Shared>,
    resource: &Resource,
    site: WaitSite,
    longest: Duration,
    limit: Duration,
) -> Result<LocalOutcome> {
    let begun = shared.clock.now();
    let mut may_probe = site == WaitSite::Server;
    let grace = begun.after(GRACE.min(longest / 2));
    loop {
        let receiver = match shared.queues.join_once(resource, shared.clock.now(), may_probe) {
            Joined::Head(head) => return Ok(LocalOutcome::Head(head)),
            Joined::Busy => return Ok(LocalOutcome::Busy),
            Joined::Probe(probe) => return Ok(LocalOutcome::Probe { probe, limit }),
            Joined::Waiting(receiver) => receiver,
        };
        let until: Moment = if may_probe { begun.after(longest) } else { grace };
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(shared.stopped()),
            message = receiver => match message {
                Ok(QueueMessage::Head(head)) => return Ok(LocalOutcome::Head(head)),
                Ok(QueueMessage::Busy) => return Ok(LocalOutcome::Busy),
                Ok(QueueMessage::Failed(error)) => return Err(error),
                Ok(QueueMessage::Retry) => {}
                Err(_) => return Err(shared.stopped()),
            },
            () = sleep_until(&*shared.clock, until) => {
                if may_probe {
                    return Err(unanswered(longest));
                }
                may_probe = true;
            }
        }
    }
}

fn unanswered(after: Duration) -> Error {
    let what = format!("no answer within {after:?} to any acquisition of this process");
    Error::new(ErrorKind::Unavailable, what)
        .doing("acquire")
        .advise("check that the store runs and can be reached from here")
}
