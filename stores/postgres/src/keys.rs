//! The keys of resources and the channels of inboxes.
//!
//! The key of a resource contains its name, so that operators and other programs find it. A name is replaced by its hash, and
//! kept in a column of its own, if it
//! - is longer than 1024 bytes: an index entry has room for about 2700, less its overhead;
//! - has a NUL character, which PostgreSQL's text cannot hold;
//! - is not ASCII, in a database whose encoding is not UTF-8;
//! - begins like such a hash, so that no name is mistaken for the hash of another.
//!
//! The mutex `orders/42` has the key `orders/42` in the lease table; keys of pools begin with the kind: `semaphore:gpu`.

use std::borrow::Cow;

use distlock_core::store::Inbox;
use distlock_core::{Kind, Resource};
use sha2::{Digest, Sha256};

const HASH_PREFIX: &str = "sha256:";
const MAX_NAME: usize = 1024;

/// The key of a resource in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) key: String,
    /// The name, where the key has only its hash.
    pub(crate) name: Option<Vec<u8>>,
}

impl Key {
    pub(crate) fn new(resource: &Resource, utf8: bool) -> Key {
        let name = (!is_plain(resource.name(), utf8)).then(|| resource.name().as_bytes().to_vec());
        Key { key: Key::text(resource, utf8).into_owned(), name }
    }

    /// The key alone. That of most mutexes is their name.
    pub(crate) fn text(resource: &Resource, utf8: bool) -> Cow<'_, str> {
        let (kind, name) = (resource.kind(), resource.name());
        let is_plain = is_plain(name, utf8);
        if kind == Kind::Mutex && is_plain {
            return name.into();
        }
        let prefix = match kind {
            Kind::Mutex => String::new(),
            kind => format!("{kind}:"),
        };
        if is_plain {
            return format!("{prefix}{name}").into();
        }
        let hash = hex(&Sha256::digest(name.as_bytes()));
        format!("{prefix}{HASH_PREFIX}{hash}").into()
    }

    /// Kind and name of a row; `None` for rows of other programs.
    pub(crate) fn parse(key: &str, name: Option<Vec<u8>>, pool: bool) -> Option<(Kind, String)> {
        let (kind, in_key) = match pool {
            false => (Kind::Mutex, key),
            true => {
                let (kind, name) = key.split_once(':')?;
                (Kind::parse(kind)?, name)
            }
        };
        match name {
            Some(bytes) => Some((kind, String::from_utf8(bytes).ok()?)),
            None => Some((kind, in_key.to_owned())),
        }
    }
}

/// Whether a name is part of its key, and not its hash.
fn is_plain(name: &str, utf8: bool) -> bool {
    name.len() <= MAX_NAME
        && !name.starts_with(HASH_PREFIX)
        && !name.contains('\0')
        && (utf8 || name.is_ascii())
}

/// The channel of an inbox. The name of a channel has at most 63 bytes.
pub(crate) fn channel(inbox: &Inbox) -> String {
    format!("dl_{}", hex(&Sha256::digest(inbox.as_str().as_bytes())[..8]))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: Kind, name: &str) -> Key {
        Key::new(&Resource::new(kind, name).unwrap(), true)
    }

    #[test]
    fn plain_names_are_kept_and_others_are_hashed_and_read_back() {
        assert_eq!(key(Kind::Mutex, "orders/42").key, "orders/42");
        assert_eq!(key(Kind::Semaphore, "gpu").key, "semaphore:gpu");
        let long = "é".repeat(2048);
        for (kind, name) in
            [(Kind::Mutex, "a\0b"), (Kind::RwLock, "sha256:00"), (Kind::FairQueue, long.as_str())]
        {
            let Key { key, name: column } = key(kind, name);
            assert!(key.len() < 100 && key.is_ascii(), "{key}");
            assert_eq!(Key::parse(&key, column, kind != Kind::Mutex), Some((kind, name.to_owned())));
        }
        let latin = Key::new(&Resource::new(Kind::Mutex, "größe").unwrap(), false);
        assert!(latin.key.starts_with(HASH_PREFIX));
    }

    #[test]
    fn no_name_is_mistaken_for_the_hash_of_another() {
        let hashed = key(Kind::Mutex, "a\0b");
        assert_ne!(key(Kind::Mutex, &hashed.key), hashed);
        assert_ne!(key(Kind::Mutex, &hashed.key).key, hashed.key);
        assert_ne!(key(Kind::Mutex, "semaphore:gpu").key, key(Kind::Semaphore, "semaphore:gpu").key);
    }

    #[test]
    fn a_channel_name_is_short_and_plain() {
        let channel = channel(&Inbox::new("x".repeat(500)));
        assert_eq!(channel.len(), 19);
        assert!(channel.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    }
}
