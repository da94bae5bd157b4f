//! Names of the schema, the table and the sequence, and statements with these names filled in.

use distlock_core::{Error, ErrorKind, Result};

/// Leaves room for endings within the 128 characters that the server allows.
const LONGEST: usize = 100;

/// A name that can stand in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identifier(String);

impl Identifier {
    pub(crate) fn new(what: &str, name: &str) -> Result<Self> {
        let well_formed = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if well_formed && !name.is_empty() && name.len() <= LONGEST {
            return Ok(Identifier(name.to_owned()));
        }
        // The name is not repeated: it may be a part of a URL that was put in the wrong place.
        Err(Error::new(ErrorKind::InvalidInput, format!("the name of the {what} cannot be used"))
            .advise("use ASCII letters, digits, _ and -, and at most 100 characters"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where holders are recorded and tokens are drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) schema: Identifier,
    pub(crate) table: Identifier,
}

impl Names {
    fn quoted(&self, ending: &str) -> String {
        format!("[{}].[{}{ending}]", self.schema.as_str(), self.table.as_str())
    }

    /// The table of the holders, as the server's functions want it in a text.
    pub(crate) fn holders(&self) -> String {
        self.quoted("_holder")
    }

    pub(crate) fn tokens(&self) -> String {
        self.quoted("_token")
    }

    /// A file of statements with its names filled in.
    pub(crate) fn fill(&self, text: &str) -> String {
        text.replace("{holders}", &self.holders())
            .replace("{tokens}", &self.tokens())
            .replace("{schema}", self.schema.as_str())
            .replace("{table}", self.table.as_str())
    }

    /// A statement of a file: comments left out, names filled in.
    pub(crate) fn statement(&self, text: &str) -> String {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        self.fill(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_its_brackets() {
        for good in ["a", "distribute_lock", "A-1", "x".repeat(100).as_str()] {
            assert!(Identifier::new("table", good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a]b", "a[b", "a.b", "größe", "a;b", "a'b", "a\0b", "x".repeat(101).as_str()]
        {
            assert!(Identifier::new("table", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_statement_has_no_comments_and_no_gaps() {
        let names = Names { schema: Identifier("dbo".into()), table: Identifier("t".into()) };
        let text = names.statement("-- why\nSELECT 1 FROM {holders}, {tokens}");
        assert_eq!(text, "SELECT 1 FROM [dbo].[t_holder], [dbo].[t_token]");
    }
}
