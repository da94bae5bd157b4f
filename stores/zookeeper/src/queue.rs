//! The queue of a resource: its children in the order of their sequence numbers, and who of them holds.
//!
//! One rule serves every primitive: an entry is granted as soon as its weight and the weights of all entries before it fit
//! the capacity. Entries before it can only disappear, so a grant stays valid, and no entry is overtaken. A mutex is a queue of
//! capacity 1; in a reader-writer lock a reader weighs 1 and a writer weighs everything.
//!
//! Weights are in the names of the nodes, so one list of children is enough to decide. The names are those of Apache
//! Curator's recipes: `_c_GUID-lock-N` in a mutex, `_c_GUID-__READ__N` and `_c_GUID-__WRIT__N` in a reader-writer lock. A
//! semaphore is ours: `_c_GUID-WEIGHTofCAPACITY-lock-N`.

use distlock_core::{Kind, WRITER_WEIGHT};

const LOCK: &str = "lock-";
const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";

/// The first part of the name of a node: what it is found again by if the reply to its creation was lost.
pub(crate) fn protected_prefix(guid: &str) -> String {
    format!("_c_{guid}-")
}

/// The name of a new node, to which the server appends the sequence number.
pub(crate) fn node_prefix(kind: Kind, guid: &str, weight: u32, capacity: u32) -> String {
    let protected = protected_prefix(guid);
    match kind {
        Kind::RwLock if weight > 1 => format!("{protected}{WRITE}"),
        Kind::RwLock => format!("{protected}{READ}"),
        Kind::Semaphore => format!("{protected}{weight}of{capacity}-{LOCK}"),
        _ => format!("{protected}{LOCK}"),
    }
}

/// A holder or a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The name of the node.
    pub(crate) name: String,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
    sequence: i64,
}

impl Entry {
    /// The entry behind the name of a child; `None` if it is no part of the queue.
    pub(crate) fn parse(kind: Kind, name: &str) -> Option<Self> {
        let ((weight, capacity), sequence) = match kind {
            Kind::RwLock => match (name.rsplit_once(READ), name.rsplit_once(WRITE)) {
                (Some((_, sequence)), _) => ((1, WRITER_WEIGHT), sequence),
                (None, Some((_, sequence))) => ((WRITER_WEIGHT, WRITER_WEIGHT), sequence),
                (None, None) => return None,
            },
            Kind::Semaphore => {
                let (before, sequence) = name.rsplit_once(LOCK)?;
                let (_, share) = before.strip_suffix('-')?.rsplit_once('-')?;
                let (weight, capacity) = share.split_once("of")?;
                ((weight.parse().ok()?, capacity.parse().ok()?), sequence)
            }
            _ => ((1, 1), name.rsplit_once(LOCK)?.1),
        };
        let sequence = sequence.parse().ok()?;
        Some(Entry { name: name.to_owned(), weight, capacity, sequence })
    }
}

/// Why an entry waits, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// It holds. `followed`: another entry is behind it.
    Granted { followed: bool },
    /// This entry conflicts with it by itself and must be deleted first. For a mutex and a writer it is the predecessor, for
    /// a reader the nearest writer before it.
    After(Entry),
    /// A semaphore: the predecessor waits too, and must be granted or deleted first.
    Behind(Entry),
    /// A semaphore: the first waiter. Any holder may release what is missing.
    First,
    /// The first entry has this other capacity. Others do not count: a claim that is refused is in the queue for a moment.
    Mismatch(u32),
    /// Its node is gone.
    Gone,
}

/// The entries of a resource, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    entries: Vec<Entry>,
    /// Entries may have different capacities: each is granted by its own, so the holders never exceed the largest.
    any_capacity: bool,
}

impl Queue {
    pub(crate) fn parse(kind: Kind, children: &[String]) -> Self {
        let mut entries: Vec<Entry> = children.iter().filter_map(|child| Entry::parse(kind, child)).collect();
        unwrap_sequence(&mut entries);
        entries.sort_by(|a, b| (a.sequence, &a.name).cmp(&(b.sequence, &b.name)));
        Queue { entries, any_capacity: false }
    }

    /// The same for a claim that resizes, or that does not.
    pub(crate) fn with_any_capacity(self, any_capacity: bool) -> Self {
        Queue { any_capacity, ..self }
    }

    /// Holders and waiters.
    pub(crate) fn split(&self) -> (&[Entry], &[Entry]) {
        let mut sum = 0_u64;
        let fits = |entry: &Entry| {
            sum += u64::from(entry.weight);
            sum <= u64::from(entry.capacity)
        };
        let held = self.entries.iter().take_while({
            let mut fits = fits;
            move |entry| fits(entry)
        });
        self.entries.split_at(held.count())
    }

