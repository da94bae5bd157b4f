//! What requests in flight may excuse.

use std::time::Duration;

use crate::observations::{Observations, Op, Verb, Wait};
use crate::rules::{BACKLOG, PROMPT};
use crate::world::World;

/// How long unanswered requests may delay an acquisition.
pub fn delayed(world: &World, observed: &Observations, op: &Op) -> Duration {
    let behind = |verb| behind_unanswered(world, observed, op.process.slot, verb, op.started);
    let releases = if op.wait == Wait::Try { behind(Verb::Release) } else { Duration::ZERO };
    behind(Verb::Acquire) + releases
}

/// Whether a request of the process took longer than an acquisition waits for an answer after its time limit.
pub fn slower_than_limit(observed: &Observations, op: &Op, now: Duration) -> bool {
    let slack = match op.wait {
        Wait::Forever => return false,
        Wait::Try => return false,
        Wait::Limit(limit) => (limit / 2).clamp(Duration::from_millis(100), Duration::from_millis(250)),
    };
    observed.requests.iter().any(|request| {
        request.slot == op.process.slot
            && request.sent <= now
            && request.answered.is_none_or(|at| at >= op.started && at > request.sent + slack)
    })
}

/// How long unanswered requests may delay others: not at all while another slot is free.
pub fn behind_unanswered(
    world: &World,
    observed: &Observations,
    slot: usize,
    verb: Verb,
    started: Duration,
) -> Duration {
    // A quorum has one request of a kind in flight.
    let places = if world.plan.nodes > 1 { 1 } else { world.plan.max_in_flight };
    let timeout = world.plan.request_timeout;
    // The withdrawals after an outage are sent one by one if batches are small.
    let backlog = verb == Verb::Release && world.plan.max_batch < 10;
    if backlog && observed.outages_of(slot, started.saturating_sub(BACKLOG), world.time()).next().is_some() {
        return timeout;
    }
    let from = started.saturating_sub(timeout);
    let stuck = observed.requests.iter().filter(|request| {
        request.slot == slot
            // A quorum acquires with renewals too, which carry the token.
            && (request.verb == verb || (world.plan.nodes > 1 && request.verb == Verb::Renew))
            && (from..=world.time()).contains(&request.sent)
            && request.answered.is_none_or(|at| at > request.sent + timeout.min(PROMPT) / 4)
    });
    timeout * (stuck.count() / places) as u32
}
