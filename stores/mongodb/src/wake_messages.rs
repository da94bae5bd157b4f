//! Wake-ups as text. They travel in the field `wake` of a document in the queue collection, one message per line: the
//! address of a process, a lock id, a verb and its arguments, separated by spaces.
//!
//! | verb | arguments | meaning |
//! | --- | --- | --- |
//! | `G` | token, milliseconds since the decision on the waiter's newest attempt, window, number of that attempt | a pool was granted to this waiter |
//! | `R` | any | this waiter should try again |
//! | `B` | any | the lock of this holder was broken |

use std::borrow::Cow;

use distlock_core::LockId;
use distlock_core::store::support::wake_codec::{Field, GrantFormat, Unit};
use distlock_core::store::{Inbox, Wake};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// The address of an inbox: a hash, so that it can stand in a pattern whatever the inbox is called. If two inboxes ever
/// share one, each receives some of the other's messages and finds no waiter for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InboxAddress(String);

impl InboxAddress {
    pub(crate) fn of(inbox: &Inbox) -> Self {
        // FNV-1a: the same in every build of every version.
        let hash = inbox.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        InboxAddress(format!("{hash:016x}"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a lock id names the inbox it belongs to. An engine makes its lock ids of its inbox and a number.
pub(crate) fn names_inbox(lock_id: &LockId, inbox: &Inbox) -> bool {
    let number = lock_id.as_str().strip_prefix(inbox.as_str()).and_then(|rest| rest.strip_prefix('-'));
    number
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
}

/// A pattern for the lock ids that name this inbox.
pub(crate) fn lock_ids_of(inbox: &Inbox) -> String {
    let mut pattern = String::from("^");
    for c in inbox.as_str().chars() {
        if c.is_ascii_alphanumeric() || !c.is_ascii() {
            pattern.push(c);
        } else {
            // A code point in braces has no special meaning in a pattern, and NUL is not allowed in one.
            pattern.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
        }
    }
    pattern.push_str("-[0-9a-f]+$");
    pattern
}

const GRANT: GrantFormat = GrantFormat {
    unit: Unit::Milliseconds,
    fields: &[Field::Token, Field::After, Field::Window, Field::Attempt],
};
/// The format of an earlier version. Its attempt is zero, which no waiter accepts: it tries again.
const GRANT_WITHOUT_ATTEMPT: GrantFormat =
    GrantFormat { unit: Unit::Milliseconds, fields: &[Field::Token, Field::After, Field::Window] };

const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// How messages to a lock id begin: the address of its inbox and the lock id.
pub(crate) fn recipient(lock_id: &LockId, inbox: &Inbox) -> String {
    let lock_id: Cow<'_, str> = utf8_percent_encode(lock_id.as_str(), ESCAPED).into();
    format!("{} {lock_id}", InboxAddress::of(inbox).as_str())
}

/// The address in a message or a [`recipient`].
pub(crate) fn address_of(message: &str) -> &str {
    message.split_once(' ').map_or(message, |(address, _)| address)
}

/// The wake-ups for an address. Messages that cannot be read are left out: wake-ups are hints.
pub(crate) fn parse(text: &str, address: &InboxAddress) -> Vec<Wake> {
    text.lines().filter_map(|message| parse_one(message, address)).collect()
}

fn parse_one(message: &str, address: &InboxAddress) -> Option<Wake> {
    let rest = message.strip_prefix(address.as_str())?.strip_prefix(' ')?;
    let (lock_id, rest) = rest.split_once(' ')?;
    let lock_id = percent_decode_str(lock_id).decode_utf8().ok().map(LockId::from_stored)?;
    let (verb, arguments) = rest.split_once(' ')?;
    match verb {
        "G" => {
            let grant = GRANT.parse(arguments).or_else(|| GRANT_WITHOUT_ATTEMPT.parse(arguments));
            grant.map(|(grant, _)| Wake::granted(lock_id, grant))
        }
        "R" => Some(Wake::retry(lock_id)),
        "B" => Some(Wake::broken(lock_id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn id(text: &str) -> LockId {
        LockId::from_stored(text)
    }

    #[test]
    fn messages_survive_any_lock_id() {
        for lock_id in ["web-3:812#00ff-1", "a b", "100%", "line\nbreak", "ü", ""] {
            let (lock_id, inbox) = (id(lock_id), Inbox::new("web 3"));
            let recipient = recipient(&lock_id, &inbox);
            let address = InboxAddress::of(&inbox);
            let granted = |text: &str| match &parse(text, &address)[..] {
                [Wake::Granted { lock_id: told, grant, .. }] => {
                    assert_eq!(*told, lock_id);
                    *grant
                }
                other => panic!("{other:?}"),
            };
            let grant = granted(&format!("{recipient} G 17 5 2000 3"));
            assert_eq!((grant.token.get(), grant.attempt), (17, 3));
            assert_eq!((grant.after, grant.window), (Duration::from_millis(5), Duration::from_secs(2)));
            assert_eq!(granted(&format!("{recipient} G 17 5 2000")).attempt, 0);
            let both = parse(&format!("{recipient} B 1\n{recipient} R 1\n{recipient} N -"), &address);
            assert!(
                matches!(&both[..], [Wake::Broken { lock_id: one, .. }, Wake::Retry { lock_id: two, .. }]
                    if *one == lock_id && *two == lock_id),
                "{both:?}"
            );
            assert!(
                parse(&format!("{recipient} G 17 5 2000"), &InboxAddress::of(&Inbox::new("other")))
                    .is_empty()
            );
        }
    }

    #[test]
    fn only_lock_ids_that_an_engine_made_name_their_inbox() {
        let ids = distlock_core::LockIds::new("web-3:812");
        let inbox = Inbox::new(ids.prefix());
        assert!(names_inbox(&ids.next(), &inbox));
        for other in ["x", "", "web-3:812", &format!("{}-", ids.prefix()), &format!("{}-1~2", ids.prefix())] {
            assert!(!names_inbox(&id(other), &inbox), "{other}");
        }
        assert!(lock_ids_of(&Inbox::new("a.b")).starts_with(r"^a\x{2e}b-["));
    }
}