    /// The capacity of its entries; `None` if it is empty.
    pub(crate) fn capacity(&self) -> Option<u32> {
        self.entries.first().map(|entry| entry.capacity)
    }

    /// Forgets an entry whose node was deleted.
    pub(crate) fn remove(&mut self, name: &str) {
        self.entries.retain(|entry| entry.name != name);
    }

    /// Where a node of ours is.
    pub(crate) fn position(&self, name: &str) -> Position {
        let Some(at) = self.entries.iter().position(|entry| entry.name == name) else {
            return Position::Gone;
        };
        let (before, from) = self.entries.split_at(at);
        let Some(own) = from.first() else { return Position::Gone };
        match self.judge(before, own.weight, own.capacity) {
            Position::Granted { .. } => Position::Granted { followed: from.len() > 1 },
            other => other,
        }
    }

    /// Where a new node would be.
    pub(crate) fn position_of_new(&self, weight: u32, capacity: u32) -> Position {
        self.judge(&self.entries, weight, capacity)
    }

    fn judge(&self, before: &[Entry], weight: u32, capacity: u32) -> Position {
        let differs = |entry: &&Entry| entry.capacity != capacity;
        if let Some(first) = before.first().filter(differs).filter(|_| !self.any_capacity) {
            return Position::Mismatch(first.capacity);
        }
        let fits = |sum: u64| sum <= u64::from(capacity);
        let sum: u64 = before.iter().map(|entry| u64::from(entry.weight)).sum();
        if fits(sum + u64::from(weight)) {
            return Position::Granted { followed: false };
        }
        if before.iter().any(|entry| differs(&entry)) {
            // An entry before it is granted by another capacity, or refused: any of them can make room.
            return Position::First;
        }
        let conflicts = |entry: &&Entry| !fits(u64::from(entry.weight) + u64::from(weight));
        if let Some(entry) = before.iter().rev().find(conflicts) {
            return Position::After(entry.clone());
        }
        match before.last() {
            Some(last) if !fits(sum) => Position::Behind(last.clone()),
            _ => Position::First,
        }
    }
}

