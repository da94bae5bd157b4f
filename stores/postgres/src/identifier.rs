//! Names of schemas and tables: the only text of users that becomes part of a statement.

use std::borrow::Cow;

use distlock_core::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

/// The longest identifier that PostgreSQL keeps; it truncates longer ones without an error.
const MAX_LENGTH: usize = 63;

/// Letters, digits and `_`, not beginning with a digit, at most 63 bytes. Always quoted in statements, so that it is
/// case-sensitive and may be a reserved word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identifier(Cow<'static, str>);

impl Identifier {
    pub(crate) const PUBLIC: Identifier = Identifier(Cow::Borrowed("public"));
    pub(crate) const DISTRIBUTE_LOCK: Identifier = Identifier(Cow::Borrowed("distribute_lock"));

    pub(crate) fn new(what: &str, name: &str) -> Result<Self> {
        let well_formed = !name.is_empty()
            && name.len() <= MAX_LENGTH
            && !name.starts_with(|c: char| c.is_numeric())
            && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if well_formed {
            return Ok(Identifier(Cow::Owned(name.to_owned())));
        }
        Err(Error::new(ErrorKind::InvalidInput, format!("{name:?} is not a valid name of a {what}"))
            .advise("use letters, digits and _, not a digit first, and at most 63 bytes"))
    }

    /// This name with a suffix. A name that would become too long is truncated, and a hash keeps it unique.
    pub(crate) fn with_suffix(&self, suffix: &str) -> Identifier {
        let whole = format!("{}{suffix}", self.0);
        if whole.len() <= MAX_LENGTH {
            return Identifier(Cow::Owned(whole));
        }
        let hash = Sha256::digest(self.0.as_bytes());
        let hash: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let mut room = MAX_LENGTH - suffix.len() - hash.len() - 1;
        while !self.0.is_char_boundary(room) {
            room -= 1;
        }
        Identifier(Cow::Owned(format!("{}_{hash}{suffix}", &self.0[..room])))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// As a statement contains it.
    pub(crate) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_letters_digits_and_underscores_pass() {
        for good in ["a", "_a1", "Distribute_Lock", "größe", "x".repeat(63).as_str()] {
            assert!(Identifier::new("table", good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "1a",
            "a b",
            "a\"b",
            "a;b",
            "a.b",
            "a-b",
            "a'",
            "a\0",
            "a\n",
            "\u{202e}",
            &"x".repeat(64),
            &"é".repeat(32),
        ] {
            let error = Identifier::new("table", bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
    }

    #[test]
    fn long_names_stay_distinct_with_a_suffix() {
        let (a, b) = ("a".repeat(62) + "1", "a".repeat(62) + "2");
        let [a, b] = [a, b].map(|name| Identifier::new("table", &name).unwrap().with_suffix("_pool"));
        assert!(a.as_str().len() <= 63 && a != b && a.as_str().ends_with("_pool"));
        let truncated = Identifier::new("table", &"é".repeat(31)).unwrap().with_suffix("_pool");
        assert!(truncated.as_str().len() <= 63);
        assert_eq!(Identifier::DISTRIBUTE_LOCK.with_suffix("_pool").as_str(), "distribute_lock_pool");
    }
}
