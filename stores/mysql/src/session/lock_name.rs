//! The names that `GET_LOCK` gets. The server compares its names without regard to case, allows 64 characters, and knows one
//! set of names for all databases. So a name of ours becomes a hash of database, table, kind and name.

use distlock_core::Resource;
use sha2::{Digest, Sha256};

use crate::batch::literal;
use crate::identifier::Tables;

const PREFIX: &str = "distlock.";
/// 216 bits: 54 digits after the prefix, 63 characters in all.
const BYTES: usize = 27;

/// The hash of a resource, which is the key of its row, and the lock's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LockName([u8; 32]);

impl LockName {
    pub(super) fn of(tables: &Tables, resource: &Resource) -> Self {
        let mut hash = Sha256::new();
        for part in [tables.database(), tables.name("").as_str(), resource.kind().as_str(), resource.name()] {
            hash.update(part);
            hash.update([0]);
        }
        LockName(hash.finalize().into())
    }

    /// The key of its row, as a literal.
    pub(super) fn key(&self) -> String {
        literal(&self.0)
    }

    /// The lock's name: letters, digits and a dot.
    pub(super) fn text(&self) -> String {
        let digits: String = self.0[..BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{PREFIX}{digits}")
    }
}

/// The lock's name as SQL, from the key of its row.
pub(super) const FROM_KEY: &str = "CONCAT('distlock.', LOWER(HEX(LEFT(k, 27))))";

#[cfg(test)]
mod tests {
    use distlock_core::Kind;

    use super::*;
    use crate::identifier::Identifier;

    fn name(database: &str, name: &str) -> String {
        let tables = Tables::new(
            Identifier::new("database", database).unwrap(),
            Identifier::new("table", "t").unwrap(),
        );
        LockName::of(&tables, &Resource::new(Kind::Mutex, name).unwrap()).text()
    }

    #[test]
    fn names_that_the_server_would_fold_stay_apart() {
        let long = "x".repeat(4096);
        let names = [
            name("d", "a"),
            name("d", "A"),
            name("d", "a "),
            name("e", "a"),
            name("d", "ä"),
            name("d", &long),
        ];
        for (at, one) in names.iter().enumerate() {
            assert!(one.len() <= 64, "{one}");
            assert_eq!(*one, one.to_lowercase());
            assert!(!names[at + 1..].contains(one));
        }
        assert!(FROM_KEY.contains(PREFIX) && FROM_KEY.contains(&BYTES.to_string()));
    }
}
