//! What is said to the scripts about claims and leases, and what their answers mean.

use std::time::Duration;

use distlock_core::store::{Attempt, Claim, Lease, Released, Renewal};
use distlock_core::{Error, ErrorKind, FencingToken, Kind, RecordKind, Resource, Result};
use redis::Value;

use crate::keys::Keys;
use crate::net::Answer;
use crate::script::{Item, MOST_WORDS, Scope, Word};
use crate::trouble;

/// An inbox is never empty and has no spaces.
const NO_INBOX: &str = "-";

/// Where the inbox of a claim stands.
const INBOX: usize = 4;

/// What the scripts answer for an item that failed alone.
const FAILED: i64 = 9;

/// What they answer where so many gone waiters stand before a live one that the next call has to continue. Of a
/// release: it was released, and nothing was ours.
const UNFINISHED: i64 = 5;
const UNFINISHED_NOT_OURS: i64 = 6;

/// Whole milliseconds, rounded up: a store may keep a lease longer than asked, never shorter.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    let whole = u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
    // PEXPIRE adds this to the clock; what does not fit is an error there.
    whole.clamp(1, 1 << 50)
}

fn item<'a, const N: usize>(keys: &'a Keys, resource: &'a Resource, said: [Word<'a>; N]) -> Item<'a> {
    let keys = keys.of(resource.kind(), resource.name());
    let mut words = [Word::Number(0); MOST_WORDS];
    // Beside claims that wait, one that does not has no time to wait either, and no inbox.
    words[INBOX] = Word::Text(NO_INBOX);
    words[..N].copy_from_slice(&said);
    Item { keys, scope: Scope::Whole, words, used: N }
}

fn is_lock(resource: &Resource) -> bool {
    resource.kind().record() == RecordKind::Lock
}

/// A claim. `push`: whether a release may grant to it, so that a message is all it needs.
pub(crate) fn claim_item<'a>(keys: &'a Keys, claim: &'a Claim, push: bool) -> Item<'a> {
    let lock = is_lock(&claim.resource);
    let id = Word::Text(claim.lock_id.as_str());
    let expiry = Word::Number(milliseconds(claim.expiry));
    let (ttl, inbox, attempt) = match &claim.waiting {
        Some(waiting) => (milliseconds(waiting.ttl), waiting.inbox.as_str(), waiting.attempt),
        // What does not wait says as little as possible: it is what most claims are.
        None if lock => {
            let mode = if claim.no_overtaking { "o-t" } else { "o" };
            return item(keys, &claim.resource, [Word::Text(mode), id, expiry]);
        }
        None => (0, NO_INBOX, 0),
    };
    let mode = match (lock, push, claim.no_overtaking) {
        (true, true, false) => "lg",
        (true, true, true) => "lgt",
        (true, false, false) => "lr",
        (true, false, true) => "lrt",
        (false, true, _) => "pg",
        (false, false, _) => "pr",
    };
    let said = [Word::Text(mode), id, expiry, Word::Number(ttl), Word::Text(inbox), Word::Number(attempt)];
    if lock {
        return item(keys, &claim.resource, said);
    }
    let [a, b, c, d, e, f] = said;
    let (weight, capacity) = (Word::Number(claim.weight.into()), Word::Number(claim.capacity.into()));
    item(keys, &claim.resource, [a, b, c, d, e, f, weight, capacity])
}

fn mode_of(resource: &Resource) -> Word<'static> {
    Word::Text(if is_lock(resource) { "l" } else { "p" })
}

pub(crate) fn renew_item<'a>(keys: &'a Keys, lease: &'a Lease) -> Item<'a> {
    let said = [
        mode_of(&lease.resource),
        Word::Text(lease.lock_id.as_str()),
        Word::Number(milliseconds(lease.expiry)),
        Word::Number(lease.token.get()),
    ];
    Item { scope: Scope::Holder, ..item(keys, &lease.resource, said) }
}

pub(crate) fn release_item<'a>(keys: &'a Keys, lease: &'a Lease) -> Item<'a> {
    item(keys, &lease.resource, [mode_of(&lease.resource), Word::Text(lease.lock_id.as_str())])
}

/// A look at a resource and at its waiters from this number on.
pub(crate) fn look_item<'a>(keys: &'a Keys, resource: &'a Resource, from: u64) -> Item<'a> {
    item(keys, resource, [mode_of(resource), Word::Text("0"), Word::Number(from)])
}

