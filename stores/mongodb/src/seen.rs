//! Names whose document was there not long ago, so that nobody need make sure of it. Only a guess: documents are purged, and
//! whoever finds none asks in a way that makes it.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// How many names are remembered before the older half is forgotten.
const MOST: usize = 8192;

#[derive(Debug, Default)]
struct Inner {
    younger: HashSet<u64>,
    older: HashSet<u64>,
}

/// Remembered by their hash alone.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    hasher: RandomState,
    inner: Mutex<Inner>,
}

impl Seen {
    /// Whether a name was seen.
    pub(crate) fn has(&self, name: &str) -> bool {
        let name = self.hasher.hash_one(name);
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.younger.contains(&name) || inner.older.contains(&name)
    }

    /// These were seen now.
    pub(crate) fn saw<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if inner.younger.len() >= MOST {
                inner.older = std::mem::take(&mut inner.younger);
            }
            inner.younger.insert(self.hasher.hash_one(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_what_is_not_goes() {
        let seen = Seen::default();
        let others: Vec<String> = (0..4 * MOST).map(|n| n.to_string()).collect();
        seen.saw(["once", "again"].into_iter());
        for part in others.chunks(MOST / 2) {
            seen.saw(part.iter().map(String::as_str).chain(["again"]));
        }
        assert!(seen.has("again") && !seen.has("once"));
    }
}
