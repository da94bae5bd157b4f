//! Everything that was observed about acquisitions, holds and requests. The rules are in `rules`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_core::store::Claim;
use distlock_core::{CancellationToken, Guard, LockId, Resource};

use crate::link::RequestInfo;
use crate::plan::{Choice, Plan};
use crate::world::{Process, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Acquire,
    Renew,
    Release,
}

/// How long an acquisition may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Try,
    Limit(Duration),
    Forever,
}

/// How an acquisition ended.
#[derive(Clone, Debug)]
pub enum End {
    Granted,
    Busy,
    Failed(distlock_core::Error),
    Dropped,
    Panicked,
    /// Its runtime ended.
    Vanished,
}

/// One acquisition.
#[derive(Clone, Debug)]
pub struct Op {
    pub process: Arc<Process>,
    /// What is asked for, including the queue of a fair mutex.
    pub resources: Vec<Resource>,
    pub wait: Wait,
    pub choice: Choice,
    pub started: Duration,
    pub ended: Option<(Duration, End)>,
    /// Its locks may be lost to an operator, a clock that jumped or a node that forgot.
    pub exempt: bool,
    /// Whether a resource was in use at the beginning.
    pub in_use: bool,
    /// It runs outside the runtime of its client.
    pub guest: bool,
    /// It runs on a runtime that ends soon.
    pub visitor: bool,
}

/// One guard.
#[derive(Clone)]
pub struct Hold {
    pub op: usize,
    pub process: Arc<Process>,
    pub resource: Resource,
    pub weight: u32,
    pub capacity: u32,
    pub lock_id: LockId,
    pub token: u64,
    pub guard: Arc<Mutex<Option<Guard>>>,
    pub signal: CancellationToken,
    pub asked: Duration,
    pub granted_at: Duration,
    /// The time left when the grant was reported.
    pub left: Duration,
    /// When the user began to release it, or saw that it is lost.
    pub ended: Option<Duration>,
    pub exempt: bool,
    /// When an operator broke it.
    pub broken: Option<Duration>,
}

/// One request in flight.
#[derive(Clone, Debug)]
pub struct Request {
    pub slot: usize,
    pub node: usize,
    pub verb: Verb,
    pub resources: Vec<Resource>,
    pub sent: Duration,
    pub answered: Option<Duration>,
}

pub struct Observations {
    pub ops: Vec<Op>,
    pub holds: Vec<Hold>,
    /// The numbers of the requests that have not ended.
    pub live_ops: Vec<usize>,
    pub live_holds: Vec<usize>,
    pub requests: Vec<Request>,
    /// The numbers of the requests with a fault.
    faulted: Vec<usize>,
    /// The stalls of each client, from and until.
    pub stalls: Vec<(usize, Duration, Duration)>,
    pub outages: Vec<(usize, usize, Duration, Duration)>,
    /// What was applied after its process ended: it expires.
    pub orphans: HashSet<LockId>,
    pub orphans_until: Duration,
    /// When a resource was last seen with a holder or a waiter.
    pub in_use: HashMap<Resource, Duration>,
    /// Processes that have ended and cannot undo anything.
    pub gone: Vec<Arc<Process>>,
    /// By how much the servers' clocks were moved back in total.
    pub moved_back: Duration,
    /// Leases may end early: a clock jumped ahead or a node forgot.
    pub last_loss_of_memory: Option<Duration>,
    pub grants: u64,
    tokens: HashMap<Resource, Vec<ReportedToken>>,
    quorum: bool,
}

/// A token, and when it was requested and reported.
#[derive(Clone, Copy, Debug)]
struct ReportedToken {
    token: u64,
    asked: Duration,
    at: Duration,
    exclusive: bool,
}

impl Observations {
    pub fn new(plan: &Plan) -> Self {
        Observations {
            ops: Vec::new(),
            holds: Vec::new(),
            live_ops: Vec::new(),
            live_holds: Vec::new(),
            faulted: Vec::new(),
            requests: Vec::new(),
            stalls: Vec::new(),
            outages: Vec::new(),
            orphans: HashSet::new(),
            orphans_until: Duration::ZERO,
            in_use: HashMap::new(),
            gone: Vec::new(),
            moved_back: Duration::ZERO,
            last_loss_of_memory: None,
            grants: 0,
            tokens: HashMap::new(),
            quorum: plan.nodes > 1,
        }
    }

