//! The rules that hold whatever the faults.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use distlock_core::store::Query;
use distlock_core::{ErrorKind, LossReason, Resource};

use crate::excuses::{delayed, slower_than_limit};
use crate::observations::{End, Observations, Op, Verb, Wait, runs_since, says_held};
use crate::trace_format::shown;
use crate::world::World;

/// How long an acquisition may take if its own requests have no faults.
pub const PROMPT: Duration = Duration::from_millis(1_500);
/// For how long after an outage withdrawals may be in flight.
pub const BACKLOG: Duration = Duration::from_secs(10);
/// After this long without an answer the store looks down to other callers too.
const UNANSWERED: Duration = Duration::from_millis(2_200);

pub const EXCLUSION: &str = "exclusion";
pub const TOKENS: &str = "tokens";
pub const LOSS_REPORTED: &str = "a loss is reported in time";
pub const HEALTHY: &str = "a healthy lock is not lost";
pub const LIVENESS: &str = "liveness";
pub const LEAK: &str = "nothing leaks";
pub const BUSY: &str = "an outage is never contention";
pub const FAILED: &str = "no error while the store works";
pub const PANIC: &str = "a panic is contained";
pub const ENGINE: &str = "the engine keeps running";
pub const RUNTIME: &str = "the end of a runtime is reported";

pub const GRANTED_LOST: &str = "a lost lock is not granted";
pub const UNWANTED: &str = "no claim is sent that no caller awaits";

pub fn named(name: Option<String>) -> Option<&'static str> {
    let all = [
        EXCLUSION,
        TOKENS,
        LOSS_REPORTED,
        HEALTHY,
        LIVENESS,
        LEAK,
        BUSY,
        FAILED,
        PANIC,
        ENGINE,
        RUNTIME,
        UNWANTED,
        GRANTED_LOST,
    ];
    name.map(|name| *all.iter().find(|rule| **rule == name).unwrap())
}

/// The guards that report that they are held do not exceed the capacity.
pub fn exclusion(world: &World, resource: &Resource) {
    let observed = world.observed();
    let now = world.time();
    let live: Vec<_> = observed.live_holds().filter(|hold| hold.resource == *resource).collect();
    if live.len() < 2 {
        return;
    }
    // Checked before any call on the guard, since a call would detect the loss.
    let untold: Vec<bool> = live.iter().map(|hold| !hold.signal.is_cancelled()).collect();
    let held: Vec<_> = live.iter().filter(|hold| !hold.exempt && says_held(hold)).collect();
    let weight: u64 = held.iter().map(|hold| u64::from(hold.weight)).sum();
    let mut problem = None;
    if let Some(one) = held.first()
        && weight > u64::from(one.capacity)
    {
        let holders: Vec<String> = held
            .iter()
            .map(|hold| {
                format!("{} (token {}, granted at {:?})", shown(&hold.lock_id), hold.token, hold.granted_at)
            })
            .collect();
        problem =
            Some((EXCLUSION, format!("{resource} of {} is held by {}", one.capacity, holders.join(" and "))));
    }
    let most = live.iter().map(|hold| hold.capacity).max().unwrap_or(1);
    let all: u64 = live.iter().filter(|hold| !hold.exempt).map(|hold| u64::from(hold.weight)).sum();
    for (hold, untold) in live.iter().zip(untold) {
        let due =
            untold && all > u64::from(most) && !hold.exempt && !held.iter().any(|other| other.op == hold.op);
        let op = &observed.ops[hold.op];
        let long = op.choice.options.get_expiry() >= Duration::from_secs(1);
        if due
            && long
            && !hold.process.is_dead()
            && runs_since(&observed, hold, now, Duration::from_millis(50))
        {
            let text = format!("{} has ended and its token was not cancelled", shown(&hold.lock_id));
            problem = problem.or(Some((LOSS_REPORTED, text)));
        }
    }
    drop(observed);
    if let Some((rule, text)) = problem {
        world.violated(rule, text);
    }
}

/// Checks an acquisition that has ended.
pub fn op_ended(world: &Arc<World>, number: usize, end: End) {
    let now = world.time();
    let mut observed = world.observed();
    if observed.ops[number].ended.is_some() {
        return;
    }
    observed.end_op(number, now, end.clone());
    let op = observed.ops[number].clone();
    let problem = match &end {
        End::Panicked => Some((PANIC, "the panic of a driver reached the caller".to_owned())),
        End::Busy => busy(world, &mut observed, &op, now).or_else(|| slow(world, &observed, &op, now)),
        End::Failed(error) => failed(world, &observed, &op, error, now),
        End::Granted => slow(world, &observed, &op, now),
        End::Dropped | End::Vanished => None,
    };
    drop(observed);
    if let Some((rule, text)) = problem {
        let what = op.resources.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let text = format!("{} waits {:?} since {:?} for {what}: {text}", op.process, op.wait, op.started);
        world.violated(rule, text);
    }
}

