//! The keys of a resource.
//!
//! | key | content |
//! | --- | --- |
//! | `distlock:orders` | the lock key of the mutex `orders`: the lock id of the holder and its token |
//! | `distlock:{Ab3}␀w:orders` | its wait queue, while there are waiters |
//! | `distlock:␀n:` | the last token of all mutexes; in a Cluster `distlock:{Ab3}␀n:`, one for each hash slot |
//! | `distlock:{Ab3}␀r:orders` | the reader-writer lock `orders` |
//! | `distlock:{Ab3}␀s:orders` | the semaphore `orders` |
//! | `distlock:{Ab3}␀t:orders` | the queue of the fair mutex `orders` |
//!
//! `␀` stands for the byte 0xFF, which occurs in no UTF-8 text: the lock key of a mutex, whatever its name, is never one of
//! the other keys. All keys begin with the prefix, so that ACL patterns (`~distlock:*`) cover them. `{Ab3}` is a hash tag that
//! puts them into the hash slot of the lock key. A prefix that contains a hash tag needs no other.

use distlock_core::{Error, ErrorKind, Kind, Result};

use redis::{RedisWrite, ToRedisArgs};

use crate::hash_slot::{SLOTS, crc16, hash_tag, tag_for};

/// The default prefix of keys and channels.
pub const DEFAULT_PREFIX: &str = "distlock:";

const LONGEST_PREFIX: usize = 128;
const MARK: u8 = 0xFF;

/// Builds the keys of one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
    /// The slot of all keys, if the prefix has a hash tag.
    slot: Option<u16>,
    /// The checksum of the prefix; that of a whole key continues it.
    checksum: u16,
    /// Each hash slot has tokens of its own, because the keys of a script are in one slot.
    tokens_per_slot: bool,
}

/// One key of a resource, composed when it is written: a request has many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    prefix: &'a str,
    /// The hash tag and the letter; `None` for the lock key.
    suffix: Option<(Option<[u8; 3]>, u8)>,
    name: &'a str,
}

/// The keys of one resource, and their hash slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceKeys<'a> {
    pub(crate) slot: u16,
    kind: Kind,
    prefix: &'a str,
    name: &'a str,
    tagged: bool,
    pub(crate) tokens_per_slot: bool,
}

/// The resource that a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedKey {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// It is the lock key of a mutex, which any program may have written.
    pub(crate) is_lock_key: bool,
}

impl Default for Keys {
    fn default() -> Self {
        let checksum = crc16(0, DEFAULT_PREFIX.as_bytes());
        Keys { prefix: DEFAULT_PREFIX.to_owned(), slot: None, checksum, tokens_per_slot: false }
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
                    "the prefix {prefix:?} is longer than {LONGEST_PREFIX} bytes or contains spaces or control characters"
                ),
                "use a short one, such as app:",
            );
        }
        let slot = hash_tag(prefix.as_bytes()).map(|tag| crc16(0, tag) % SLOTS);
        if prefix.contains('{') && slot.is_none() {
            return refuse(
                format!("the prefix {prefix:?} has a {{ that begins no hash tag"),
                "leave it out, or write a whole tag such as {app}: to keep all locks in one slot",
            );
        }
        let checksum = crc16(0, prefix.as_bytes());
        Ok(Keys { prefix: prefix.to_owned(), slot, checksum, tokens_per_slot: false })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The same keys for a Cluster or for one server.
    pub(crate) fn for_cluster(self, tokens_per_slot: bool) -> Self {
        Keys { tokens_per_slot, ..self }
    }

    /// The prefix of the channel of an inbox.
    pub(crate) fn channel(&self) -> String {
        format!("{}inbox:", self.prefix)
    }

    pub(crate) fn of<'a>(&'a self, kind: Kind, name: &'a str) -> ResourceKeys<'a> {
        let slot = self.slot.unwrap_or_else(|| {
            // A prefix without a hash tag contains no `{`, so only the name can have one.
            let hashed = match hash_tag(name.as_bytes()) {
                Some(tag) => crc16(0, tag),
                None => crc16(self.checksum, name.as_bytes()),
            };
            hashed % SLOTS
        });
        let (tagged, tokens_per_slot) = (self.slot.is_some(), self.tokens_per_slot);
        ResourceKeys { slot, kind, prefix: &self.prefix, name, tagged, tokens_per_slot }
    }

    /// The resource that a key belongs to; `None` if the key is not ours.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<ParsedKey> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?;
        let record = if self.slot.is_some() {
            rest.strip_prefix(&[MARK])
        } else {
            match rest {
                [b'{', _, _, _, b'}', MARK, record @ ..] => Some(record),
                _ => None,
            }
        };
        let (kind, name, is_lock_key) = match record {
            Some([letter, b':', name @ ..]) => (kind_of(*letter)?, name, false),
            Some(_) => return None,
            None => (Kind::Mutex, rest, true),
        };
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?.to_owned();
        Some(ParsedKey { kind, name, is_lock_key })
    }

    /// The SCAN pattern of all our keys.
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
        Key { prefix: self.prefix, suffix: Some((tag, letter)), name: self.name }
    }

    /// The key that other programs know; of a mutex only.
    pub(crate) fn lock(&self) -> Option<Key<'a>> {
        (self.kind == Kind::Mutex).then_some(Key { prefix: self.prefix, suffix: None, name: self.name })
    }

    /// The record of a pool.
    pub(crate) fn pool(&self) -> Option<Key<'a>> {
        let letter = match self.kind {
            Kind::Mutex => return None,
            Kind::RwLock => b'r',
            Kind::Semaphore => b's',
            // The core has no other kind.
            _ => b't',
        };
        Some(self.key(letter))
    }

    /// The last token of the mutexes of this server, or of this hash slot.
    pub(crate) fn tokens(&self) -> Option<Key<'a>> {
        let tag = (self.tokens_per_slot && !self.tagged).then(|| tag_for(self.slot));
        let key = Key { prefix: self.prefix, suffix: Some((tag, b'n')), name: "" };
        (self.kind == Kind::Mutex).then_some(key)
    }

    /// The wait queue of a mutex.
    pub(crate) fn queue(&self) -> Option<Key<'a>> {
        (self.kind == Kind::Mutex).then(|| self.key(b'w'))
    }
}