    pub fn sent(
        &mut self,
        process: &Process,
        node: usize,
        asked: &RequestInfo,
        now: Duration,
        faulted: bool,
    ) -> usize {
        self.requests.push(Request {
            slot: process.slot,
            node,
            verb: asked.verb,
            resources: asked.resources.clone(),
            sent: now,
            answered: None,
        });
        if faulted {
            self.faulted.push(self.requests.len() - 1);
        }
        self.requests.len() - 1
    }

    pub fn faulted(&self) -> impl Iterator<Item = &Request> {
        self.faulted.iter().map(|number| &self.requests[*number])
    }

    /// Acquisitions that have not ended.
    pub fn live_ops(&self) -> impl Iterator<Item = &Op> {
        self.live_ops.iter().map(|number| &self.ops[*number])
    }

    /// Guards that were not released.
    pub fn live_holds(&self) -> impl Iterator<Item = &Hold> {
        self.live_holds.iter().map(|number| &self.holds[*number])
    }

    pub fn end_op(&mut self, number: usize, now: Duration, end: End) {
        self.ops[number].ended = Some((now, end));
        self.live_ops.retain(|live| *live != number);
    }

    /// Removes the guard and returns it.
    pub fn end_hold(&mut self, number: usize, now: Duration) -> Option<Guard> {
        self.live_holds.retain(|live| *live != number);
        let hold = &mut self.holds[number];
        hold.ended = Some(now);
        hold.guard.lock().unwrap().take()
    }

    pub fn answered(&mut self, request: usize, now: Duration) {
        self.requests[request].answered = Some(now);
    }

    /// Reports a claim that no acquisition of this process awaits.
    pub fn unwanted(
        &self,
        process: &Arc<Process>,
        verb: Verb,
        claims: &[Claim],
        now: Duration,
    ) -> Option<String> {
        if verb != Verb::Acquire || self.quorum {
            return None;
        }
        let wanted = |claim: &&Claim| {
            // A claim that was about to be sent when its user was cancelled may still be sent.
            let just_now =
                |op: &Op| op.ended.as_ref().is_none_or(|(at, _)| *at + Duration::from_millis(2) >= now);
            let ours = |op: &&Op| Arc::ptr_eq(&op.process, process) && just_now(op);
            self.live_ops()
                .chain(self.ops.iter().rev())
                .filter(ours)
                .any(|op| op.resources.contains(&claim.resource))
        };
        let unwanted = claims.iter().find(|claim| !wanted(claim))?;
        Some(format!("{process} sends a claim for {}, which none of its users awaits", unwanted.resource))
    }

    /// A server is about to apply a request.
    pub fn applied(&mut self, world: &World, verb: Verb, claims: &[Claim], undelivered: bool) {
        if verb != Verb::Acquire {
            return;
        }
        for claim in claims {
            self.look(world, &claim.resource);
            if undelivered {
                self.orphans.insert(claim.lock_id.clone());
                let ttl = claim.waiting.as_ref().map_or(Duration::ZERO, |waiting| waiting.ttl);
                self.orphans_until = self.orphans_until.max(world.time() + claim.expiry.max(ttl));
            }
        }
    }

    /// A process shuts down: locks whose minimum hold time has not passed stay in the store until their leases expire.
    pub fn shuts_down(&mut self, process: &Arc<Process>, now: Duration) {
        const MARGIN: Duration = Duration::from_millis(100);
        for hold in &self.holds {
            let options = &self.ops[hold.op].choice.options;
            let least = options.get_hold_at_least();
            if Arc::ptr_eq(&hold.process, process)
                && !least.is_zero()
                && hold.granted_at + least + MARGIN > now
            {
                self.orphans.insert(hold.lock_id.clone());
                self.orphans_until = self.orphans_until.max(now + options.get_expiry().max(least) + MARGIN);
            }
        }
    }

    /// Records whether a resource is in use now.
    pub fn look(&mut self, world: &World, resource: &Resource) -> bool {
        let in_use = self.live_holds().any(|hold| hold.resource == *resource) || world.is_in_use(resource);
        if in_use {
            self.in_use.insert(resource.clone(), world.time());
        }
        in_use
    }

    pub fn op_starts(&mut self, world: &World, mut op: Op) -> usize {
        for resource in &op.resources {
            op.in_use |= self.look(world, resource);
        }
        self.live_ops.push(self.ops.len());
        self.ops.push(op);
        self.ops.len() - 1
    }

