//! What must be true, whatever went wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use distlock_core::store::Query;
use distlock_core::{ErrorKind, LossReason, Resource};

use crate::check::{Checker, End, Op, Verb, Wait, runs_since, says_held};
use crate::shown::shown;
use crate::world::World;

/// How long an acquisition may take to answer where nothing is wrong with its own requests.
const PROMPT: Duration = Duration::from_millis(1_500);
/// For how long what was given up during an outage may be withdrawn after it.
const BACKLOG: Duration = Duration::from_secs(10);
/// A request without an answer for this long makes the store look down to others too.
const SILENT: Duration = Duration::from_millis(2_200);

pub const EXCLUSION: &str = "exclusion";
pub const TOKENS: &str = "tokens";
pub const NOT_TOLD: &str = "loss told in time";
pub const HEALTHY: &str = "a healthy lock is not lost";
pub const LIVENESS: &str = "liveness";
pub const LEAK: &str = "nothing leaks";
pub const BUSY: &str = "down is never busy";
pub const FAILED: &str = "no failure under a working store";
pub const PANIC: &str = "a panic is contained";
pub const ENGINE: &str = "the engine lives";
pub const RUNTIME: &str = "the end of a runtime is told";

pub const GRANTED_LOST: &str = "nothing is granted that is lost already";
pub const UNWANTED: &str = "a claim is sent that nobody awaits";