/// Takes a resource from its holders.
pub(crate) fn break_item<'a>(keys: &'a Keys, resource: &'a Resource) -> Item<'a> {
    item(keys, resource, [mode_of(resource), Word::Text("1"), Word::Number(0)])
}

/// A code and a number, or the error that the item failed with.
fn numbers(answer: &Answer) -> Result<(i64, i64)> {
    match &answer.values {
        [Value::Int(FAILED), Value::BulkString(text)] => {
            Err(trouble::refused(&String::from_utf8_lossy(text)))
        }
        [Value::Int(code), Value::Int(value)] => Ok((*code, *value)),
        other => Err(trouble::nonsense(other)),
    }
}

/// A code alone, or the error that the item failed with.
fn code(answer: &Answer) -> Result<i64> {
    match &answer.values[0] {
        Value::Int(code) => Ok(*code),
        Value::BulkString(text) => Err(trouble::refused(&String::from_utf8_lossy(text))),
        other => Err(trouble::nonsense(other)),
    }
}

/// Fewer replicas confirmed than were asked for. The step was taken all the same.
fn unconfirmed() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "fewer replicas confirmed it in time than distlock.min_replicas asks for",
    )
    .with_unknown_outcome()
    .advise("bring the replicas back, or ask for fewer")
}

/// Whether the same item must be sent again: one call sees off only so many gone waiters, since it holds up every other
/// client of the server.
pub(crate) fn is_unfinished(answer: &Result<Answer>) -> bool {
    let code = answer.as_ref().ok().map(|answer| &answer.values[0]);
    matches!(code, Some(Value::Int(UNFINISHED | UNFINISHED_NOT_OURS)))
}

/// What came of an item that was unfinished and was sent again. What was released once stays released, whatever the next
/// call says.
pub(crate) fn continued(before: &Result<Answer>, next: Result<Answer>) -> Result<Answer> {
    let released = matches!(before, Ok(Answer { values: [Value::Int(UNFINISHED), Value::Nil], .. }));
    match next {
        Ok(mut next) if released => {
            next.values[0] = match next.values[0] {
                Value::Int(0) => Value::Int(1),
                Value::Int(UNFINISHED_NOT_OURS) => Value::Int(UNFINISHED),
                ref other => other.clone(),
            };
            Ok(next)
        }
        Err(_) if released => Ok(Answer { values: [Value::Int(1), Value::Nil], confirmed: true }),
        other => other,
    }
}

pub(crate) fn attempt(claim: &Claim, answer: &Answer) -> Result<Attempt> {
    match numbers(answer)? {
        (1, token) => match u64::try_from(token) {
            Ok(_) if !answer.confirmed => Err(unconfirmed()),
            Ok(token) => Ok(Attempt::granted(FencingToken::new(token))),
            Err(_) => Err(trouble::nonsense(token)),
        },
        // A key lives through the whole of its last millisecond.
        (0, left) => Ok(Attempt::busy(
            u64::try_from(left).ok().map(|left| Duration::from_millis(left.saturating_add(1))),
        )),
        (UNFINISHED, _) => Ok(Attempt::busy(Duration::ZERO)),
        (2, theirs) => {
            let ours = claim.capacity;
            Err(Error::new(
                ErrorKind::Mismatch,
                format!("it is in use with a capacity of {theirs}, and {ours} was asked for"),
            )
            .about(&claim.resource)
            .advise("use one capacity everywhere; it can change once nobody holds it or waits for it"))
        }
        other => Err(trouble::nonsense(other)),
    }
}

pub(crate) fn renewal(answer: &Answer) -> Result<Renewal> {
    match code(answer)? {
        1 if !answer.confirmed => Err(unconfirmed()),
        1 => Ok(Renewal::Renewed),
        0 => Ok(Renewal::NotYours),
        other => Err(trouble::nonsense(other)),
    }
}

pub(crate) fn released(answer: &Answer) -> Result<Released> {
    match code(answer)? {
        0 | UNFINISHED_NOT_OURS => Ok(Released::NotYours),
        1 | UNFINISHED => Ok(Released::Done { woke: false }),
        2 => Ok(Released::Done { woke: true }),
        other => Err(trouble::nonsense(other)),
    }
}

/// The kinds whose keys we know how to make.
pub(crate) const KINDS: [Kind; 4] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue];
