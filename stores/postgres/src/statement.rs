//! A statement: its text, the types of its parameters, and the slot in which a connection keeps it prepared.

use tokio_postgres::types::{ToSql, Type};

use crate::tables::Tables;

/// Every statement that a connection may prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    LockAcquireOne,
    LockAcquireBatch,
    LockRenew,
    LockReleaseOne,
    LockReleaseBatch,
    LockBreak,
    LockInspect,
    LockSweep,
    LockQueueFull,
    LockRowLocks,
    RowBlockers,
    PoolBatch,
    PoolBreak,
    PoolInspect,
    PoolSweep,
    PoolRowLocks,
    AdvisoryTry,
    AdvisoryTryOne,
    AdvisoryTryBatch,
    AdvisoryUnlockOne,
    AdvisoryUnlockBatch,
    AdvisoryReleaseBatch,
    AdvisoryInsertRows,
    AdvisoryDeleteRows,
    AdvisoryWithoutRow,
    AdvisoryTryUnlessWaiters,
    AdvisoryRegisterWaiter,
    AdvisoryWait,
    AdvisoryShowHolder,
    AdvisoryRelease,
    AdvisoryWithdrawWaiter,
    AdvisoryInspect,
    AdvisoryCancel,
    AdvisoryEndedPermits,
}

impl Slot {
    pub(crate) const COUNT: usize = Slot::AdvisoryEndedPermits as usize + 1;
}

/// How long a statement waits for a row that another session has locked. Our own sessions lock a row for a few milliseconds, and
/// they may queue for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowLockTimeout {
    /// As long as a row may be locked on a busy server, and no longer than the other requests on the connection can wait.
    Default,
    /// For rows that are probably locked for long.
    Short,
    /// For a row that clients of ours queue for, and a statement that must get its turn: those before it in the queue of the row
    /// have left after [`Default`](Self::Default).
    Turn,
}

impl RowLockTimeout {
    /// The value of `lock_timeout`.
    pub(crate) const fn milliseconds(self) -> u64 {
        match self {
            RowLockTimeout::Default => 250,
            RowLockTimeout::Short => 20,
            RowLockTimeout::Turn => 1000,
        }
    }
}

/// One statement. On a direct connection it is prepared after a few uses. Behind a pooler it is sent as text each time,
/// because the session that prepared it may be another one by then.
///
/// A statement that may wait for a row has a condition `{limit}` that is evaluated before the wait. On our own sessions it is
/// `true`, and `lock_timeout` is a setting of the session; behind a pooler it sets `lock_timeout` for the transaction.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) slot: Slot,
    pub(crate) text: String,
    /// For sessions whose settings are not ours.
    pub(crate) limited_text: String,
    template: String,
    pub(crate) types: &'static [Type],
}

impl Statement {
    pub(crate) fn new(slot: Slot, text: &str, tables: &Tables, types: &'static [Type]) -> Self {
        let template = tables.fill(text);
        let text = template.replace("{limit}", "true");
        let limited_text = limited(&template, RowLockTimeout::Default);
        Statement { slot, text, limited_text, template, types }
    }

    /// For a session whose `lock_timeout` is off: the statement sets its own limit.
    pub(crate) fn with_own_limit(slot: Slot, text: &str, tables: &Tables, types: &'static [Type]) -> Self {
        let statement = Statement::new(slot, text, tables, types);
        Statement { text: statement.limited_text.clone(), ..statement }
    }

    /// The text with a time limit of its own.
    pub(crate) fn text_with(&self, timeout: RowLockTimeout) -> String {
        limited(&self.template, timeout)
    }
}

fn limited(template: &str, timeout: RowLockTimeout) -> String {
    let milliseconds = timeout.milliseconds();
    let set = format!("pg_catalog.set_config('lock_timeout', '{milliseconds}', true) IS NOT NULL");
    template.replace("{limit}", &set)
}

/// A statement with its parameters.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) statement: &'a Statement,
    pub(crate) parameters: &'a [&'a (dyn ToSql + Sync)],
    pub(crate) timeout: RowLockTimeout,
}

impl<'a> Request<'a> {
    pub(crate) fn new(statement: &'a Statement, parameters: &'a [&'a (dyn ToSql + Sync)]) -> Self {
        Request { statement, parameters, timeout: RowLockTimeout::Default }
    }

    pub(crate) fn with_timeout(self, timeout: RowLockTimeout) -> Self {
        Request { timeout, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Parts of the grammar that look like calls of functions. `unnest` of several arguments is one too.
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

    /// Any user may create a function in `public`, before PostgreSQL 15 and in databases that were upgraded. A function that
    /// fits the types of a call better than the server's own is preferred to it.
    #[test]
    fn every_call_of_a_function_in_our_statements_is_qualified() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sql");
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(unqualified(&text), Vec::<String>::new(), "in {}", path.display());
            // As long as a literal has no type, an operator that takes two of the other operand's type is preferred.
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
