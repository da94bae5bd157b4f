//! The names of everything we create in a database, and the templates of statements that contain them.

use crate::advisory::AdvisoryKey;
use crate::config::PostgresConfig;
use crate::identifier::Identifier;

/// Pieces that several statements contain, by the placeholder that stands for them.
const FRAGMENTS: [(&str, &str); 3] = [
    ("{advisory_locks}", include_str!("sql/advisory_locks.sql")),
    ("{live_sessions}", include_str!("sql/live_sessions.sql")),
    ("{this_database}", include_str!("sql/this_database.sql")),
];

/// The names of our tables, quoted.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    schema: Identifier,
    lease: Identifier,
}

impl Tables {
    pub(crate) fn new(config: &PostgresConfig) -> Self {
        Tables { schema: config.schema.clone(), lease: config.table.clone() }
    }

    pub(crate) fn schema(&self) -> &Identifier {
        &self.schema
    }

    /// The qualified name of the table or sequence with this suffix; `""` is the lease table.
    pub(crate) fn named(&self, suffix: &str) -> String {
        format!("{}.{}", self.schema.quoted(), self.lease.with_suffix(suffix).quoted())
    }

    /// Replaces the placeholders of a template. `{millis(X)}` and `{micros(X)}` stand for a time or an interval as a whole
    /// number.
    pub(crate) fn fill(&self, template: &str) -> String {
        let text = whole_number(&whole_number(&expand(template), "{millis(", 1_000), "{micros(", 1_000_000);
        let mut text = text.replace("{table}", &self.named("")).replace("{schema}", &self.schema.quoted());
        for suffix in ["pool", "session", "session_pool", "token", "fence"] {
            text = text.replace(&format!("{{{suffix}}}"), &self.named(&format!("_{suffix}")));
            let constraint = self.lease.with_suffix(&format!("_{suffix}_pk"));
            text = text.replace(&format!("{{{suffix}_pk}}"), &constraint.quoted());
        }
        // An advisory lock that every session of advisory locks holds in shared mode: the sessions of this library.
        let mark = AdvisoryKey::session_mark(&self.schema, &self.lease);
        text.replace("{session_mark}", &mark.to_string())
            .replace("{table_pk}", &self.lease.with_suffix("_pk").quoted())
    }
}

/// Replaces the placeholders that do not depend on the names of tables.
pub(crate) fn expand(template: &str) -> String {
    FRAGMENTS.iter().fold(template.to_owned(), |text, (placeholder, fragment)| {
        text.replace(placeholder, fragment.trim_end())
    })
}

/// The operator is qualified because `extract` returns another type than the factor's: an operator for exactly these two
/// types, which any user may create, would be preferred to the server's own.
fn whole_number(text: &str, open: &str, units_per_second: u32) -> String {
    let mut pieces = text.split(open);
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (time, rest) = piece.split_once(")}").unwrap_or((piece, ""));
        let extracted = format!("extract(epoch FROM {time}) OPERATOR(pg_catalog.*) {units_per_second}");
        filled.push_str(&format!("pg_catalog.floor({extracted})::bigint{rest}"));
    }
    filled
}

/// The two tables of pool rows. Both stores use the same statements on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolTable {
    /// Holders and waiters expire.
    Leases,
    /// Holders and waiters last as long as their sessions.
    Sessions,
}

impl PoolTable {
    /// A template for this table.
    pub(crate) fn template(self, text: &str) -> String {
        let (sessions, pool, key) = match self {
            PoolTable::Leases => ("false", "{pool}", "{pool_pk}"),
            PoolTable::Sessions => ("true", "{session_pool}", "{session_pool_pk}"),
        };
        expand(text).replace("{sessions}", sessions).replace("{pool}", pool).replace("{pool_pk}", key)
    }
}
