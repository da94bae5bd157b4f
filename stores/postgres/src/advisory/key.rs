//! The keys of advisory locks.

use std::fmt;

use distlock_core::{Error, ErrorKind, Kind, Resource, Result};
use sha2::{Digest, Sha256};

use crate::config::{KeyScheme, PostgresConfig};
use crate::identifier::Identifier;

/// The mark of sessions, with the default schema and table.
const SESSION_MARK: i64 = 7_235_441_220_220_052_334;
/// The keys in `sql/sweep.sql` and where tokens are drawn, and the mark of sessions.
const RESERVED: [i64; 3] = [7_235_441_220_220_052_332, 7_235_441_220_220_052_333, SESSION_MARK];

/// The key of an advisory lock: one number of 64 bits or a pair of 32 bits. A number and a pair never collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdvisoryKey {
    /// As in `pg_advisory_lock(key)`.
    One(i64),
    /// As in `pg_advisory_lock(first, second)`.
    Pair(i32, i32),
}

impl AdvisoryKey {
    /// The key of a name: the first eight bytes, as a big-endian number, of the SHA-256 hash of `distlock:`, the kind,
    /// `:` and the name. Among ten thousand million names a collision has a probability of one in
    /// three hundred.
    ///
    /// This is the key with the default `distlock.schema` and `distlock.table`. With others use
    /// [`within`](AdvisoryKey::within).
    ///
    /// ```
    /// use distlock_core::Kind;
    /// use distlock_postgres::AdvisoryKey;
    ///
    /// // SELECT ('x' || left(encode(sha256('distlock:mutex:orders/42'), 'hex'), 16))::bit(64)::bigint
    /// assert_eq!(AdvisoryKey::of(Kind::Mutex, "orders/42"), AdvisoryKey::One(5748364232196426827));
    /// ```
    #[must_use]
    pub fn of(kind: Kind, name: &str) -> Self {
        AdvisoryKey::hashed(&format!("distlock:{kind}:{name}"))
    }

    /// The key of a name in the schema and table of a configuration. Unless both are the default, `schema.table:` precedes the
    /// kind, so that other schemas and tables have other keys.
    ///
    /// ```
    /// use distlock_core::Kind;
    /// use distlock_postgres::{AdvisoryKey, PostgresConfig};
    ///
    /// # fn main() -> distlock_core::Result<()> {
    /// let config = PostgresConfig::default().schema("ops")?;
    /// // SELECT ('x' || left(encode(sha256('distlock:ops.distribute_lock:mutex:nightly'), 'hex'), 16))::bit(64)::bigint
    /// assert_eq!(AdvisoryKey::within(&config, Kind::Mutex, "nightly"), AdvisoryKey::One(-6623120010363429207));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn within(config: &PostgresConfig, kind: Kind, name: &str) -> Self {
        let (schema, table) = (&config.schema, &config.table);
        if *schema == Identifier::PUBLIC && *table == Identifier::DISTRIBUTE_LOCK {
            return AdvisoryKey::of(kind, name);
        }
        AdvisoryKey::hashed(&format!("distlock:{}.{}:{kind}:{name}", schema.as_str(), table.as_str()))
    }

    fn hashed(text: &str) -> Self {
        let hash = Sha256::digest(text.as_bytes());
        let first = hash.iter().take(8).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
        AdvisoryKey::One(first.cast_signed())
    }

    /// Reads `42` or `7,9`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let parsed = match text.split_once(',') {
            Some((first, second)) => first
                .trim()
                .parse()
                .ok()
                .zip(second.trim().parse().ok())
                .map(|(a, b)| AdvisoryKey::Pair(a, b)),
            None => text.trim().parse().ok().map(AdvisoryKey::One),
        };
        parsed.ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, format!("{text:?} is not the key of an advisory lock"))
                .advise(
                    "with distlock.keys=raw, write a number of 64 bits like 42, or two of 32 bits like 7,9",
                )
        })
    }

    /// The key of a resource, by the key scheme of the configuration.
    pub(super) fn of_resource(resource: &Resource, config: &PostgresConfig) -> Result<Self> {
        match config.keys {
            KeyScheme::Hashed => Ok(AdvisoryKey::within(config, resource.kind(), resource.name())),
            KeyScheme::Raw => AdvisoryKey::parse(resource.name())
                .and_then(|key| key.unless_reserved(config))
                .map_err(|error| error.about(resource)),
        }
    }

    /// Refuses the keys that this library locks itself: its holder would block all other clients.
    fn unless_reserved(self, config: &PostgresConfig) -> Result<Self> {
        let mark = AdvisoryKey::session_mark(&config.schema, &config.table);
        match self {
            AdvisoryKey::One(key) if RESERVED.contains(&key) || key == mark => {
                Err(Error::new(ErrorKind::InvalidInput, format!("the key {key} is reserved"))
                    .advise("use another number: this library locks that one itself"))
            }
            key => Ok(key),
        }
    }

    /// The key that every session of the advisory locks of a schema and table holds in shared mode.
    pub(crate) fn session_mark(schema: &Identifier, table: &Identifier) -> i64 {
        if *schema == Identifier::PUBLIC && *table == Identifier::DISTRIBUTE_LOCK {
            return SESSION_MARK;
        }
        match AdvisoryKey::hashed(&format!("distlock:{}.{}:session", schema.as_str(), table.as_str())) {
            AdvisoryKey::One(key) => key,
            AdvisoryKey::Pair(..) => SESSION_MARK,
        }
    }

    /// As the statements have it: one number, whether it is a pair, and the second key of the pair.
    pub(super) fn parts(self) -> (i64, bool, i32) {
        match self {
            AdvisoryKey::One(key) => (key, false, 0),
            AdvisoryKey::Pair(first, second) => {
                let combined = (i64::from(first) << 32) | i64::from(second.cast_unsigned());
                (combined, true, second)
            }
        }
    }
}

