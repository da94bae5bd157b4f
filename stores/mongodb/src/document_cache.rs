//! The names that had a document a moment ago, so that a batch of claims need not create them. Documents are purged, so an
//! entry may be wrong; a claim that finds no document is sent again as an upsert.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// How many names are remembered before the older half is forgotten.
const GENERATION_SIZE: usize = 8192;

#[derive(Debug, Default)]
struct Generations {
    younger: HashSet<u64>,
    older: HashSet<u64>,
}

/// Names are remembered by their hash.
#[derive(Debug, Default)]
pub(crate) struct DocumentCache {
    hasher: RandomState,
    generations: Mutex<Generations>,
}

impl DocumentCache {
    pub(crate) fn contains(&self, name: &str) -> bool {
        let name = self.hasher.hash_one(name);
        let generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        generations.younger.contains(&name) || generations.older.contains(&name)
    }

    pub(crate) fn insert<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if generations.younger.len() >= GENERATION_SIZE {
                generations.older = std::mem::take(&mut generations.younger);
            }
            generations.younger.insert(self.hasher.hash_one(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_use_are_kept_and_others_are_forgotten() {
        let cache = DocumentCache::default();
        let others: Vec<String> = (0..4 * GENERATION_SIZE).map(|n| n.to_string()).collect();
        cache.insert(["once", "again"].into_iter());
        for part in others.chunks(GENERATION_SIZE / 2) {
            cache.insert(part.iter().map(String::as_str).chain(["again"]));
        }
        assert!(cache.contains("again") && !cache.contains("once"));
    }
}
