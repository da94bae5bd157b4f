//! A statement of ours: its text, with our tables' names in their places, and the types of its parameters.

use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::identifier::Identifier;

/// The names of everything we create in a database, quoted.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    schema: Identifier,
    lease: Identifier,
}

impl Tables {
    pub(crate) fn of(config: &PostgresConfig) -> Self {
        Tables { schema: config.schema.clone(), lease: config.table.clone() }
    }

    pub(crate) fn schema(&self) -> &Identifier {
        &self.schema
    }

    fn qualified(&self, name: &Identifier) -> String {
        format!("{}.{}", self.schema.quoted(), name.quoted())
    }

    /// The table or sequence with this ending, qualified; `""` is the lease table.
    pub(crate) fn named(&self, ending: &str) -> String {
        self.qualified(&self.lease.with_ending(ending))
    }

    /// Puts names into the places that a file of ours has for them.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut text = text.replace("{table}", &self.named("")).replace("{schema}", &self.schema.quoted());
        for ending in ["pool", "session", "session_pool", "token", "fence"] {
            text = text.replace(&format!("{{{ending}}}"), &self.named(&format!("_{ending}")));
            let constraint = self.lease.with_ending(&format!("_{ending}_pk"));
            text = text.replace(&format!("{{{ending}_pk}}"), &constraint.quoted());
        }
        text.replace("{table_pk}", &self.lease.with_ending("_pk").quoted())
    }
}

/// One statement. Where the connection leads to the server itself it is prepared once it was used a few times; behind a
/// pooler it is sent whole each time, since the session that prepared it may be another one by then.
#[derive(Debug)]
pub(crate) struct Statement {
    /// Where a connection keeps it when it is prepared.
    pub(crate) slot: usize,
    pub(crate) text: String,
    pub(crate) types: &'static [Type],
}

impl Statement {
    /// How many slots a connection has.
    pub(crate) const SLOTS: usize = 16;

    pub(crate) fn new(slot: usize, text: &str, tables: &Tables, types: &'static [Type]) -> Self {
        debug_assert!(slot < Statement::SLOTS);
        Statement { slot, text: tables.fill(text), types }
    }
}
