//! The history of a run and the rules that it must satisfy.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::event::Event;
use super::operation::{ActorLifetime, Operation, Operations};
use super::record::Recorder;
use super::tokens;

/// A rule that every run must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// The guards that report held at one moment exceed the capacity.
    CapacityExceeded,
    /// A later grant has a lower token.
    TokenNotIncreasing,
    /// Two grants of one resource have the same token.
    DuplicateToken,
    /// One lock id was used for two acquisitions.
    DuplicateLockId,
    /// A guard reports held after it was lost or released.
    HeldAfterLoss,
    /// A holder lost its lock and did not report the loss within the limit after the next grant.
    LossNotReported,
    /// A request was neither answered nor cancelled, and its actor was not killed.
    Unanswered,
    /// The log is inconsistent: a defect of the test itself.
    MalformedLog,
}

/// One violation of a rule, with the events that prove it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What happened, in one line.
    pub text: String,
    /// The events that prove it, by time.
    pub events: Vec<Event>,
    /// The time of the first event of the run.
    origin: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)?;
        self.events.iter().try_for_each(|event| write!(f, "\n    {}", event.format(self.origin)))
    }
}

/// The merged events of all actors, by time.
#[derive(Clone, Debug)]
pub struct History {
    events: Vec<Event>,
    loss_reported_within: Duration,
    allow_shared_tokens: bool,
}

impl History {
    /// Creates a history of these events, in any order.
    #[must_use]
    pub fn new(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.at);
        History { events, loss_reported_within: Duration::from_secs(5), allow_shared_tokens: false }
    }

    /// Merges all logs of a folder. An incomplete last line, as a killed process leaves it, is ignored.
    ///
    /// # Panics
    /// If the folder cannot be read, or a complete line is not an event.
    #[must_use]
    pub fn read(folder: &Path) -> Self {
        let mut events = Vec::new();
        for path in Recorder::logs(folder) {
            let text = std::fs::read_to_string(&path).expect("a log can be read");
            let complete = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in complete.lines() {
                let event = serde_json::from_str(line);
                events.push(event.unwrap_or_else(|error| panic!("{}: {error}: {line}", path.display())));
            }
        }
        History::new(events)
    }

    /// Sets how long after the next grant a loss must be reported. Default 5 s. This limit only bounds how fast the
    /// test records the loss; [`Rule::CapacityExceeded`] has no such tolerance.
    #[must_use]
    pub fn loss_reported_within(mut self, limit: Duration) -> Self {
        self.loss_reported_within = limit;
        self
    }

    /// Lets compatible holders (readers) that requested concurrently have the same token. A quorum needs this: its nodes
    /// may see them in different orders. A request made after another one's grant still needs a higher token.
    #[must_use]
    pub fn allow_shared_tokens(mut self, allow: bool) -> Self {
        self.allow_shared_tokens = allow;
        self
    }

    /// The events, by time.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The number of grants of each actor.
    #[must_use]
    pub fn grants(&self) -> BTreeMap<String, usize> {
        let mut grants = BTreeMap::new();
        let operations = Operations::assemble(&self.events).operations;
        for operation in operations.iter().filter(|operation| operation.grant.is_some()) {
            *grants.entry(operation.requested.actor.clone()).or_default() += 1;
        }
        grants
    }

    /// All violations.
    #[must_use]
    pub fn check(&self) -> Vec<Violation> {
        let Operations { operations, lifetimes, unmatched } = Operations::assemble(&self.events);
        let mut violations =
            Violations { origin: self.events.first().map_or(0, |event| event.at), list: Vec::new() };
        if !unmatched.is_empty() {
            let text = "these events belong to no request, or come in an impossible order";
            violations.add(Rule::MalformedLog, text, unmatched);
        }
        let mut by_resource: BTreeMap<&str, Vec<&Operation<'_>>> = BTreeMap::new();
        for operation in &operations {
            by_resource.entry(operation.resource).or_default().push(operation);
        }
        for (resource, operations) in &by_resource {
            check_capacity(resource, operations, &mut violations);
            tokens::check(resource, operations, self.allow_shared_tokens, &mut violations);
            check_losses(resource, operations, &lifetimes, self.loss_reported_within, &mut violations);
        }
        check_lock_ids(&operations, &mut violations);
        for operation in &operations {
            if let Some(event) = operation.grant.as_ref().and_then(|grant| grant.held_after_loss) {
                let text = format!("{} is held after it was lost or released", operation.resource);
                violations.add(Rule::HeldAfterLoss, text, [operation.requested, event]);
            }
            let killed = lifetimes
                .get(operation.requested.actor.as_str())
                .is_some_and(|lifetime| lifetime.killed.is_some());
            if operation.grant.is_none() && !operation.ended_without_grant && !killed {
                let text = format!("a request for {} was never answered", operation.resource);
                violations.add(Rule::Unanswered, text, [operation.requested]);
            }
        }
        violations.list
    }

    /// Asserts that there is no violation.
    ///
    /// # Panics
    /// With the violations, if there are any.
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
        panic!("the history of the run violates the contract:{text}");
    }
}