pub fn named(name: Option<String>) -> Option<&'static str> {
    let all = [
        EXCLUSION,
        TOKENS,
        NOT_TOLD,
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

/// No guards that say that they are held exceed the capacity.
pub fn exclusion(world: &World, resource: &Resource) {
    let checker = world.check();
    let now = world.time();
    let live: Vec<_> = checker.live_holds().filter(|hold| hold.resource == *resource).collect();
    if live.len() < 2 {
        return;
    }
    // Looked at before anybody asks: asking would tell.
    let untold: Vec<bool> = live.iter().map(|hold| !hold.signal.is_cancelled()).collect();
    let held: Vec<_> = live.iter().filter(|hold| !hold.exempt && says_held(hold)).collect();
    let weight: u64 = held.iter().map(|hold| u64::from(hold.weight)).sum();
    let mut problem = None;
    if let Some(one) = held.first()
        && weight > u64::from(one.capacity)
    {
        let who: Vec<String> = held
            .iter()
            .map(|hold| format!("{} (token {}, told at {:?})", shown(&hold.lock_id), hold.token, hold.told))
            .collect();
        problem =
            Some((EXCLUSION, format!("{resource} of {} is held by {}", one.capacity, who.join(" and "))));
    }
    let most = live.iter().map(|hold| hold.capacity).max().unwrap_or(1);
    let all: u64 = live.iter().filter(|hold| !hold.exempt).map(|hold| u64::from(hold.weight)).sum();
    for (hold, untold) in live.iter().zip(untold) {
        let due =
            untold && all > u64::from(most) && !hold.exempt && !held.iter().any(|other| other.op == hold.op);
        let op = &checker.ops[hold.op];
        let long = op.choice.options.get_expiry() >= Duration::from_secs(1);
        if due
            && long
            && !hold.process.is_dead()
            && runs_since(&checker, hold, now, Duration::from_millis(50))
        {
            let text = format!("{} is over and its token was not cancelled", shown(&hold.lock_id));
            problem = problem.or(Some((NOT_TOLD, text)));
        }
    }
    drop(checker);
    if let Some((rule, text)) = problem {
        world.violated(rule, text);
    }
}

/// An acquisition is over.
pub fn op_ended(world: &Arc<World>, number: usize, end: End) {
    let now = world.time();
    let mut checker = world.check();
    if checker.ops[number].ended.is_some() {
        return;
    }
    checker.end_op(number, now, end.clone());
    let op = checker.ops[number].clone();
    let problem = match &end {
        End::Panicked => Some((PANIC, "the panic of a driver reached the caller".to_owned())),
        End::Busy => busy(world, &mut checker, &op, now).or_else(|| slow(world, &checker, &op, now)),
        End::Failed(error) => failed(world, &checker, &op, error, now),
        End::Granted => slow(world, &checker, &op, now),
        End::Dropped | End::Vanished => None,
    };
    drop(checker);
    if let Some((rule, text)) = problem {
        let what = op.resources.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let text = format!("{} waits {:?} since {:?} for {what}: {text}", op.process, op.wait, op.started);
        world.violated(rule, text);
    }
}

type Problem = Option<(&'static str, String)>;

fn works(world: &World, checker: &Checker, op: &Op, now: Duration) -> bool {
    // A quorum acquires in two steps: votes, and the token that all who voted must know.
    let verbs: &[Verb] =
        if world.plan.nodes > 1 { &[Verb::Acquire, Verb::Renew, Verb::Release] } else { &[Verb::Acquire] };
    let troubled = checker.troubled_nodes(op.process.slot, verbs, &op.resources, op.started, now);
    world.plan.nodes - troubled.len() >= world.majority()
        && !checker.is_stalled_within(op.process.slot, op.started, now)
}

/// Contention needs somebody who contends: a holder or waiter that a server knows, or one of this process whose own
/// request is not stuck.
fn busy(world: &World, checker: &mut Checker, op: &Op, now: Duration) -> Problem {
    let mut contended = op.in_use;
    for resource in &op.resources {
        contended |= checker.look(world, resource);
        // Whoever had it a moment ago may not have been told yet that it is released.
        contended |= checker.in_use.get(resource).is_some_and(|at| *at + SILENT >= op.started);
        contended |= checker
            .holds
            .iter()
            .any(|hold| hold.resource == *resource && hold.ended.is_none_or(|ended| ended >= op.started));
    }
    if contended {
        return None;
    }
    // Whoever of this process was there before, and since when.
    let about = |r: &Resource| op.resources.contains(r);
    let before = checker.ops.iter().filter(|other| {
        Arc::ptr_eq(&other.process, &op.process)
            && other.started < op.started
            && other.ended.as_ref().is_none_or(|(at, _)| *at >= op.started)
            && other.resources.iter().any(about)
    });
    let since = before.map(|other| other.started).min();
    let first = since.is_none();
    let stuck = checker.requests.iter().any(|request| {
        request.slot == op.process.slot
            && request.verb == Verb::Acquire
            && request.resources.iter().any(about)
            && request.answered.is_none_or(|at| at > now)
            && since.is_some_and(|since| request.sent >= since)
            && request.sent + SILENT < op.started
    });
    (stuck || first).then(|| (BUSY, "told busy, and nobody held it or waited for it".to_owned()))
}

fn failed(world: &World, checker: &Checker, op: &Op, error: &distlock_core::Error, now: Duration) -> Problem {
    let process = &op.process;
    match error.kind() {
        ErrorKind::ShutDown => {
            let expected = process.shut_down.load(SeqCst) || !process.works();
            (!expected).then(|| (ENGINE, format!("nobody shut it down: {error}")))
        }
        ErrorKind::Lost => None,
        ErrorKind::Unavailable | ErrorKind::Internal => {
            let stuck = behind_stuck(world, checker, process.slot, Verb::Acquire, op.started);
            // A node that granted and then does not learn the token is needed if another client holds the rest: its
            // error, or the time limit that ends while it is waited for, is told. `quorum::write_back` has the case in
            // which it is not needed.
            let untold = world.plan.nodes > 1
                && !checker
                    .troubled_nodes(process.slot, &[Verb::Renew], &op.resources, op.started, now)
                    .is_empty();
            let excused = !process.works() || !works(world, checker, op, now) || !stuck.is_zero() || untold;
            (!excused).then(|| (FAILED, error.to_string()))
        }
        _ => Some((FAILED, error.to_string())),
    }
}

/// Every acquisition that is not for ever answers in time; a try whose requests go well answers at once.
fn slow(world: &World, checker: &Checker, op: &Op, now: Duration) -> Problem {
    let limit = match op.wait {
        Wait::Try => Duration::ZERO,
        Wait::Limit(limit) => limit,
        Wait::Forever => return None,
    };
    let stalled = checker.stalled_for(op.process.slot, op.started, now);
    let took = (now - op.started).saturating_sub(stalled);
    let each = op.resources.len() as u32;
    // A quorum may have to wait for one node that is slow to learn the token.
    let troubled = world.plan.nodes > 1
        && !checker
            .troubled_nodes(op.process.slot, &[Verb::Acquire, Verb::Renew], &[], op.started, now)
            .is_empty();
    let most = if works(world, checker, op, now) && op.process.works() && !troubled {
        limit + (PROMPT + behind_stuck(world, checker, op.process.slot, Verb::Acquire, op.started)) * each
    } else {
        limit + (3 * world.plan.request_timeout + Duration::from_secs(3)) * each
    };
    (took > most).then(|| (LIVENESS, format!("answered after {took:?}, {most:?} are allowed")))
}

/// How long requests that are stuck may keep others waiting: not at all while there is a place for one more.
pub fn behind_stuck(
    world: &World,
    checker: &Checker,
    slot: usize,
    verb: Verb,
    started: Duration,
) -> Duration {
    // A quorum has one request of a kind in flight.
    let places = if world.plan.nodes > 1 { 1 } else { world.plan.max_in_flight };
    let timeout = world.plan.request_timeout;
    // What was given up during an outage is withdrawn one by one where requests carry little.
    let backlog = verb == Verb::Release && world.plan.max_batch < 10;
    if backlog && checker.outages_of(slot, started.saturating_sub(BACKLOG), world.time()).next().is_some() {
        return timeout;
    }
    let from = started.saturating_sub(timeout);
    let stuck = checker.requests.iter().filter(|request| {
        request.slot == slot
            // A quorum acquires with renewals too: they carry the token.
            && (request.verb == verb || (world.plan.nodes > 1 && request.verb == Verb::Renew))
            && (from..=world.time()).contains(&request.sent)
            && request.answered.is_none_or(|at| at > request.sent + timeout.min(PROMPT) / 4)
    });
    timeout * (stuck.count() / places) as u32
}

/// A guard turned lost, around the moment until which it was held or later.
pub fn lost(world: &World, number: usize, reason: &LossReason, held_until: Duration) {
    let checker = world.check();
    let now = world.time();
    let hold = &checker.holds[number];
    let op = &checker.ops[hold.op];
    let slot = hold.process.slot;
    let expiry = op.choice.options.get_expiry();
    let window = held_until.saturating_sub(expiry + Duration::from_millis(200)).max(hold.asked);
    let excused = hold.exempt
        || !hold.process.works()
        || hold.process.shut_down.load(SeqCst)
        || checker.is_stalled_within(slot, window, now)
        || checker.last_loss_of_memory.is_some_and(|at| at >= hold.asked)
        || match reason {
            LossReason::Expired { .. } => {
                let plain = !op.choice.options.extends();
                let troubles = checker
                    .faulted()
                    .filter(|request| {
                        request.slot == slot
                            && (request.verb == Verb::Renew || request.resources.contains(&hold.resource))
                            && request.sent <= now
                            && request.answered.is_none_or(|at| at >= window)
                            && (request.verb == Verb::Renew || request.sent >= hold.asked)
                    })
                    .count();
                let out = checker.outages_of(slot, window, now).next().is_some();
                // Told with little left, there is no time for a second try.
                plain || troubles > 1 || out || hold.left < expiry / 3
            }
            _ => false,
        };
    let text = format!("{} of {} (expiry {expiry:?}): {reason}", shown(&hold.lock_id), hold.process);
    drop(checker);
    if !excused {
        world.violated(HEALTHY, text);
    }
}

/// Whoever holds what an operator broke knows after the next renewal.
pub fn broken(world: &World, number: usize) {
    let checker = world.check();
    let now = world.time();
    let hold = &checker.holds[number];
    let Some(broken) = hold.broken else { return };
    let options = &checker.ops[hold.op].choice.options;
    let due = broken + options.get_extension_cadence() + Duration::from_secs(1);
    let slot = hold.process.slot;
    let troubled =
        checker.troubled_nodes(slot, &[Verb::Renew], &[], broken.saturating_sub(due - broken), now);
    let excused = !options.extends()
        || !hold.process.works()
        || !troubled.is_empty()
        || checker.is_stalled_within(slot, broken, now)
        || hold.signal.is_cancelled();
    let text = format!("{} was broken at {broken:?} and does not know", shown(&hold.lock_id));
    drop(checker);
    if now > due && !excused {
        world.violated(NOT_TOLD, text);
    }
}

/// Of what was waited for when somebody gave it back, somebody has it soon.
pub fn handed_over(world: &World, resource: &Resource, released: Duration) {
    let checker = world.check();
    let waits =
        |op: &&Op| op.resources == [resource.clone()] && op.started + Duration::from_millis(200) < released;
    let waiting = checker.live_ops().find(waits).cloned();
    let taken = checker
        .holds
        .iter()
        .any(|hold| hold.resource == *resource && hold.ended.is_none_or(|ended| ended > released));
    drop(checker);
    // One of several that are acquired together is held before its user knows.
    let taken = taken || world.is_held(resource);
    if let Some(op) = waiting.filter(|_| !taken) {
        let text = format!(
            "{resource} is free since {released:?}, and {} waits for it since {:?}",
            op.process, op.started
        );
        world.violated(LIVENESS, text);
    }
}

/// A guard whose runtime is gone: its token is cancelled by the time that its lease ends.
pub fn ended_runtimes(world: &World) {
    let checker = world.check();
    let now = world.time();
    let late = checker.live_holds().find(|hold| {
        let ended = hold.process.ended.load(SeqCst) && !hold.process.is_dead();
        let expiry = checker.ops[hold.op].choice.options.get_expiry();
        ended && now > hold.told + expiry * 2 + Duration::from_secs(2) && !hold.signal.is_cancelled()
    });
    let text = late.map(|hold| format!("the token of {} is not cancelled", shown(&hold.lock_id)));
    drop(checker);
    if let Some(text) = text {
        world.violated(RUNTIME, text);
    }
}

/// Nothing that a living engine could undo is left.
pub fn leaks(world: &World) {
    let checker = world.check();
    let mut left = Vec::new();
    for (node, server) in world.servers.iter().enumerate() {
        for record in server.records(&Query::default()) {
            let holders = record.holders.iter().map(|holder| (&holder.lock_id, "holds"));
            let waiters = record.waiters.iter().map(|waiter| (&waiter.lock_id, "waits for"));
            for (lock_id, does) in holders.chain(waiters) {
                if !checker.orphans.contains(lock_id) && !checker.is_gone(lock_id.label()) {
                    let name = record.name.clone().unwrap_or_default();
                    left.push(format!("{} still {does} {} {name:?} on s{node}", shown(lock_id), record.kind));
                }
            }
        }
    }
    drop(checker);
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
