//! The history of a run, and the rules it is held against.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::event::Event;
use super::operation::{Fate, Operation, Operations, tell};
use super::record::Recorder;
use super::tokens;

/// What every run must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// At no moment do guards that say that they are held exceed the capacity.
    HeldBeyondCapacity,
    /// A later grant has a higher token.
    TokenNotHigher,
    /// No two grants of a resource have the same token.
    TokenTwice,
    /// A lock id serves one acquisition only.
    LockIdTwice,
    /// What was lost or given back is never held again.
    Revived,
    /// Whoever lost a lock is told no later than the next holder gets it, give or take the time to write it down.
    LossNotTold,
    /// Every request is answered, unless it is given up or its actor dies.
    NotAnswered,
    /// The log itself makes no sense: a defect of the test.
    Log,
}

/// One breach of a rule, with the lines that show it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// What happened, in one line.
    pub text: String,
    /// The lines concerned, in the order of their time.
    pub events: Vec<Event>,
    /// The beginning of the run.
    origin: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)?;
        self.events.iter().try_for_each(|event| write!(f, "\n    {}", event.shown(self.origin)))
    }
}

/// Everything that everybody saw, in the order of time.
#[derive(Clone, Debug)]
pub struct History {
    events: Vec<Event>,
    told_within: Duration,
    sharers_may_share_a_token: bool,
}

impl History {
    /// A history of these events, in any order.
    #[must_use]
    pub fn new(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.at);
        History { events, told_within: Duration::from_secs(5), sharers_may_share_a_token: false }
    }

    /// Merges all logs of a folder. Of a process that was killed the last line may be torn: it is left out.
    ///
    /// # Panics
    /// If the folder cannot be read, or a line in the middle of a log is not an event.
    #[must_use]
    pub fn read(folder: &Path) -> Self {
        let mut events = Vec::new();
        for path in Recorder::logs(folder) {
            let text = std::fs::read_to_string(&path).expect("a log can be read");
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in whole.lines() {
                let event = serde_json::from_str(line);
                events.push(event.unwrap_or_else(|error| panic!("{}: {error}: {line}", path.display())));
            }
        }
        History::new(events)
    }

    /// How long after the next grant a holder that lost its lock may write that down at the latest. Default 5 s:
    /// this bounds how fast a test notices; that nobody says *held* for too long is another rule, without leeway.
    #[must_use]
    pub fn told_within(mut self, limit: Duration) -> Self {
        self.told_within = limit;
        self
    }

    /// Lets those who may hold together and asked at the same time have the same token: what a quorum cannot help,
    /// whose nodes may see them in different orders. One that asks after another was granted has a higher one still.
    #[must_use]
    pub fn sharers_may_share_a_token(mut self, they_may: bool) -> Self {
        self.sharers_may_share_a_token = they_may;
        self
    }

    /// The events, in the order of time.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many requests each actor was granted.
    #[must_use]
    pub fn grants(&self) -> BTreeMap<String, usize> {
        let mut grants = BTreeMap::new();
        for operation in tell(&self.events).operations.iter().filter(|operation| operation.grant.is_some()) {
            *grants.entry(operation.asked.actor.clone()).or_default() += 1;
        }
        grants
    }

    /// Everything that breaks a rule.
    #[must_use]
    pub fn check(&self) -> Vec<Violation> {
        let Operations { operations, fates, strays } = tell(&self.events);
        let mut findings =
            Findings { origin: self.events.first().map_or(0, |event| event.at), list: Vec::new() };
        if !strays.is_empty() {
            findings.add(
                Rule::Log,
                "these lines belong to no request, or come in an impossible order",
                strays,
            );
        }
        let mut by_resource: BTreeMap<&str, Vec<&Operation<'_>>> = BTreeMap::new();
        for operation in &operations {
            by_resource.entry(operation.resource).or_default().push(operation);
        }
        for (resource, operations) in &by_resource {
            capacity(resource, operations, &mut findings);
            tokens::check(resource, operations, self.sharers_may_share_a_token, &mut findings);
            losses(resource, operations, &fates, self.told_within, &mut findings);
        }
        lock_ids(&operations, &mut findings);
        for operation in &operations {
            if let Some(revived) = operation.grant.as_ref().and_then(|grant| grant.revived) {
                let text = format!("{} is held after it was lost or given back", operation.resource);
                findings.add(Rule::Revived, text, [operation.asked, revived]);
            }
            let killed = fates.get(operation.asked.actor.as_str()).is_some_and(|fate| fate.killed.is_some());
            if operation.grant.is_none() && !operation.ended_otherwise && !killed {
                let text = format!("a request for {} was never answered", operation.resource);
                findings.add(Rule::NotAnswered, text, [operation.asked]);
            }
        }
        findings.list
    }

    /// Panics with everything that breaks a rule.
    ///
    /// # Panics
    /// If anything does.
    pub fn assert_clean(&self) {
        let violations = self.check();
        if violations.is_empty() {
            return;
        }
        const SHOWN: usize = 8;
        let mut text: String = violations.iter().take(SHOWN).map(|v| format!("\n{v}")).collect();
        if violations.len() > SHOWN {
            text.push_str(&format!("\nand {} more", violations.len() - SHOWN));
        }
        panic!("the history of the run breaks the contract:{text}");
    }
}

