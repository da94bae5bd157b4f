//! Wake-ups as text. They travel in the field `wake` of a document in the collection of queues, one message a line:
//! the address of a process, a lock id, a verb and its arguments, with spaces between.
//!
//! | verb | arguments | meaning |
//! | --- | --- | --- |
//! | `G` | token, milliseconds since the decision on its newest attempt, window, number of that attempt | a pool granted to this waiter |
//! | `R` | anything | this waiter should ask again |
//! | `B` | anything | the lock of this holder was broken |
//! | `N` | lock id, expiry, `d` or `r`, address; or `-` | who comes after this lock id in the line of a mutex |

use std::borrow::Cow;
use std::time::Duration;

use distlock_core::store::{Inbox, PushedGrant};
use distlock_core::{FencingToken, LockId};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// The address of an inbox: a number of its own, so that it can stand in a pattern whatever the inbox is called.
/// Should two ever share one, each hears some of the other's messages and finds no waiter for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address(String);

impl Address {
    pub(crate) fn of(inbox: &Inbox) -> Self {
        // FNV-1a: the same in every build of every version.
        let hash = inbox.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Address(format!("{hash:016x}"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a lock id says by itself which process it belongs to: engines make theirs of their inbox and a number.
pub(crate) fn speaks_for_itself(lock_id: &LockId, inbox: &Inbox) -> bool {
    let number = lock_id.as_str().strip_prefix(inbox.as_str()).and_then(|rest| rest.strip_prefix('-'));
    number
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
}

/// A pattern for the lock ids that speak for themselves and belong to this inbox.
pub(crate) fn own_lock_ids(inbox: &Inbox) -> String {
    let mut pattern = String::from("^");
    for c in inbox.as_str().chars() {
        if c.is_ascii_alphanumeric() || !c.is_ascii() {
            pattern.push(c);
        } else {
            // A code point in braces: no character of a pattern has a meaning then. NUL cannot stand in one.
            pattern.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
        }
    }
    pattern.push_str("-[0-9a-f]+$");
    pattern
}

const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

fn escape(lock_id: &LockId) -> Cow<'_, str> {
    utf8_percent_encode(lock_id.as_str(), ESCAPED).into()
}

fn unescape(text: &str) -> Option<LockId> {
    percent_decode_str(text).decode_utf8().ok().map(LockId::from_stored)
}

/// How messages to a waiter begin.
pub(crate) fn call(lock_id: &LockId, inbox: &Inbox) -> String {
    format!("{} {}", Address::of(inbox).as_str(), escape(lock_id))
}

/// The address in a [`call`].
pub(crate) fn address_in(call: &str) -> &str {
    call.split_once(' ').map_or(call, |(address, _)| address)
}

/// Who comes next in the line of a mutex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) lock_id: LockId,
    /// The expiry that it asked for.
    pub(crate) expiry: Duration,
    /// Whether its lock id speaks for itself: then the lock can be handed to it.
    pub(crate) direct: bool,
    pub(crate) address: String,
}

/// How the one before a waiter is told of it.
pub(crate) fn introduction(lock_id: &LockId, inbox: &Inbox, expiry: Duration) -> String {
    let how = if speaks_for_itself(lock_id, inbox) { 'd' } else { 'r' };
    format!("{} {} {how} {}", escape(lock_id), expiry.as_millis(), Address::of(inbox).as_str())
}

/// Reads an [`introduction`] back.
pub(crate) fn introduced(text: &str) -> Option<Next> {
    let mut words = text.split(' ');
    let lock_id = unescape(words.next()?)?;
    let expiry = Duration::from_millis(words.next()?.parse().ok()?);
    let direct = words.next()? == "d";
    Some(Next { lock_id, expiry, direct, address: words.next()?.to_owned() })
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Granted { lock_id: LockId, grant: PushedGrant },
    AskAgain { lock_id: LockId },
    Broken { lock_id: LockId },
    Next { lock_id: LockId, next: Option<Next> },
}

/// The messages for an address. What cannot be read is left out: messages are hints.
pub(crate) fn read(text: &str, address: &Address) -> Vec<Message> {
    text.lines().filter_map(|line| read_line(line, address)).collect()
}

fn read_line(line: &str, address: &Address) -> Option<Message> {
    let rest = line.strip_prefix(address.as_str())?.strip_prefix(' ')?;
    let (lock_id, rest) = rest.split_once(' ')?;
    let lock_id = unescape(lock_id)?;
    let (verb, rest) = rest.split_once(' ')?;
    match verb {
        "G" => {
            let mut numbers = rest.split(' ').map(str::parse::<u64>);
            let mut next = || numbers.next()?.ok();
            let token = FencingToken::new(next()?);
            let after = Duration::from_millis(next()?);
            let window = Duration::from_millis(next()?);
            // An earlier version does not say which attempt: the waiter asks again.
            let attempt = next().unwrap_or_default();
            Some(Message::Granted {
                lock_id,
                grant: PushedGrant::new(token, window).with_attempt(attempt).with_after(after),
            })
        }
        "R" => Some(Message::AskAgain { lock_id }),
        "B" => Some(Message::Broken { lock_id }),
        "N" if rest == "-" => Some(Message::Next { lock_id, next: None }),
        "N" => Some(Message::Next { lock_id, next: Some(introduced(rest)?) }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> LockId {
        LockId::from_stored(text)
    }

    #[test]
    fn what_is_written_is_read_back_whatever_the_lock_id() {
        for lock_id in ["web-3:812#00ff-1", "a b", "100%", "line\nbreak", "ü", ""] {
            let (lock_id, inbox) = (id(lock_id), Inbox::new("web 3"));
            let call = call(&lock_id, &inbox);
            let address = Address::of(&inbox);
            let granted = read(&format!("{call} G 17 5 2000 3"), &address);
            let grant = PushedGrant::new(FencingToken::new(17), Duration::from_secs(2))
                .with_attempt(3)
                .with_after(Duration::from_millis(5));
            assert_eq!(granted, [Message::Granted { lock_id: lock_id.clone(), grant }]);
            let grant = grant.with_attempt(0);
            let granted = read(&format!("{call} G 17 5 2000"), &address);
            assert_eq!(granted, [Message::Granted { lock_id: lock_id.clone(), grant }]);
            let broken = read(&format!("{call} B 1"), &address);
            assert_eq!(broken, [Message::Broken { lock_id: lock_id.clone() }]);
            let text = introduction(&lock_id, &inbox, Duration::from_secs(30));
            let next = introduced(&text).unwrap();
            assert_eq!((&next.lock_id, next.direct), (&lock_id, false));
            let told = read(&format!("{call} N {text}\n{call} N -\n{call} R 1"), &address);
            assert_eq!(told.len(), 3);
            assert_eq!(told[0], Message::Next { lock_id: lock_id.clone(), next: Some(next) });
            assert!(read(&format!("{call} G 17 5 2000"), &Address::of(&Inbox::new("other"))).is_empty());
        }
    }

    #[test]
    fn only_lock_ids_that_an_engine_made_speak_for_themselves() {
        let ids = distlock_core::LockIds::new("web-3:812");
        let inbox = Inbox::new(ids.prefix());
        assert!(speaks_for_itself(&ids.next(), &inbox));
        for other in ["x", "", "web-3:812", &format!("{}-", ids.prefix()), &format!("{}-1~2", ids.prefix())] {
            assert!(!speaks_for_itself(&id(other), &inbox), "{other}");
        }
        assert!(own_lock_ids(&Inbox::new("a.b")).starts_with(r"^a\x{2e}b-["));
    }
}