/// `42` or `7,9`.
impl fmt::Display for AdvisoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdvisoryKey::One(key) => write!(f, "{key}"),
            AdvisoryKey::Pair(first, second) => write!(f, "{first},{second}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::store::StoreUrl;

    use super::*;

    #[test]
    fn raw_keys_are_read_and_other_text_is_refused() {
        assert_eq!(AdvisoryKey::parse("42").unwrap(), AdvisoryKey::One(42));
        assert_eq!(AdvisoryKey::parse("-9223372036854775808").unwrap(), AdvisoryKey::One(i64::MIN));
        assert_eq!(AdvisoryKey::parse("7,-9").unwrap(), AdvisoryKey::Pair(7, -9));
        for bad in ["", "x", "1,2,3", "1,", "9223372036854775808", "3000000000,1", "1;2", "' OR 1"] {
            assert_eq!(AdvisoryKey::parse(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
    }

    #[test]
    fn raw_keys_that_the_library_locks_itself_are_refused() {
        let config = |options: &str| {
            let url =
                StoreUrl::parse(&format!("postgres+advisory://h/db?distlock.keys=raw{options}")).unwrap();
            PostgresConfig::from_url(&url).unwrap()
        };
        let key = |name: String, config: &PostgresConfig| {
            AdvisoryKey::of_resource(&Resource::new(Kind::Mutex, name).unwrap(), config)
        };
        let (plain, other) = (config(""), config("&distlock.schema=a"));
        let mark = AdvisoryKey::session_mark(&other.schema, &other.table);
        for reserved in RESERVED {
            for config in [&plain, &other] {
                assert_eq!(key(reserved.to_string(), config).unwrap_err().kind(), ErrorKind::InvalidInput);
            }
        }
        assert_eq!(key(mark.to_string(), &other).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(key("42".into(), &plain).unwrap(), AdvisoryKey::One(42));
        for text in [include_str!("../sql/sweep.sql"), include_str!("../sql/advisory_try_one.sql")] {
            assert!(RESERVED.iter().any(|reserved| text.contains(&reserved.to_string())));
        }
    }

    #[test]
    fn a_pair_is_combined_as_the_server_shows_it() {
        assert_eq!(AdvisoryKey::Pair(7, 9).parts(), ((7 << 32) | 9, true, 9));
        assert_eq!(AdvisoryKey::Pair(-1, -1).parts(), (-1, true, -1));
    }

    #[test]
    fn kinds_of_one_name_have_keys_of_their_own() {
        assert_ne!(AdvisoryKey::of(Kind::Mutex, "a"), AdvisoryKey::of(Kind::RwLock, "a"));
    }

    #[test]
    fn schemas_and_tables_have_keys_of_their_own() {
        let key = |options: &str| {
            let url = StoreUrl::parse(&format!("postgres+advisory://h/db?{options}")).unwrap();
            AdvisoryKey::within(&PostgresConfig::from_url(&url).unwrap(), Kind::Mutex, "a")
        };
        assert_eq!(key(""), AdvisoryKey::of(Kind::Mutex, "a"));
        assert_eq!(key("distlock.schema=public"), key(""));
        assert_ne!(key("distlock.schema=a"), key(""));
        assert_ne!(key("distlock.table=a"), key(""));
        assert_ne!(key("distlock.schema=a&distlock.table=b"), key("distlock.schema=b&distlock.table=a"));
    }
}
