//! Lock ids as a store keeps those of many holds. The ids of one engine differ only in their number.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use crate::resource::{LockId, number_behind};

/// Makes the [`CompactLockId`]s of one store. It knows the prefix of one engine: that of the first id that has one.
#[derive(Debug, Default)]
pub struct CompactLockIds {
    prefix: OnceLock<Arc<str>>,
}

/// A lock id: two of one [`CompactLockIds`] are equal exactly if the lock ids are. The number takes no memory of its own, where the
/// text takes about 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CompactLockId {
    /// The number behind the known prefix.
    Number(NonZeroU64),
    /// Of another engine, or of another form. Boxed: most ids are numbers.
    Text(Box<LockId>),
}

impl CompactLockIds {
    /// The compact form of this id, always the same.
    #[must_use]
    pub fn of(&self, id: &LockId) -> CompactLockId {
        // An id with this prefix was never kept as text: the first one would have set it.
        let prefix = match self.prefix.get() {
            Some(prefix) => Some(prefix),
            None => id.inbox().map(|inbox| self.prefix.get_or_init(|| inbox.as_str().into())),
        };
        match prefix.and_then(|prefix| number_behind(prefix, id.as_str())) {
            Some(number) => CompactLockId::Number(number),
            None => CompactLockId::Text(Box::new(id.clone())),
        }
    }
}

/// A map from lock ids. A process may have a hundred thousand of them, nearly all numbers: an entry takes eight bytes beside its value.
#[derive(Debug)]
pub struct LockIdMap<V> {
    numbers: HashMap<NonZeroU64, V>,
    texts: HashMap<Box<LockId>, V>,
}

impl<V> Default for LockIdMap<V> {
    fn default() -> Self {
        LockIdMap { numbers: HashMap::new(), texts: HashMap::new() }
    }
}

impl<V> LockIdMap<V> {
    /// Returns the value that was there.
    pub fn insert(&mut self, id: CompactLockId, value: V) -> Option<V> {
        match id {
            CompactLockId::Number(number) => self.numbers.insert(number, value),
            CompactLockId::Text(text) => self.texts.insert(text, value),
        }
    }

    /// The value of a lock id.
    #[must_use]
    pub fn get(&self, id: &CompactLockId) -> Option<&V> {
        match id {
            CompactLockId::Number(number) => self.numbers.get(number),
            CompactLockId::Text(text) => self.texts.get(text),
        }
    }

    /// Takes the value of a lock id out.
    pub fn remove(&mut self, id: &CompactLockId) -> Option<V> {
        match id {
            CompactLockId::Number(number) => self.numbers.remove(number),
            CompactLockId::Text(text) => self.texts.remove(text),
        }
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.numbers.values().chain(self.texts.values())
    }

    /// Keeps the values for which this is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&V) -> bool) {
        self.numbers.retain(|_, value| keep(value));
        self.texts.retain(|_, value| keep(value));
    }

    /// Whether the next insertion may take more memory.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let Self { numbers, texts } = self;
        numbers.len() == numbers.capacity() || texts.len() == texts.capacity() && !texts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::resource::LockIds;

    #[test]
    fn two_ids_are_equal_exactly_if_their_texts_are() {
        let (engine, other) = (LockIds::new("web-3:812"), LockIds::new("web-3:812"));
        let mut ids: Vec<LockId> = vec![LockId::from_stored("another program's"), LockId::from_stored("")];
        for _ in 0..300 {
            ids.extend([engine.next(), other.next()]);
        }
        // Texts that a careless reader takes for the same number.
        let prefix = engine.prefix();
        let forms = ["0", "01", "1 ", "+1", "A", "a", "", "ffffffffffffffff", "10000000000000001"];
        ids.extend(forms.iter().map(|form| LockId::from_stored(format!("{prefix}-{form}"))));
        ids.push(LockId::from_stored(prefix));
        let texts: HashSet<&LockId> = ids.iter().collect();
        let table = CompactLockIds::default();
        let compact: Vec<CompactLockId> = ids.iter().map(|id| table.of(id)).collect();
        assert_eq!(compact.iter().collect::<HashSet<_>>().len(), texts.len());
        for (id, compact) in ids.iter().zip(&compact) {
            assert_eq!(&table.of(&LockId::from_stored(id.as_str())), compact, "{id}");
        }
    }

    #[test]
    fn an_id_of_the_first_engine_is_a_number() {
        let (table, engine) = (CompactLockIds::default(), LockIds::new("web-3:812"));
        let _ = table.of(&LockId::from_stored("another program's"));
        for n in 1..40 {
            assert_eq!(table.of(&engine.next()), CompactLockId::Number(NonZeroU64::new(n).unwrap()));
        }
        assert!(matches!(table.of(&LockIds::new("web-3:812").next()), CompactLockId::Text(_)));
        assert_eq!(size_of::<CompactLockId>(), 16);
    }

    #[test]
    fn a_map_tells_numbers_and_texts_apart() {
        let (table, engine) = (CompactLockIds::default(), LockIds::new("web-3:812"));
        let ids: Vec<CompactLockId> = (0..10)
            .flat_map(|n| {
                [engine.next(), LockId::from_stored(format!("{n}")), LockIds::new("web-3:812").next()]
            })
            .map(|id| table.of(&id))
            .collect();
        let mut map = LockIdMap::default();
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(map.insert(id.clone(), 0), None);
            assert_eq!(map.insert(id.clone(), at), Some(0));
        }
        assert!(ids.iter().enumerate().all(|(at, id)| map.get(id) == Some(&at)));
        map.retain(|at| at % 2 == 0);
        assert_eq!(map.values().count(), ids.len() / 2);
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(map.remove(id), (at % 2 == 0).then_some(at));
        }
        assert_eq!(map.values().count(), 0);
    }
}
