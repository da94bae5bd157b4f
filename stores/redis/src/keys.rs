//! The names of our keys.
//!
//! | | |
//! | --- | --- |
//! | `distlock:orders` | the plain key of the mutex `orders`: the lock id, nothing else |
//! | `distlock:{Ab3}␀m:orders` | beside it: the token, since when and for whom |
//! | `distlock:{Ab3}␀w:orders` | those who wait for it, while anybody does |
//! | `distlock:{Ab3}␀r:orders` | the reader-writer lock `orders` |
//! | `distlock:{Ab3}␀s:orders` | the semaphore `orders` |
//! | `distlock:{Ab3}␀t:orders` | the queue in front of the fair mutex `orders` |
//!
//! `␀` stands for the byte 0xFF. It occurs in no UTF-8 text, so whatever a mutex is called, its plain key is never one
//! of the others; and all of them begin with the prefix, as rights by pattern (`~distlock:*`) want it. `{Ab3}` is a
//! hash tag that puts them into the slot of the plain key. A prefix that has a hash tag itself needs no other.

use distlock_core::{Error, ErrorKind, Kind, Result};

use redis::{RedisWrite, ToRedisArgs};

use crate::slot::{SLOTS, crc16, hash_tag, tag_for};

/// What our keys begin with unless it is set otherwise.
pub const DEFAULT_PREFIX: &str = "distlock:";

const LONGEST_PREFIX: usize = 128;
const MARK: u8 = 0xFF;

/// Makes the keys of one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
    /// The slot of all keys, if the prefix has a hash tag.
    slot: Option<u16>,
    /// The checksum of the prefix, with which that of a whole key begins.
    checksum: u16,
}

/// One key of a resource. It is put together where it is written, since a request has many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    prefix: &'a str,
    /// The tag and the letter; `None` for the plain key.
    beside: Option<(Option<[u8; 3]>, u8)>,
    name: &'a str,
}

/// The keys of one resource, and the slot that all of them are in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceKeys<'a> {
    pub(crate) slot: u16,
    kind: Kind,
    prefix: &'a str,
    name: &'a str,
    tagged: bool,
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
        let checksum = crc16(0, DEFAULT_PREFIX.as_bytes());
        Keys { prefix: DEFAULT_PREFIX.to_owned(), slot: None, checksum }
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
        let slot = hash_tag(prefix.as_bytes()).map(|tag| crc16(0, tag) % SLOTS);
        if prefix.contains('{') && slot.is_none() {
            return refuse(
                format!("the prefix {prefix:?} has a {{ that begins no hash tag"),
                "leave it out, or write a whole tag such as {app}: to keep all locks in one slot",
            );
        }
        Ok(Keys { prefix: prefix.to_owned(), slot, checksum: crc16(0, prefix.as_bytes()) })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What the channel of an inbox begins with.
    pub(crate) fn channel(&self) -> String {
        format!("{}inbox:", self.prefix)
    }

    pub(crate) fn of<'a>(&'a self, kind: Kind, name: &'a str) -> ResourceKeys<'a> {
        let slot = self.slot.unwrap_or_else(|| {
            // A prefix without a tag has no `{` at all, so a tag can only stand in the name.
            let hashed = match hash_tag(name.as_bytes()) {
                Some(tag) => crc16(0, tag),
                None => crc16(self.checksum, name.as_bytes()),
            };
            hashed % SLOTS
        });
        ResourceKeys { slot, kind, prefix: &self.prefix, name, tagged: self.slot.is_some() }
    }

    /// The resource that a key belongs to, if it can be ours.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Found> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?;
        let record = if self.slot.is_some() {
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

impl<'a> ResourceKeys<'a> {
    fn key(&self, letter: u8) -> Key<'a> {
        let tag = (!self.tagged).then(|| tag_for(self.slot));
        Key { prefix: self.prefix, beside: Some((tag, letter)), name: self.name }
    }

    /// The key that programs in other languages know, for a mutex only.
    pub(crate) fn plain(&self) -> Option<Key<'a>> {
        (self.kind == Kind::Mutex).then_some(Key { prefix: self.prefix, beside: None, name: self.name })
    }

    /// What a mutex has beside its plain key, or the whole record of a pool.
    pub(crate) fn record(&self) -> Key<'a> {
        self.key(match self.kind {
            Kind::Mutex => b'm',
            Kind::RwLock => b'r',
            Kind::Semaphore => b's',
            // A kind that is unknown here is refused before its keys are asked for.
            _ => b't',
        })
    }

    /// The queue of those who wait for a mutex.
    pub(crate) fn line(&self) -> Option<Key<'a>> {
        (self.kind == Kind::Mutex).then(|| self.key(b'w'))
    }
}

impl Key<'_> {
    fn write_to(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        out.write_all(self.prefix.as_bytes())?;
        if let Some((tag, letter)) = self.beside {
            if let Some([a, b, c]) = tag {
                out.write_all(&[b'{', a, b, c, b'}'])?;
            }
            out.write_all(&[MARK, letter, b':'])?;
        }
        out.write_all(self.name.as_bytes())
    }

    #[cfg(test)]
    fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes).unwrap();
        bytes
    }
}

impl ToRedisArgs for Key<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        // Writing into memory does not fail.
        let _ = self.write_to(&mut out.writer_for_next_arg());
    }
}

fn kind_of(letter: u8) -> Option<Kind> {
    match letter {
        b'm' | b'w' => Some(Kind::Mutex),
        b'r' => Some(Kind::RwLock),
        b's' => Some(Kind::Semaphore),
        b't' => Some(Kind::FairQueue),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::slot_of;

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
                for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue] {
                    let made = keys.of(kind, name);
                    assert_eq!(made.slot, slot_of(plain.as_bytes()), "{plain}");
                    assert_eq!(slot_of(&made.record().to_vec()), made.slot, "{plain}");
                    assert!(made.line().is_none_or(|key| slot_of(&key.to_vec()) == made.slot));
                    assert!(made.plain().is_none_or(|key| key.to_vec() == plain.as_bytes()));
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
                for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue] {
                    let made = keys.of(kind, name);
                    let found = Found { kind, name: (*name).to_owned(), plain: false };
                    for key in [Some(made.record()), made.line()].into_iter().flatten() {
                        assert_eq!(keys.parse(&key.to_vec()).as_ref(), Some(&found));
                        assert!(seen.insert(key.to_vec()));
                    }
                    if let Some(plain) = made.plain() {
                        let found = Found { kind, name: (*name).to_owned(), plain: true };
                        assert_eq!(keys.parse(&plain.to_vec()), Some(found));
                        assert!(seen.insert(plain.to_vec()));
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
