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

/// How long a statement waits for a row that another session has locked. Our own sessions have the row for a few
/// milliseconds; whatever takes longer is not one of ours, or a server that is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as a row may be locked on a busy server, and no longer than the other requests on the connection can wait.
    Usual,
    /// For rows that are suspected to be locked for long.
    Brief,
}

impl Patience {
    /// In milliseconds, for `lock_timeout`.
    pub(crate) const fn milliseconds(self) -> u64 {
        match self {
            Patience::Usual => 250,
            Patience::Brief => 20,
        }
    }
}

/// One statement. Where the connection leads to the server itself it is prepared once it was used a few times; behind a
/// pooler it is sent whole each time, since the session that prepared it may be another one by then.
///
/// A statement that may wait for a row has a condition `{limit}` that is evaluated before the wait. On our own sessions it is
/// `true`, and `lock_timeout` is a setting of the session; behind a pooler it sets `lock_timeout` for the transaction.
#[derive(Debug)]
pub(crate) struct Statement {
    /// Where a connection keeps it when it is prepared.
    pub(crate) slot: usize,
    pub(crate) text: String,
    /// For sessions whose settings are not ours.
    pub(crate) limited: String,
    template: String,
    pub(crate) types: &'static [Type],
}

impl Statement {
    /// How many slots a connection has.
    pub(crate) const SLOTS: usize = 16;

    pub(crate) fn new(slot: usize, text: &str, tables: &Tables, types: &'static [Type]) -> Self {
        debug_assert!(slot < Statement::SLOTS);
        let template = tables.fill(text);
        let text = template.replace("{limit}", "true");
        let limited = limit(&template, Patience::Usual);
        Statement { slot, text, limited, template, types }
    }

    /// For a session whose `lock_timeout` is off: the limit is part of the statement.
    pub(crate) fn of_session(slot: usize, text: &str, tables: &Tables, types: &'static [Type]) -> Self {
        let statement = Statement::new(slot, text, tables, types);
        Statement { text: statement.limited.clone(), ..statement }
    }

    /// The text for one short try.
    pub(crate) fn brief(&self) -> String {
        limit(&self.template, Patience::Brief)
    }
}

fn limit(template: &str, patience: Patience) -> String {
    let milliseconds = patience.milliseconds();
    let set = format!("pg_catalog.set_config('lock_timeout', '{milliseconds}', true) IS NOT NULL");
    template.replace("{limit}", &set)
}
