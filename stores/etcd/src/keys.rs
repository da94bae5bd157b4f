//! The layout of keys and values.
//!
//! ```text
//! PREFIX KIND / NAME / LOCK-ID      one key for each claim, holder or waiter; its order is its creation revision
//! PREFIX session / LEASE            one key for each session, written when a claim may still be in flight
//! ```
//! A name and a lock id are one segment each: `/`, `%` and control characters become `%` and two hexadecimal digits. All
//! other characters stay, so that `etcdctl get --prefix distlock/` is readable.

use std::fmt::Write as _;
use std::time::SystemTime;

use distlock_core::{Kind, LockId, Resource};
use percent_encoding::percent_decode_str;

/// The prefix of keys if the configuration names none.
pub const DEFAULT_PREFIX: &str = "distlock/";

const SESSION: &str = "session";

/// Builds and parses keys with one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    prefix: String,
}

/// All keys from `start` on and before `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) start: Vec<u8>,
    /// Empty for the one key `start`.
    pub(crate) end: Vec<u8>,
}

impl KeyRange {
    pub(crate) fn one(key: Vec<u8>) -> Self {
        KeyRange { start: key, end: Vec::new() }
    }

    /// All keys that begin with a text that ends with `/`: the end is the same with `0`, the character after `/`.
    fn folder(text: String) -> Self {
        let start = text.into_bytes();
        let mut end = start.clone();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        KeyRange { start, end }
    }
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Keys { prefix: prefix.to_owned() }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The claims of a resource.
    pub(crate) fn queue(&self, resource: &Resource) -> KeyRange {
        KeyRange::folder(format!("{}{}/{}/", self.prefix, resource.kind(), escape(resource.name())))
    }

    /// The claims of all resources of a kind.
    pub(crate) fn kind(&self, kind: Kind) -> KeyRange {
        KeyRange::folder(format!("{}{kind}/", self.prefix))
    }

    /// The key of one claim.
    pub(crate) fn claim(&self, resource: &Resource, lock_id: &LockId) -> Vec<u8> {
        let mut key = self.queue(resource).start;
        key.extend_from_slice(escape(lock_id.as_str()).as_bytes());
        key
    }

    /// The key of a session.
    pub(crate) fn session(&self, lease: i64) -> Vec<u8> {
        format!("{}{SESSION}/{lease:016x}", self.prefix).into_bytes()
    }

    /// Kind, name and lock id of a claim's key; `None` if distlock did not write it.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<(Kind, String, LockId)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let mut segments = rest.split('/');
        let (kind, name, id) = (segments.next()?, segments.next()?, segments.next()?);
        let (name, id) = (unescape(name)?, unescape(id)?);
        let complete = segments.next().is_none() && !name.is_empty();
        complete.then_some(())?;
        Some((Kind::parse(kind)?, name, LockId::from_stored(id)))
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '/' | '%') || c.is_ascii_control() {
            // Writing to a string does not fail. All three are ASCII.
            let _ = write!(escaped, "%{:02X}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

fn unescape(segment: &str) -> Option<String> {
    let text = percent_decode_str(segment).decode_utf8().ok()?;
    (escape(&text) == segment).then(|| text.into_owned())
}

/// The value of a claim's key, as words: `weight=2 capacity=4 granted=1760000000000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimValue {
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
    /// When it was granted, in milliseconds since 1970 by the holder's clock. Not all holders have it.
    pub(crate) granted_ms: Option<u64>,
}

impl ClaimValue {
    /// The same, granted now. A mark that is there stays.
    pub(crate) fn granted_now(mut self) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.granted_ms = self.granted_ms.or_else(|| u64::try_from(now.as_millis()).ok());
        self
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!("weight={} capacity={}", self.weight, self.capacity);
        if let Some(at) = self.granted_ms {
            let _ = write!(text, " granted={at}");
        }
        text.into_bytes()
    }

    /// `None` for a value that distlock did not write.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (mut weight, mut capacity, mut granted_ms) = (None, None, None);
        for word in std::str::from_utf8(value).ok()?.split(' ') {
            match word.split_once('=')? {
                ("weight", number) => weight = Some(number.parse().ok()?),
                ("capacity", number) => capacity = Some(number.parse().ok()?),
                ("granted", number) => granted_ms = Some(number.parse().ok()?),
                // A later version may add words.
                _ => {}
            }
        }
        Some(ClaimValue { weight: weight?, capacity: capacity?, granted_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRANGE: [&str; 12] =
        ["a", "/", "a/b", "a%2Fb", "%", "..", "a b", "\0", "\n", "é", "日本語", "mutex/x/y"];

    fn resource(name: &str) -> Resource {
        Resource::new(Kind::Mutex, name).unwrap()
    }

    #[test]
    fn a_name_is_one_segment_and_is_read_back() {
        let keys = Keys::new("app/");
        let id = LockId::from_stored("web/3:812#0123456789abcdef-1");
        for name in STRANGE {
            let key = keys.claim(&resource(name), &id);
            assert_eq!(key.iter().filter(|byte| **byte == b'/').count(), 3, "{name:?}");
            assert_eq!(keys.parse(&key), Some((Kind::Mutex, name.to_owned(), id.clone())));
        }
    }

    #[test]
    fn the_queue_of_a_name_contains_no_key_of_another_name() {
        let keys = Keys::new(DEFAULT_PREFIX);
        let id = LockId::from_stored("x#0123456789abcdef-1");
        for name in STRANGE {
            let queue = keys.queue(&resource(name));
            for other in STRANGE {
                let key = keys.claim(&resource(other), &id);
                assert_eq!((queue.start <= key && key < queue.end), name == other, "{name:?} {other:?}");
            }
        }
    }

    #[test]
    fn keys_of_other_programs_are_not_parsed() {
        let keys = Keys::new("app/");
        for foreign in
            ["app/mutex/a", "app/mutex//x", "app/lock/a/x", "app/mutex/a/x/y", "mutex/a/x", "app/session/1f"]
        {
            assert_eq!(keys.parse(foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(keys.parse(b"app/mutex/\xff/x"), None);
    }

    #[test]
    fn values_are_read_back_and_words_of_later_versions_are_ignored() {
        for granted_ms in [None, Some(1_760_000_000_000)] {
            let value = ClaimValue { weight: 2, capacity: 4, granted_ms };
            assert_eq!(ClaimValue::parse(&value.encode()), Some(value));
        }
        assert!(ClaimValue::parse(b"weight=1 capacity=2 colour=red").is_some());
        for foreign in [&b""[..], b"weight=1", b"weight=x capacity=1", b"hello", b"\xff"] {
            assert_eq!(ClaimValue::parse(foreign), None);
        }
    }
}
