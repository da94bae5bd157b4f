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

    /// Puts names into the places that a file of ours has for them. `{millis(X)}` and `{micros(X)}` stand for a time or an
    /// interval as a whole number.
    pub(crate) fn fill(&self, text: &str) -> String {
        let text = counted(&counted(text, "{millis(", 1_000), "{micros(", 1_000_000);
        let mut text = text.replace("{table}", &self.named("")).replace("{schema}", &self.schema.quoted());
        for ending in ["pool", "session", "session_pool", "token", "fence"] {
            text = text.replace(&format!("{{{ending}}}"), &self.named(&format!("_{ending}")));
            let constraint = self.lease.with_ending(&format!("_{ending}_pk"));
            text = text.replace(&format!("{{{ending}_pk}}"), &constraint.quoted());
        }
        text.replace("{table_pk}", &self.lease.with_ending("_pk").quoted())
    }
}

/// The operator is qualified because `extract` gives a number of another type than the factor: an operator for exactly these
/// two types, which any user might create, would be preferred to the server's own.
fn counted(text: &str, open: &str, each_second: u32) -> String {
    let mut pieces = text.split(open);
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (time, rest) = piece.split_once(")}").unwrap_or((piece, ""));
        let extracted = format!("extract(epoch FROM {time}) OPERATOR(pg_catalog.*) {each_second}");
        filled.push_str(&format!("pg_catalog.floor({extracted})::bigint{rest}"));
    }
    filled
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// What looks like a call of a function and is none: parts of the grammar. `unnest` of several arguments is one too.
    const GRAMMAR: [&str; 6] = ["coalesce", "extract", "greatest", "least", "nullif", "operator"];

    fn without_comments_and_strings(text: &str) -> String {
        let lines = text.lines().map(|line| match line.find("-- ") {
            Some(at) => &line[..at],
            None => line,
        });
        let text: String = lines.collect::<Vec<_>>().join("\n");
        text.split('\'').step_by(2).collect::<Vec<_>>().join("''")
    }

    /// The calls in a statement that are not qualified.
    fn unqualified(text: &str) -> Vec<String> {
        let text = without_comments_and_strings(text);
        let mut found = Vec::new();
        for (at, _) in text.match_indices('(') {
            let before = &text[..at];
            let start =
                before.rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map_or(0, |at| at + 1);
            let (name, before) = (&before[start..], &before[..start]);
            let grammar = GRAMMAR.contains(&name.to_ascii_lowercase().as_str()) || name.is_empty();
            let placeholder = before.ends_with('{');
            let several = name == "unnest" && text[at..].split(')').next().unwrap_or_default().contains(',');
            if grammar || placeholder || several || before.ends_with("pg_catalog.") {
                continue;
            }
            found.push(name.to_owned());
        }
        found
    }

    /// Any user may create a function in `public`, before PostgreSQL 15 and in databases that were upgraded; one that fits
    /// the types of a call better than the server's own is preferred to it.
    #[test]
    fn every_call_of_a_function_in_our_statements_is_qualified() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sql");
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(unqualified(&text), Vec::<String>::new(), "in {}", path.display());
            // As long as a literal has no type, an operator that takes two of the other one's is preferred.
            for literal in text.split("->").skip(1).map(|rest| rest.trim_start_matches('>').trim_start()) {
                let typed = literal.split('\'').nth(2).is_some_and(|rest| rest.starts_with("::text"));
                assert!(typed || !literal.starts_with('\''), "in {}: -> {literal:.20}", path.display());
            }
            files += 1;
        }
        assert!(files > 20, "the statements have moved");
        assert_eq!(
            unqualified("SELECT now(), x.concat_ws(a), count(*) FROM unnest(a) AS u (b)"),
            ["now", "concat_ws", "count", "unnest"]
        );
    }
}
