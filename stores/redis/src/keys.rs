//! The names of our keys.
//!
//! | | |
//! | --- | --- |
//! | `distlock:orders` | the plain key of the mutex `orders`: the lock id, nothing else |
//! | `distlock:{Ab3}␀m:orders` | beside it: token, holder, waiters |
//! | `distlock:{Ab3}␀r:orders` | the reader-writer lock `orders` |
//! | `distlock:{Ab3}␀s:orders` | the semaphore `orders` |
//! | `distlock:{Ab3}␀t:orders` | the queue in front of the fair mutex `orders` |
//!
//! `␀` stands for the byte 0xFF. It occurs in no UTF-8 text, so whatever a mutex is called, its plain key is never one
//! of the others; and all of them begin with the prefix, as rights by pattern (`~distlock:*`) want it. `{Ab3}` is a
//! hash tag that puts them into the slot of the plain key. A prefix that has a hash tag itself needs no other.

use distlock_core::{Error, ErrorKind, Kind, Result};

use crate::slot::{hash_tag, slot_of, tag_for};

/// What our keys begin with unless it is set otherwise.
pub const DEFAULT_PREFIX: &str = "distlock:";

const LONGEST_PREFIX: usize = 128;
const MARK: u8 = 0xFF;

/// Makes the keys of one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
    tagged: bool,
}

/// The keys of one resource, and the slot that all of them are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourceKeys {
    pub(crate) slot: u16,
    /// The plain key, for a mutex only.
    pub(crate) plain: Option<Vec<u8>>,
    pub(crate) record: Vec<u8>,
}

/// What a key that was found belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// It is the plain key of a mutex, which any program may have written.
    pub(crate) plain: bool,
}

impl Default for Keys {
    fn default() -> Self {
        Keys { prefix: DEFAULT_PREFIX.to_owned(), tagged: false }
    }
}

impl Keys {
    /// Keys with this prefix, which may be empty.
    pub(crate) fn new(prefix: &str) -> Result<Self> {
        let refuse = |what: String, advice: &'static str| {
            Err(Error::new(ErrorKind::InvalidInput, what).doing("read the Redis options").advise(advice))
        };
        if prefix.len() > LONGEST_PREFIX || prefix.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return refuse(
                format!(
                    "the prefix {prefix:?} is longer than {LONGEST_PREFIX} bytes or holds spaces or controls"
                ),
                "use something short, such as app:",
            );
        }
        let tagged = hash_tag(prefix.as_bytes()).is_some();
        if prefix.contains('{') && !tagged {
            return refuse(
                format!("the prefix {prefix:?} has a {{ that begins no hash tag"),
                "leave it out, or write a whole tag such as {app}: to keep all locks in one slot",
            );
        }
        Ok(Keys { prefix: prefix.to_owned(), tagged })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What the channel of an inbox begins with.
    pub(crate) fn channel(&self) -> String {
        format!("{}inbox:", self.prefix)
    }

    pub(crate) fn of(&self, kind: Kind, name: &str) -> ResourceKeys {
        let mut plain = Vec::with_capacity(self.prefix.len() + name.len());
        plain.extend_from_slice(self.prefix.as_bytes());
        plain.extend_from_slice(name.as_bytes());
        let slot = slot_of(&plain);
        let mut record = Vec::with_capacity(plain.len() + 8);
        record.extend_from_slice(self.prefix.as_bytes());
        if !self.tagged {
            let [a, b, c] = tag_for(slot);
            record.extend_from_slice(&[b'{', a, b, c, b'}']);
        }
        record.extend_from_slice(&[MARK, letter(kind), b':']);
        record.extend_from_slice(name.as_bytes());
        let plain = (kind == Kind::Mutex).then_some(plain);
        ResourceKeys { slot, plain, record }
    }

    /// The resource that a key belongs to, if it can be ours.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Found> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?;
        let record = if self.tagged {
            rest.strip_prefix(&[MARK])
        } else {
            match rest {
                [b'{', _, _, _, b'}', MARK, record @ ..] => Some(record),
                _ => None,
            }
        };
        let (kind, name, plain) = match record {
            Some([letter, b':', name @ ..]) => (kind_of(*letter)?, name, false),
            Some(_) => return None,
            None => (Kind::Mutex, rest, true),
        };
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?.to_owned();
        Some(Found { kind, name, plain })
    }

    /// The pattern of SCAN that all our keys match.
    pub(crate) fn pattern(&self) -> String {
        let mut pattern = String::new();
        for c in self.prefix.chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('*');
        pattern
    }
}

fn letter(kind: Kind) -> u8 {
    match kind {
        Kind::Mutex => b'm',
        Kind::RwLock => b'r',
        Kind::Semaphore => b's',
        // A kind that is unknown here is refused before its keys are asked for.
        _ => b't',
    }
}

fn kind_of(letter: u8) -> Option<Kind> {
    match letter {
        b'm' => Some(Kind::Mutex),
        b'r' => Some(Kind::RwLock),
        b's' => Some(Kind::Semaphore),
        b't' => Some(Kind::Turn),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &[
        "orders/42",
        "a}b",
        "{}a",
        "{a}b",
        "a{b",
        "}{",
        "{{a}}",
        "x{y}z{w}",
        "ключ",
        " ",
        "{",
        "}",
        "{}",
        "m:orders",
    ];

    #[test]
    fn all_keys_of_a_resource_are_in_the_slot_of_its_plain_key() {
        for prefix in ["", DEFAULT_PREFIX, "a}", "{app}:", "x{y}", "p{q}{r}"] {
            let keys = Keys::new(prefix).unwrap();
            for name in NAMES {
                let plain = format!("{prefix}{name}");
                for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::Turn] {
                    let made = keys.of(kind, name);
                    assert_eq!(made.slot, slot_of(plain.as_bytes()), "{plain}");
                    assert_eq!(slot_of(&made.record), made.slot, "{plain}");
                    assert!(made.plain.is_none_or(|key| key == plain.as_bytes()));
                }
            }
        }
    }

    #[test]
    fn keys_are_read_back_and_never_meet() {
        for prefix in ["", DEFAULT_PREFIX, "{app}:"] {
            let keys = Keys::new(prefix).unwrap();
            let mut seen = std::collections::HashSet::new();
            for name in NAMES {
                for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::Turn] {
                    let made = keys.of(kind, name);
                    let found = Found { kind, name: (*name).to_owned(), plain: false };
                    assert_eq!(keys.parse(&made.record), Some(found));
                    assert!(seen.insert(made.record));
                    if let Some(plain) = made.plain {
                        let found = Found { kind, name: (*name).to_owned(), plain: true };
                        assert_eq!(keys.parse(&plain), Some(found));
                        assert!(seen.insert(plain));
                    }
                }
            }
        }
        assert_eq!(Keys::new("app:").unwrap().parse(b"other"), None);
    }

    #[test]
    fn prefixes_that_would_split_a_resource_are_refused() {
        for bad in ["a{b", "{}", "{", "a b", "a\n", &"x".repeat(129)] {
            assert_eq!(Keys::new(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
        }
    }

    #[test]
    fn a_prefix_with_wildcards_finds_only_itself() {
        assert_eq!(Keys::new("a*[b]:").unwrap().pattern(), r"a\*\[b\]:*");
    }
}