pub(super) struct Violations {
    origin: u64,
    list: Vec<Violation>,
}

impl Violations {
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

/// Adds up the weights of all holders at each moment at which a hold begins.
fn check_capacity(resource: &str, operations: &[&Operation<'_>], violations: &mut Violations) {
    let mut holds: Vec<_> = operations
        .iter()
        .filter_map(|operation| {
            operation.grant.as_ref().and_then(|grant| grant.held).map(|held| (*operation, held))
        })
        .collect();
    holds.sort_by_key(|(_, (first, _))| first.at);
    let mut concurrent: Vec<&(&Operation<'_>, (&Event, &Event))> = Vec::new();
    for hold in &holds {
        let (operation, (begins, _)) = hold;
        concurrent.retain(|(_, (_, last))| last.at >= begins.at);
        concurrent.push(hold);
        let weight: u64 = concurrent.iter().map(|(operation, _)| u64::from(operation.weight)).sum();
        let capacity =
            concurrent.iter().map(|(operation, _)| operation.capacity).min().unwrap_or(operation.capacity);
        if weight > u64::from(capacity) {
            let text = format!("{} holders hold {weight} of {capacity} of {resource}", concurrent.len());
            let events =
                concurrent.iter().flat_map(|(operation, (first, last))| [operation.requested, first, last]);
            violations.add(Rule::CapacityExceeded, text, events);
        }
    }
}

/// Finds a lock id on two requests, also if the first one was released before.
fn check_lock_ids(operations: &[Operation<'_>], violations: &mut Violations) {
    let mut seen: HashMap<&str, &Operation<'_>> = HashMap::new();
    for operation in operations {
        let Some(grant) = &operation.grant else { continue };
        let Some(earlier) = seen.insert(grant.lock_id, operation) else { continue };
        let text = format!("the lock id {} was granted twice", grant.lock_id);
        let first = earlier.grant.as_ref();
        let events = first.into_iter().flat_map(|first| [Some(first.event), first.releasing]).flatten();
        violations.add(Rule::DuplicateLockId, text, events.chain([operation.requested, grant.event]));
    }
}

/// A holder that neither released nor died must report its loss once a conflicting request is granted.
fn check_losses(
    resource: &str,
    operations: &[&Operation<'_>],
    lifetimes: &HashMap<&str, ActorLifetime>,
    limit: Duration,
    violations: &mut Violations,
) {
    let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    for operation in operations {
        let Some(grant) = &operation.grant else { continue };
        let next = operations
            .iter()
            .filter_map(|next| next.grant.as_ref().map(|grant| (*next, grant)))
            .filter(|(next, later)| later.event.at > grant.event.at && operation.excludes(next))
            .min_by_key(|(_, later)| later.event.at);
        let Some((_, next)) = next else { continue };
        let deadline = next.event.at.saturating_add(limit);
        let lifetime = lifetimes.get(operation.requested.actor.as_str());
        let killed = lifetime.and_then(|lifetime| lifetime.killed).is_some_and(|at| at <= deadline);
        let ended = [grant.lost, grant.releasing].into_iter().flatten().map(|event| event.at).min();
        // A paused process can report only after it resumes.
        let pauses = lifetime.map(|lifetime| &lifetime.pauses[..]).unwrap_or_default();
        let paused = pauses
            .iter()
            .find(|(from, until)| *from <= deadline && until.is_none_or(|until| until >= next.event.at));
        let due = match paused {
            Some((_, None)) => continue,
            Some((_, Some(until))) => until.saturating_add(limit),
            None => deadline,
        };
        if killed || ended.is_some_and(|at| at <= due) {
            continue;
        }
        let text = format!("a holder of {resource} did not report its loss after the next grant");
        let events = [Some(grant.event), Some(next.event), grant.lost].into_iter().flatten();
        violations.add(Rule::LossNotReported, text, events);
    }
}
