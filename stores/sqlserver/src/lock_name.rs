//! The names that `sp_getapplock` gets. The server compares them byte by byte, whatever the collation, and allows 255 characters; a
//! longer one it would cut off. A name of ours that is short and of plain ASCII letters is readable in the server's own
//! views; any other becomes a hash.

use distlock_core::{Kind, Resource};
use sha2::{Digest, Sha256};

use crate::identifier::Names;
use crate::session::Process;

/// The longest name that `sp_getapplock` takes.
pub(crate) const LONGEST: usize = 255;
/// Marks a name that is a hash.
const HASHED: char = '#';
/// Room for `:queue`, and for `:` and the number of a slot.
const ENDING: usize = 12;

/// A resource as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LockName {
    text: String,
    key: [u8; 32],
}

impl LockName {
    pub(crate) fn of(names: &Names, resource: &Resource) -> Self {
        let (kind, name) = (resource.kind().as_str(), resource.name());
        let space = format!("{}:{}:{kind}:", names.schema.as_str(), names.table.as_str());
        let is_plain = name.chars().all(|c| c.is_ascii_graphic()) && !name.starts_with(HASHED);
        let text = if is_plain && space.len() + name.len() + ENDING <= LONGEST {
            format!("{space}{name}")
        } else {
            format!("{space}{HASHED}{}", hex(&Sha256::digest(name.as_bytes())))
        };
        LockName { key: key_of(resource.kind(), name), text }
    }

    /// The lock of a mutex or a reader-writer lock.
    pub(crate) fn lock(&self) -> &str {
        &self.text
    }

    /// The lock whose queue the waiters of a semaphore stand in. Not a name of a slot: those end with a number.
    pub(crate) fn queue(&self) -> String {
        format!("{}:queue", self.text)
    }

    /// What the names of a semaphore's slots begin with.
    pub(crate) fn slots(&self) -> String {
        format!("{}:", self.text)
    }

    /// Stands for one permit among those that a session holds. Not a name that the server gets.
    pub(crate) fn permit(&self, lock_id: &str) -> LockName {
        LockName { text: format!("{}:permit:{lock_id}", self.text), key: self.key }
    }

    /// The key of its rows.
    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.key
    }
}

/// The key of the rows of a resource: no collation folds it.
fn key_of(kind: Kind, name: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [kind.as_str(), name] {
        hash.update(part);
        hash.update([0]);
    }
    hash.finalize().into()
}

/// The key of a lock id.
pub(crate) fn id_key(lock_id: &str) -> [u8; 32] {
    Sha256::digest(lock_id.as_bytes()).into()
}

/// The lock that a session holds for as long as it lives. Others test it, which needs no rights.
pub(crate) fn session_lock(names: &Names, session: &str) -> String {
    format!("{}:{}:session:{session}", names.schema.as_str(), names.table.as_str())
}

/// The lock that all sessions of a process hold in shared mode.
pub(crate) fn process_lock(names: &Names, process: &Process) -> String {
    format!("{}:{}:process:{}", names.schema.as_str(), names.table.as_str(), process.as_str())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identifier::Identifier;

    fn names(schema: &str, table: &str) -> Names {
        Names {
            schema: Identifier::new("schema", schema).unwrap(),
            table: Identifier::new("table", table).unwrap(),
        }
    }

    fn name(kind: Kind, name: &str) -> LockName {
        LockName::of(&names("dbo", "t"), &Resource::new(kind, name).unwrap())
    }

    #[test]
    fn names_that_a_server_would_fold_or_cut_off_stay_apart() {
        let long = "x".repeat(4096);
        let longer = format!("{}y", "x".repeat(4095));
        let all =
            ["a", "A", "a ", " a", "ä", "a\u{308}", "Ä", "#a", "a:1", "a:queue", "\u{1F512}", &long, &longer];
        let hash_of_long = name(Kind::Mutex, &long).lock().split(":mutex:").nth(1).unwrap().to_owned();
        let all: Vec<String> =
            all.into_iter().chain([hash_of_long.as_str()]).map(|text| name(Kind::Mutex, text).text).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(one.is_ascii() && !one.contains(' ') && one.len() + ENDING <= LONGEST, "{one}");
            assert!(!all[at + 1..].contains(one), "{one}");
        }
    }

    #[test]
    fn short_names_are_readable_and_kinds_and_tables_stay_apart() {
        assert_eq!(name(Kind::Mutex, "orders/42").lock(), "dbo:t:mutex:orders/42");
        let resource = |kind| Resource::new(kind, "a").unwrap();
        let all = [
            LockName::of(&names("dbo", "t"), &resource(Kind::Mutex)),
            LockName::of(&names("dbo", "t"), &resource(Kind::RwLock)),
            LockName::of(&names("dbo", "t"), &resource(Kind::Semaphore)),
            LockName::of(&names("dbo", "T"), &resource(Kind::Mutex)),
            LockName::of(&names("app", "t"), &resource(Kind::Mutex)),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other.text != one.text));
        }
        assert_ne!(all[0].key, all[1].key);
    }

    #[test]
    fn the_longest_names_of_the_table_leave_room_for_a_hash_and_a_slot() {
        let names = names(&"s".repeat(60), &"t".repeat(60));
        let semaphore = Resource::new(Kind::Semaphore, "ü".repeat(2000)).unwrap();
        let name = LockName::of(&names, &semaphore);
        assert!(name.queue().len() <= LONGEST && name.slots().len() + 10 <= LONGEST, "{name:?}");
        assert!(session_lock(&names, &"f".repeat(64)).len() <= LONGEST);
    }
}