pub(super) struct Findings {
    origin: u64,
    list: Vec<Violation>,
}

impl Findings {
    pub(super) fn add<'e>(
        &mut self,
        rule: Rule,
        text: impl Into<String>,
        events: impl IntoIterator<Item = &'e Event>,
    ) {
        let mut events: Vec<Event> = events.into_iter().cloned().collect();
        events.sort_by_key(|event| event.at);
        events.dedup();
        self.list.push(Violation { rule, text: text.into(), events, origin: self.origin });
    }
}

/// Goes through the moments at which somebody begins to hold, and adds up who holds then.
fn capacity(resource: &str, operations: &[&Operation<'_>], findings: &mut Findings) {
    let mut holds: Vec<_> = operations
        .iter()
        .filter_map(|operation| {
            operation.grant.as_ref().and_then(|grant| grant.held).map(|held| (*operation, held))
        })
        .collect();
    holds.sort_by_key(|(_, (first, _))| first.at);
    let mut together: Vec<&(&Operation<'_>, (&Event, &Event))> = Vec::new();
    for hold in &holds {
        let (operation, (begins, _)) = hold;
        together.retain(|(_, (_, last))| last.at >= begins.at);
        together.push(hold);
        let weight: u64 = together.iter().map(|(operation, _)| u64::from(operation.weight)).sum();
        let capacity =
            together.iter().map(|(operation, _)| operation.capacity).min().unwrap_or(operation.capacity);
        if weight > u64::from(capacity) {
            let text = format!("{} hold {weight} of {capacity} of {resource} together", together.len());
            let lines = together.iter().flat_map(|(operation, (first, last))| [operation.asked, first, last]);
            findings.add(Rule::HeldBeyondCapacity, text, lines);
        }
    }
}

/// A lock id on two requests, whatever they were for: also one that is granted again after its release.
fn lock_ids(operations: &[Operation<'_>], findings: &mut Findings) {
    let mut seen: HashMap<&str, &Operation<'_>> = HashMap::new();
    for operation in operations {
        let Some(grant) = &operation.grant else { continue };
        let Some(earlier) = seen.insert(grant.lock_id, operation) else { continue };
        let text = format!("the lock id {} was granted twice", grant.lock_id);
        let first = earlier.grant.as_ref();
        let lines = first.into_iter().flat_map(|first| [Some(first.told), first.giving_back]).flatten();
        findings.add(Rule::LockIdTwice, text, lines.chain([operation.asked, grant.told]));
    }
}

/// Whoever neither gave back nor died must have been told by the time somebody else got what excludes it.
fn losses(
    resource: &str,
    operations: &[&Operation<'_>],
    fates: &HashMap<&str, Fate>,
    told_within: Duration,
    findings: &mut Findings,
) {
    let leeway = u64::try_from(told_within.as_nanos()).unwrap_or(u64::MAX);
    for operation in operations {
        let Some(grant) = &operation.grant else { continue };
        let next = operations
            .iter()
            .filter_map(|next| next.grant.as_ref().map(|grant| (*next, grant)))
            .filter(|(next, later)| later.told.at > grant.told.at && operation.excludes(next))
            .min_by_key(|(_, later)| later.told.at);
        let Some((_, next)) = next else { continue };
        let fate = fates.get(operation.asked.actor.as_str());
        let silenced =
            fate.and_then(|fate| fate.killed).is_some_and(|at| at <= next.told.at.saturating_add(leeway));
        let ended = [grant.lost, grant.giving_back].into_iter().flatten().map(|event| event.at).min();
        // A paused process can be told only when it goes on.
        let pauses = fate.map(|fate| &fate.pauses[..]).unwrap_or_default();
        let paused = pauses.iter().find(|(from, until)| {
            *from <= next.told.at.saturating_add(leeway) && until.is_none_or(|until| until >= next.told.at)
        });
        let due = match paused {
            Some((_, None)) => continue,
            Some((_, Some(until))) => until.saturating_add(leeway),
            None => next.told.at.saturating_add(leeway),
        };
        if silenced || ended.is_some_and(|at| at <= due) {
            continue;
        }
        let text = format!("a holder of {resource} was not told that somebody else has it");
        findings.add(
            Rule::LossNotTold,
            text,
            [Some(grant.told), Some(next.told), grant.lost].into_iter().flatten(),
        );
    }
}