/// The server counts with 32 bits and starts again at the lowest number. Live entries are close together, so if the numbers
/// are far apart, the negative ones come after the others.
fn unwrap_sequence(entries: &mut [Entry]) {
    const HALF: i64 = 1 << 31;
    let lowest = entries.iter().map(|entry| entry.sequence).min().unwrap_or(0);
    let highest = entries.iter().map(|entry| entry.sequence).max().unwrap_or(0);
    if lowest < 0 && highest.saturating_sub(lowest) > HALF {
        for entry in entries.iter_mut().filter(|entry| entry.sequence < 0) {
            entry.sequence = entry.sequence.saturating_add(2 * HALF);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(kind: Kind, children: &[&str]) -> Queue {
        Queue::parse(kind, &children.iter().map(|child| (*child).to_owned()).collect::<Vec<_>>())
    }

    fn after(position: &Position) -> Option<&str> {
        match position {
            Position::After(entry) | Position::Behind(entry) => Some(&entry.name),
            _ => None,
        }
    }

    #[test]
    fn names_are_those_of_curator() {
        let guid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        assert_eq!(node_prefix(Kind::Mutex, guid, 1, 1), format!("_c_{guid}-lock-"));
        assert_eq!(node_prefix(Kind::RwLock, guid, 1, WRITER_WEIGHT), format!("_c_{guid}-__READ__"));
        assert_eq!(
            node_prefix(Kind::RwLock, guid, WRITER_WEIGHT, WRITER_WEIGHT),
            format!("_c_{guid}-__WRIT__")
        );
        for (kind, weight, capacity) in [
            (Kind::Mutex, 1, 1),
            (Kind::RwLock, 1, WRITER_WEIGHT),
            (Kind::RwLock, WRITER_WEIGHT, WRITER_WEIGHT),
            (Kind::Semaphore, 3, 17),
        ] {
            let name = format!("{}0000000042", node_prefix(kind, guid, weight, capacity));
            let entry = Entry::parse(kind, &name).unwrap();
            assert_eq!((entry.weight, entry.capacity, entry.sequence), (weight, capacity, 42));
        }
        for foreign in ["", "config", "lock", "lock-x", "_c_x-lock-"] {
            assert_eq!(Entry::parse(Kind::Mutex, foreign), None, "{foreign}");
        }
        assert_eq!(Entry::parse(Kind::Semaphore, "_c_x-lock-1"), None);
    }

    #[test]
    fn a_waiter_of_a_mutex_watches_only_its_predecessor() {
        let queue = queue(Kind::Mutex, &["c-lock-0000000009", "b-lock-0000000010", "z-lock-0000000008"]);
        assert_eq!(queue.position("z-lock-0000000008"), Position::Granted { followed: true });
        assert_eq!(after(&queue.position("c-lock-0000000009")), Some("z-lock-0000000008"));
        assert_eq!(after(&queue.position("b-lock-0000000010")), Some("c-lock-0000000009"));
        assert_eq!(queue.position("d-lock-0000000011"), Position::Gone);
        assert_eq!((queue.split().0.len(), queue.split().1.len()), (1, 2));
    }

    #[test]
    fn a_reader_watches_the_nearest_writer_and_a_writer_its_predecessor() {
        let queue = queue(
            Kind::RwLock,
            &[
                "a__READ__1",
                "b__READ__2",
                "c__WRIT__3",
                "d__READ__4",
                "e__WRIT__5",
                "f__READ__6",
                "g__READ__7",
            ],
        );
        assert_eq!(queue.position("b__READ__2"), Position::Granted { followed: true });
        for (own, watched) in [
            ("c__WRIT__3", "b__READ__2"),
            ("d__READ__4", "c__WRIT__3"),
            ("e__WRIT__5", "d__READ__4"),
            ("f__READ__6", "e__WRIT__5"),
            ("g__READ__7", "e__WRIT__5"),
        ] {
            assert_eq!(after(&queue.position(own)), Some(watched), "{own}");
        }
        assert_eq!(queue.split().0.len(), 2);
    }

    #[test]
    fn no_permit_is_granted_past_a_waiter_and_none_too_many() {
        let queue = queue(
            Kind::Semaphore,
            &[
                "a-2of4-lock-1",
                "b-1of4-lock-2",
                "c-2of4-lock-3",
                "d-1of4-lock-4",
                "e-4of4-lock-5",
                "f-1of4-lock-6",
            ],
        );
        assert_eq!(queue.position("b-1of4-lock-2"), Position::Granted { followed: true });
        assert_eq!(queue.position("c-2of4-lock-3"), Position::First);
        // One permit is free, and it is kept for the waiter before.
        assert_eq!(queue.position("d-1of4-lock-4"), Position::Behind(queue.entries[2].clone()));
        assert_eq!(after(&queue.position("e-4of4-lock-5")), Some("d-1of4-lock-4"));
        assert_eq!(after(&queue.position("f-1of4-lock-6")), Some("e-4of4-lock-5"));
        assert_eq!(queue.split().0.len(), 2);
        assert_eq!(queue.position_of_new(1, 5), Position::Mismatch(4));
    }

    #[test]
    fn a_refused_claim_in_the_queue_refuses_no_other_and_its_weight_counts() {
        let refused = queue(Kind::Semaphore, &["a-1of3-lock-1", "b-1of300-lock-2"]);
        assert_eq!(refused.position("b-1of300-lock-2"), Position::Mismatch(3));
        assert!(matches!(refused.position_of_new(1, 3), Position::Granted { .. }));
        assert_eq!(refused.position_of_new(2, 3), Position::First);
        assert_eq!(refused.position_of_new(1, 300), Position::Mismatch(3));
        let resizes = refused.with_any_capacity(true);
        assert!(matches!(resizes.position("b-1of300-lock-2"), Position::Granted { .. }));
        assert_eq!(resizes.position_of_new(1, 2), Position::First);
    }

    #[test]
    fn every_schedule_of_releases_keeps_the_capacity_and_the_order() {
        // All subsets of the earlier entries may be gone: a granted entry fits, and so do all entries before it.
        let names: Vec<String> = [2, 1, 3, 1, 1, 4, 2]
            .iter()
            .enumerate()
            .map(|(n, weight)| format!("x-{weight}of4-lock-{n}"))
            .collect();
        for gone in 0_u32..1 << names.len() {
            let live: Vec<String> = names
                .iter()
                .enumerate()
                .filter(|(n, _)| gone >> n & 1 == 0)
                .map(|(_, name)| name.clone())
                .collect();
            let queue = Queue::parse(Kind::Semaphore, &live);
            let held: u32 = queue.split().0.iter().map(|entry| entry.weight).sum();
            assert!(held <= 4);
            let granted = |name: &String| matches!(queue.position(name), Position::Granted { .. });
            let first_waiter = live.iter().position(|name| !granted(name)).unwrap_or(live.len());
            assert!(live.iter().skip(first_waiter).all(|name| !granted(name)), "{live:?}");
            assert_eq!(first_waiter, queue.split().0.len());
        }
    }

    #[test]
    fn the_order_survives_the_overflow_of_the_sequence() {
        let queue = queue(Kind::Mutex, &["b-lock--2147483648", "c-lock--2147483647", "a-lock-2147483647"]);
        assert_eq!(queue.position("a-lock-2147483647"), Position::Granted { followed: true });
        assert_eq!(after(&queue.position("b-lock--2147483648")), Some("a-lock-2147483647"));
        assert_eq!(after(&queue.position("c-lock--2147483647")), Some("b-lock--2147483648"));
    }
}