    /// Records a grant. Returns the violated rule of the tokens, if any.
    pub fn granted(&mut self, world: &World, hold: Hold) -> Option<String> {
        self.grants += 1;
        let reported = ReportedToken {
            token: hold.token,
            asked: hold.asked,
            at: world.time(),
            exclusive: hold.weight == hold.capacity,
        };
        let exempt = hold.exempt;
        let resource = hold.resource.clone();
        self.in_use.insert(resource.clone(), world.time());
        self.live_holds.push(self.holds.len());
        self.holds.push(hold);
        let earlier = self.tokens.entry(resource.clone()).or_default();
        let problem = earlier.iter().rev().find_map(|other| {
            let shared = self.quorum && !reported.exclusive && !other.exclusive;
            let wrong = if other.token == reported.token {
                !shared
            } else if other.at < reported.asked {
                other.token > reported.token
            } else {
                // Both requests were sent before: the store decided on the conflicting one later.
                !exempt && (reported.exclusive || other.exclusive) && other.token > reported.token
            };
            wrong.then(|| format!("token {} of {resource} is granted after {}", reported.token, other.token))
        });
        // Tokens that nodes have forgotten since do not count.
        if !(exempt && self.quorum) {
            earlier.push(reported);
        }
        problem
    }

    /// Records that the nodes may have forgotten the tokens granted so far.
    pub fn forget_tokens(&mut self, resource: &Resource) {
        self.tokens.remove(resource);
    }

    pub fn highest_tokens(&self) -> Vec<(Resource, u64)> {
        let highest =
            |reported: &Vec<ReportedToken>| reported.iter().map(|reported| reported.token).max().unwrap_or(0);
        self.tokens.iter().map(|(resource, reported)| (resource.clone(), highest(reported))).collect()
    }

    /// From now on current holds and acquisitions may be lost without a violation.
    pub fn excuse(&mut self, which: impl Fn(&Resource) -> bool, keeps: impl Fn(&Hold) -> bool) {
        for number in &self.live_holds {
            let hold = &mut self.holds[*number];
            hold.exempt |= which(&hold.resource) && !keeps(hold);
        }
        for number in &self.live_ops {
            let op = &mut self.ops[*number];
            op.exempt |= op.resources.iter().any(&which);
        }
    }

    pub fn is_stalled_within(&self, slot: usize, from: Duration, until: Duration) -> bool {
        self.stalls.iter().any(|(client, begin, end)| *client == slot && *begin <= until && *end >= from)
    }

    pub fn stalled_for(&self, slot: usize, from: Duration, until: Duration) -> Duration {
        let ours = self.stalls.iter().filter(|(client, ..)| *client == slot);
        ours.map(|(_, begin, end)| (*end).min(until).saturating_sub((*begin).max(from))).sum()
    }

    /// Nodes whose link to a client had a fault that concerned a resource.
    pub fn faulty_nodes(
        &self,
        slot: usize,
        verbs: &[Verb],
        resources: &[Resource],
        from: Duration,
        until: Duration,
    ) -> HashSet<usize> {
        let about = |request: &&Request| {
            request.slot == slot
                && verbs.contains(&request.verb)
                && request.sent <= until
                && request.answered.is_none_or(|at| at >= from)
                && (resources.is_empty() || request.resources.iter().any(|r| resources.contains(r)))
        };
        let mut nodes: HashSet<usize> = self.faulted().filter(about).map(|request| request.node).collect();
        nodes.extend(self.outages_of(slot, from, until));
        nodes
    }

    pub fn outages_of(&self, slot: usize, from: Duration, until: Duration) -> impl Iterator<Item = usize> {
        let ours = self.outages.iter().filter(move |(client, _, begin, end)| {
            *client == slot && *begin <= until && *end + Duration::from_millis(100) >= from
        });
        ours.map(|(_, node, ..)| *node)
    }

    pub fn has_ended(&self, label: &str) -> bool {
        self.gone.iter().any(|process| process.to_string() == label)
    }
}

/// Whether a guard reports that it is held, if its process can run.
pub fn says_held(hold: &Hold) -> bool {
    if hold.ended.is_some() || hold.process.is_dead() || hold.process.is_stalled() {
        return false;
    }
    hold.guard.lock().unwrap().as_ref().is_some_and(|guard| !guard.is_lost())
}

/// Whether the process of a hold has been able to run for this long.
pub fn runs_since(observed: &Observations, hold: &Hold, now: Duration, length: Duration) -> bool {
    !hold.process.is_stalled()
        && !observed.is_stalled_within(hold.process.slot, now.saturating_sub(length), now)
        && !hold.process.shut_down.load(SeqCst)
}
