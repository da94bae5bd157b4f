//! The rules for fencing tokens.

use std::collections::HashMap;

use super::check::{Rule, Violations};
use super::operation::{Grant, Operation};

/// Checks all grants of one resource.
pub(super) fn check(
    resource: &str,
    operations: &[&Operation<'_>],
    allow_shared: bool,
    violations: &mut Violations,
) {
    let mut grants: Vec<(&Operation<'_>, &Grant<'_>)> = operations
        .iter()
        .filter_map(|operation| operation.grant.as_ref().map(|grant| (*operation, grant)))
        .collect();
    grants.sort_by_key(|(_, grant)| grant.event.at);
    check_duplicates(resource, &grants, allow_shared, violations);
    check_granted_before_request(resource, &grants, violations);
    check_sequential_holds(resource, &grants, violations);
}

fn check_duplicates(
    resource: &str,
    grants: &[(&Operation<'_>, &Grant<'_>)],
    allow_shared: bool,
    violations: &mut Violations,
) {
    let mut seen: HashMap<u64, (&Operation<'_>, &Grant<'_>)> = HashMap::new();
    for (operation, grant) in grants {
        let Some((other, earlier)) = seen.insert(grant.token, (operation, grant)) else { continue };
        // `Rule::DuplicateLockId` covers the same lock id.
        let same = earlier.lock_id == grant.lock_id;
        let concurrent = operation.requested.at <= earlier.event.at;
        let shared = allow_shared && concurrent && !operation.excludes(other);
        if !same && !shared {
            let text = format!("token {} of {resource} was granted twice", grant.token);
            violations.add(Rule::DuplicateToken, text, [earlier.event, grant.event]);
        }
    }
}

/// A grant made before another request has the lower token, for every kind of lock.
fn check_granted_before_request(
    resource: &str,
    grants: &[(&Operation<'_>, &Grant<'_>)],
    violations: &mut Violations,
) {
    let mut by_request: Vec<_> = grants.to_vec();
    by_request.sort_by_key(|(operation, _)| operation.requested.at);
    let mut by_grant = grants.iter().map(|(_, grant)| *grant).peekable();
    let mut highest: Option<&Grant<'_>> = None;
    for (operation, grant) in by_request {
        while let Some(earlier) = by_grant.next_if(|earlier| earlier.event.at < operation.requested.at) {
            if highest.is_none_or(|highest| highest.token < earlier.token) {
                highest = Some(earlier);
            }
        }
        if let Some(earlier) = highest.filter(|earlier| earlier.token > grant.token) {
            not_increasing(resource, earlier, (operation, grant), violations);
        }
    }
}

/// Of two conflicting holds, the later one has the higher token even if both were requested before the first grant: the
/// store decided on the second after the first ended.
fn check_sequential_holds(
    resource: &str,
    grants: &[(&Operation<'_>, &Grant<'_>)],
    violations: &mut Violations,
) {
    for (at, (operation, grant)) in grants.iter().enumerate() {
        let Some((_, ended)) = grant.interval() else { continue };
        let later = grants[at + 1..].iter().find(|(other, later)| {
            let after = later.interval().is_some_and(|(begun, _)| begun > ended);
            // The other case is covered by `check_granted_before_request`.
            let requested_before = other.requested.at <= grant.event.at;
            after && requested_before && operation.excludes(other) && later.token < grant.token
        });
        if let Some((other, later)) = later {
            not_increasing(resource, grant, (other, later), violations);
        }
    }
}

fn not_increasing(
    resource: &str,
    earlier: &Grant<'_>,
    (operation, grant): (&Operation<'_>, &Grant<'_>),
    violations: &mut Violations,
) {
    let text = format!("token {} of {resource} comes after {}", grant.token, earlier.token);
    let last_held = earlier.held.map(|(_, last)| last);
    let events = [Some(earlier.event), last_held, Some(operation.requested), Some(grant.event)];
    violations.add(Rule::TokenNotIncreasing, text, events.into_iter().flatten());
}