type Problem = Option<(&'static str, String)>;

fn works(world: &World, observed: &Observations, op: &Op, now: Duration) -> bool {
    // A quorum acquires in two steps: votes, and the write-back of the token.
    let verbs: &[Verb] = match op.wait {
        _ if world.plan.nodes > 1 => &[Verb::Acquire, Verb::Renew, Verb::Release],
        // A single attempt waits for the releases of its process that are in flight.
        Wait::Try => &[Verb::Acquire, Verb::Release],
        _ => &[Verb::Acquire],
    };
    let troubled = observed.faulty_nodes(op.process.slot, verbs, &op.resources, op.started, now);
    world.plan.nodes - troubled.len() >= world.majority()
        && !observed.is_stalled_within(op.process.slot, op.started, now)
}

/// Contention needs a holder or waiter: one that a server knows, or one of this process whose own request is not
/// unanswered.
fn busy(world: &World, observed: &mut Observations, op: &Op, now: Duration) -> Problem {
    let mut contended = op.in_use;
    for resource in &op.resources {
        contended |= observed.look(world, resource);
        // A holder of a moment ago may not have its answer to the release yet.
        contended |= observed.in_use.get(resource).is_some_and(|at| *at + UNANSWERED >= op.started);
        contended |= observed
            .holds
            .iter()
            .any(|hold| hold.resource == *resource && hold.ended.is_none_or(|ended| ended >= op.started));
    }
    if contended {
        return None;
    }
    // The earlier operations of this process, and since when.
    let about = |r: &Resource| op.resources.contains(r);
    let before = observed.ops.iter().filter(|other| {
        Arc::ptr_eq(&other.process, &op.process)
            && other.started < op.started
            && other.ended.as_ref().is_none_or(|(at, _)| *at >= op.started)
            && other.resources.iter().any(about)
    });
    let since = before.map(|other| other.started).min();
    let first = since.is_none();
    let stuck = observed.requests.iter().any(|request| {
        request.slot == op.process.slot
            && request.verb == Verb::Acquire
            && request.resources.iter().any(about)
            && request.answered.is_none_or(|at| at > now)
            && since.is_some_and(|since| request.sent >= since)
            && request.sent + UNANSWERED < op.started
    });
    (stuck || first).then(|| (BUSY, "answered busy without a holder or a waiter".to_owned()))
}

fn failed(
    world: &World,
    observed: &Observations,
    op: &Op,
    error: &distlock_core::Error,
    now: Duration,
) -> Problem {
    let process = &op.process;
    match error.kind() {
        ErrorKind::ShutDown => {
            let expected = process.shut_down.load(SeqCst) || !process.works();
            (!expected).then(|| (ENGINE, format!("it was not shut down: {error}")))
        }
        ErrorKind::Lost => None,
        ErrorKind::Unavailable | ErrorKind::Internal => {
            let stuck = delayed(world, observed, op);
            // A node that granted and does not get the token is needed if another client has the other nodes. Its error,
            // or the time limit that ends during the wait for it, is reported. `quorum::write_back` tests the case in
            // which it is not needed.
            let untold = world.plan.nodes > 1
                && !observed
                    .faulty_nodes(process.slot, &[Verb::Renew], &op.resources, op.started, now)
                    .is_empty();
            let excused = !process.works()
                || !works(world, observed, op, now)
                || !stuck.is_zero()
                || untold
                || slower_than_limit(observed, op, now);
            (!excused).then(|| (FAILED, error.to_string()))
        }
        _ => Some((FAILED, error.to_string())),
    }
}

/// Every acquisition with a time limit ends in time. A single attempt without faults ends at once.
fn slow(world: &World, observed: &Observations, op: &Op, now: Duration) -> Problem {
    let limit = match op.wait {
        Wait::Try => Duration::ZERO,
        Wait::Limit(limit) => limit,
        Wait::Forever => return None,
    };
    let stalled = observed.stalled_for(op.process.slot, op.started, now);
    let took = (now - op.started).saturating_sub(stalled);
    let each = op.resources.len() as u32;
    // A quorum may have to wait for one node during the write-back of the token.
    let troubled = world.plan.nodes > 1
        && !observed
            .faulty_nodes(op.process.slot, &[Verb::Acquire, Verb::Renew], &[], op.started, now)
            .is_empty();
    let most = if works(world, observed, op, now) && op.process.works() && !troubled {
        limit + (PROMPT + delayed(world, observed, op)) * each
    } else {
        limit + (3 * world.plan.request_timeout + Duration::from_secs(3)) * each
    };
    (took > most).then(|| (LIVENESS, format!("answered after {took:?}, {most:?} are allowed")))
}

/// Checks a lost guard. `held_until` is the last moment at which it was seen held.
pub fn lost(world: &World, number: usize, reason: &LossReason, held_until: Duration) {
    let observed = world.observed();
    let now = world.time();
    let hold = &observed.holds[number];
    let op = &observed.ops[hold.op];
    let slot = hold.process.slot;
    let expiry = op.choice.options.get_expiry();
    let window = held_until.saturating_sub(expiry + Duration::from_millis(200)).max(hold.asked);
    let excused = hold.exempt
        || !hold.process.works()
        || hold.process.shut_down.load(SeqCst)
        || observed.is_stalled_within(slot, window, now)
        || observed.last_loss_of_memory.is_some_and(|at| at >= hold.asked)
        || match reason {
            LossReason::Expired { .. } => {
                let plain = !op.choice.options.extends();
                let troubles = observed
                    .faulted()
                    .filter(|request| {
                        request.slot == slot
                            && (request.verb == Verb::Renew || request.resources.contains(&hold.resource))
                            && request.sent <= now
                            && request.answered.is_none_or(|at| at >= window)
                            && (request.verb == Verb::Renew || request.sent >= hold.asked)
                    })
                    .count();
                let out = observed.outages_of(slot, window, now).next().is_some();
                // Granted with little time left, there is no time for a second attempt.
                plain || troubles > 1 || out || hold.left < expiry / 3
            }
            _ => false,
        };
    let text = format!("{} of {} (expiry {expiry:?}): {reason}", shown(&hold.lock_id), hold.process);
    drop(observed);
    if !excused {
        world.violated(HEALTHY, text);
    }
}

/// The holder of a broken lock detects it with the next renewal.
pub fn broken(world: &World, number: usize) {
    let observed = world.observed();
    let now = world.time();
    let hold = &observed.holds[number];
    let Some(broken) = hold.broken else { return };
    let options = &observed.ops[hold.op].choice.options;
    let due = broken + options.get_extension_cadence() + Duration::from_secs(1);
    let slot = hold.process.slot;
    let troubled = observed.faulty_nodes(slot, &[Verb::Renew], &[], broken.saturating_sub(due - broken), now);
    let excused = !options.extends()
        || !hold.process.works()
        || !troubled.is_empty()
        || observed.is_stalled_within(slot, broken, now)
        || hold.signal.is_cancelled();
    let text = format!("{} was broken at {broken:?} and is not lost", shown(&hold.lock_id));
    drop(observed);
    if now > due && !excused {
        world.violated(LOSS_REPORTED, text);
    }
}

/// A released lock with a waiter is acquired soon.
pub fn handoff(world: &World, resource: &Resource, released: Duration) {
    let observed = world.observed();
    let waits =
        |op: &&Op| op.resources == [resource.clone()] && op.started + Duration::from_millis(200) < released;
    let waiting = observed.live_ops().find(waits).cloned();
    let taken = observed
        .holds
        .iter()
        .any(|hold| hold.resource == *resource && hold.ended.is_none_or(|ended| ended > released));
    drop(observed);
    // A lock of a set is held before its user gets the set.
    let taken = taken || world.is_held(resource);
    if let Some(op) = waiting.filter(|_| !taken) {
        let text = format!(
            "{resource} is free since {released:?}, and {} waits for it since {:?}",
            op.process, op.started
        );
        world.violated(LIVENESS, text);
    }
}

/// A guard whose runtime has ended: its token is cancelled before its lease expires.
pub fn ended_runtimes(world: &World) {
    let observed = world.observed();
    let now = world.time();
    let late = observed.live_holds().find(|hold| {
        let ended = hold.process.ended.load(SeqCst) && !hold.process.is_dead();
        let expiry = observed.ops[hold.op].choice.options.get_expiry();
        ended && now > hold.granted_at + expiry * 2 + Duration::from_secs(2) && !hold.signal.is_cancelled()
    });
    let text = late.map(|hold| format!("the token of {} is not cancelled", shown(&hold.lock_id)));
    drop(observed);
    if let Some(text) = text {
        world.violated(RUNTIME, text);
    }
}

/// Nothing is left that a running engine could undo.
pub fn leaks(world: &World) {
    let observed = world.observed();
    let mut left = Vec::new();
    for (node, server) in world.servers.iter().enumerate() {
        for record in server.records(&Query::default()) {
            let holders = record.holders.iter().map(|holder| (&holder.lock_id, "holds"));
            let waiters = record.waiters.iter().map(|waiter| (&waiter.lock_id, "waits for"));
            for (lock_id, does) in holders.chain(waiters) {
                if !observed.orphans.contains(lock_id) && !observed.has_ended(lock_id.label()) {
                    let name = record.name.clone().unwrap_or_default();
                    left.push(format!("{} still {does} {} {name:?} on s{node}", shown(lock_id), record.kind));
                }
            }
        }
    }
    drop(observed);
    if let Some(first) = left.first() {
        world.violated(LEAK, format!("{first} ({} in all)", left.len()));
    }
}

/// Nothing at all is left.
pub fn empty(world: &World) {
    for (node, server) in world.servers.iter().enumerate() {
        if let Some(record) = server.records(&Query::default()).first() {
            let text = format!("s{node} never forgets {} {:?}", record.kind, record.name);
            world.violated(LEAK, text);
        }
    }
}