impl Key<'_> {
    fn write_to(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        out.write_all(self.prefix.as_bytes())?;
        if let Some((tag, letter)) = self.suffix {
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
        b'w' => Some(Kind::Mutex),
        b'r' => Some(Kind::RwLock),
        b's' => Some(Kind::Semaphore),
        b't' => Some(Kind::FairQueue),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash_slot::slot_of;

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
    fn all_keys_of_a_resource_are_in_the_slot_of_its_lock_key() {
        for prefix in ["", DEFAULT_PREFIX, "a}", "{app}:", "x{y}", "p{q}{r}"] {
            let keys = Keys::new(prefix).unwrap();
            for name in NAMES {
                let plain = format!("{prefix}{name}");
                for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue] {
                    let made = keys.of(kind, name);
                    assert_eq!(made.slot, slot_of(plain.as_bytes()), "{plain}");
                    let in_cluster = keys.clone().for_cluster(true);
                    let tokens = in_cluster.of(kind, name).tokens();
                    for key in [made.pool(), made.queue(), tokens].into_iter().flatten() {
                        assert_eq!(slot_of(&key.to_vec()), made.slot, "{plain}");
                    }
                    assert!(made.lock().is_none_or(|key| key.to_vec() == plain.as_bytes()));
                }
            }
        }
    }

    #[test]
    fn keys_are_parsed_back_and_never_collide() {
        for prefix in ["", DEFAULT_PREFIX, "{app}:"] {
            let keys = Keys::new(prefix).unwrap();
            let mut seen = std::collections::HashSet::new();
            for name in NAMES {
                for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue] {
                    let made = keys.of(kind, name);
                    let found = ParsedKey { kind, name: (*name).to_owned(), is_lock_key: false };
                    for key in [made.pool(), made.queue()].into_iter().flatten() {
                        assert_eq!(keys.parse(&key.to_vec()).as_ref(), Some(&found));
                        assert!(seen.insert(key.to_vec()));
                    }
                    if let Some(plain) = made.lock() {
                        let found = ParsedKey { kind, name: (*name).to_owned(), is_lock_key: true };
                        assert_eq!(keys.parse(&plain.to_vec()), Some(found));
                        assert!(seen.insert(plain.to_vec()));
                    }
                }
            }
        }
        assert_eq!(Keys::new("app:").unwrap().parse(b"other"), None);
        for prefix in ["", DEFAULT_PREFIX, "{app}:"] {
            for cluster in [false, true] {
                let keys = Keys::new(prefix).unwrap().for_cluster(cluster);
                let tokens = keys.of(Kind::Mutex, "n:").tokens().unwrap().to_vec();
                assert_eq!(keys.parse(&tokens), None, "the key of the tokens is no lock");
            }
        }
    }

    #[test]
    fn prefixes_that_would_split_a_resource_are_refused() {
        for bad in ["a{b", "{}", "{", "a b", "a\n", &"x".repeat(129)] {
            assert_eq!(Keys::new(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
        }
    }

    #[test]
    fn wildcards_in_a_prefix_match_only_themselves() {
        assert_eq!(Keys::new("a*[b]:").unwrap().pattern(), r"a\*\[b\]:*");
    }
}
