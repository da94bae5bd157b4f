//! Names of databases and tables: the only text that becomes part of a statement.

use distlock_core::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use crate::config::DEFAULT_TABLE;

/// The longest name of a database or a table, in characters.
const LONGEST: usize = 64;

/// ASCII letters, digits, `_` and `-`, not digits alone. Always written in backquotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identifier(String);

impl Identifier {
    pub(crate) fn distribute_lock() -> Self {
        Identifier(DEFAULT_TABLE.to_owned())
    }

    pub(crate) fn new(what: &str, name: &str) -> Result<Self> {
        let well_formed = !name.is_empty()
            && name.len() <= LONGEST
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
            && !name.chars().all(|c| c.is_ascii_digit());
        if well_formed {
            return Ok(Identifier(name.to_owned()));
        }
        // The text may be a piece of a password that was not escaped, so it is not repeated.
        Err(Error::new(ErrorKind::InvalidInput, format!("the name of the {what} cannot be used"))
            .advise("use ASCII letters, digits, _ and -, not digits alone, and at most 64 characters"))
    }

    /// This name with an ending. A name that would become too long is cut and told from others by a hash.
    pub(crate) fn with_ending(&self, ending: &str) -> Identifier {
        let whole = format!("{}{ending}", self.0);
        if whole.len() <= LONGEST {
            return Identifier(whole);
        }
        let hash: String =
            Sha256::digest(self.0.as_bytes()).iter().take(4).map(|b| format!("{b:02x}")).collect();
        let room = LONGEST - ending.len() - hash.len() - 1;
        Identifier(format!("{}_{hash}{ending}", &self.0[..room]))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The tables of a store.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    database: Identifier,
    table: Identifier,
}

impl Tables {
    pub(crate) fn new(database: Identifier, table: Identifier) -> Self {
        Tables { database, table }
    }

    pub(crate) fn database(&self) -> &str {
        self.database.as_str()
    }

    /// The name of a table without its database.
    pub(crate) fn name(&self, ending: &str) -> Identifier {
        self.table.with_ending(ending)
    }

    /// A table as it stands in a statement.
    pub(crate) fn quoted(&self, ending: &str) -> String {
        format!("`{}`.`{}`", self.database.as_str(), self.name(ending).as_str())
    }

    /// A statement of a file: comments left out, tables and the clock filled in.
    pub(crate) fn statement(&self, text: &str) -> String {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        lines
            .join("\n")
            .replace("{lock}", &self.quoted(""))
            .replace("{pool}", &self.quoted("_pool"))
            .replace("{entry}", &self.quoted("_entry"))
            .replace("{session}", &self.quoted("_session"))
            .replace("{now}", NOW)
    }

    /// The statements that create tables, with their comments.
    pub(crate) fn schema(&self, text: &str) -> String {
        text.replace("{lock}", &self.quoted(""))
            .replace("{pool}", &self.quoted("_pool"))
            .replace("{entry}", &self.quoted("_entry"))
            .replace("{session}", &self.quoted("_session"))
    }
}

/// Microseconds since 1970 by the server's UTC clock, whatever the session's time zone. It is the time at which the
/// statement that reads it began, so it is read in a statement of its own after rows were locked.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_its_quotes() {
        for good in ["a", "distribute_lock", "A-1", "x".repeat(64).as_str()] {
            assert!(Identifier::new("table", good).is_ok(), "{good}");
        }
        for bad in ["", "1", "a b", "a`b", "a.b", "größe", "a;b", "a\0b", "x".repeat(65).as_str()] {
            assert!(Identifier::new("table", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn long_names_stay_apart_when_they_are_cut() {
        let name = |end: &str| Identifier::new("table", &format!("{}{end}", "x".repeat(63))).unwrap();
        let (one, other) = (name("a").with_ending("_pool"), name("b").with_ending("_pool"));
        assert_ne!(one, other);
        assert_eq!((one.as_str().len(), other.as_str().len()), (64, 64));
    }

    #[test]
    fn a_statement_has_no_comments_and_no_gaps() {
        let tables = Tables::new(Identifier("d".into()), Identifier("t".into()));
        let text = tables.statement("-- why\nSELECT {now} FROM {lock}");
        assert_eq!(text, format!("SELECT {NOW} FROM `d`.`t`"));
    }
}
