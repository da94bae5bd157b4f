//! The rules for fencing tokens.

use std::collections::HashMap;

use super::check::{Findings, Rule};
use super::operation::{Grant, Operation};

/// Checks all grants of one resource.
pub(super) fn check(
    resource: &str,
    operations: &[&Operation<'_>],
    sharers_may_share: bool,
    findings: &mut Findings,
) {
    let mut grants: Vec<(&Operation<'_>, &Grant<'_>)> = operations
        .iter()
        .filter_map(|operation| operation.grant.as_ref().map(|grant| (*operation, grant)))
        .collect();
    grants.sort_by_key(|(_, grant)| grant.told.at);
    twice(resource, &grants, sharers_may_share, findings);
    told_before_asked(resource, &grants, findings);
    one_after_the_other(resource, &grants, findings);
}

fn twice(
    resource: &str,
    grants: &[(&Operation<'_>, &Grant<'_>)],
    sharers_may_share: bool,
    findings: &mut Findings,
) {
    let mut seen: HashMap<u64, (&Operation<'_>, &Grant<'_>)> = HashMap::new();
    for (operation, grant) in grants {
        let Some((other, earlier)) = seen.insert(grant.token, (operation, grant)) else { continue };
        // One lock id twice is another rule's business.
        let same = earlier.lock_id == grant.lock_id;
        let at_the_same_time = operation.asked.at <= earlier.told.at;
        let shared = sharers_may_share && at_the_same_time && !operation.excludes(other);
        if !same && !shared {
            let text = format!("token {} of {resource} was given out twice", grant.token);
            findings.add(Rule::TokenTwice, text, [earlier.told, grant.told]);
        }
    }
}

/// Whatever was granted before we even asked has a lower token than ours: for every kind of lock.
fn told_before_asked(resource: &str, grants: &[(&Operation<'_>, &Grant<'_>)], findings: &mut Findings) {
    let mut asks: Vec<_> = grants.to_vec();
    asks.sort_by_key(|(operation, _)| operation.asked.at);
    let mut told = grants.iter().map(|(_, grant)| *grant).peekable();
    let mut highest: Option<&Grant<'_>> = None;
    for (operation, grant) in asks {
        while let Some(earlier) = told.next_if(|earlier| earlier.told.at < operation.asked.at) {
            if highest.is_none_or(|highest| highest.token < earlier.token) {
                highest = Some(earlier);
            }
        }
        if let Some(earlier) = highest.filter(|earlier| earlier.token > grant.token) {
            not_higher(resource, earlier, (operation, grant), findings);
        }
    }
}

/// Of two that exclude each other and were held one after the other, the later one has the higher token, although
/// both had asked before: the store decided on the second one after the first one's end.
fn one_after_the_other(resource: &str, grants: &[(&Operation<'_>, &Grant<'_>)], findings: &mut Findings) {
    for (at, (operation, grant)) in grants.iter().enumerate() {
        let Some((_, ended)) = grant.interval() else { continue };
        let later = grants[at + 1..].iter().find(|(other, later)| {
            let after = later.interval().is_some_and(|(begun, _)| begun > ended);
            // Otherwise the rule above has said it.
            let had_asked = other.asked.at <= grant.told.at;
            after && had_asked && operation.excludes(other) && later.token < grant.token
        });
        if let Some((other, later)) = later {
            not_higher(resource, grant, (other, later), findings);
        }
    }
}

fn not_higher(
    resource: &str,
    earlier: &Grant<'_>,
    (operation, grant): (&Operation<'_>, &Grant<'_>),
    findings: &mut Findings,
) {
    let text = format!("token {} of {resource} comes after {}", grant.token, earlier.token);
    let lines =
        [Some(earlier.told), earlier.held.map(|(_, last)| last), Some(operation.asked), Some(grant.told)];
    findings.add(Rule::TokenNotHigher, text, lines.into_iter().flatten());
}
