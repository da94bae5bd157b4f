//! The statements of a store, with its names filled in.

use std::sync::Arc;

use crate::identifier::Names;

#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) lock_try: Arc<str>,
    pub(crate) lock_wait: Arc<str>,
    pub(crate) lock_confirm: Arc<str>,
    pub(crate) lock_release: Arc<str>,
    pub(crate) bare_lock: Arc<str>,
    pub(crate) bare_release: Arc<str>,
    pub(crate) settled: Arc<str>,
    pub(crate) paid: Arc<str>,
    pub(crate) pool_queue: Arc<str>,
    pub(crate) pool_others: Arc<str>,
    pub(crate) pool_free: Arc<str>,
    pub(crate) pool_take: Arc<str>,
    pub(crate) slots_release: Arc<str>,
    pub(crate) inspect: Arc<str>,
    pub(crate) alive: Arc<str>,
    pub(crate) sweep: Arc<str>,
    pub(crate) pending: Arc<str>,
    pub(crate) forget: Arc<str>,
}

impl Statements {
    pub(crate) fn new(names: &Names) -> Self {
        let fill = |text: &str| -> Arc<str> { names.statement(text).into() };
        Statements {
            lock_try: fill(include_str!("sql/lock_try.sql")),
            lock_wait: fill(include_str!("sql/lock_wait.sql")),
            lock_confirm: fill(include_str!("sql/lock_confirm.sql")),
            lock_release: fill(include_str!("sql/lock_release.sql")),
            bare_lock: fill(include_str!("sql/bare_lock.sql")),
            bare_release: fill(include_str!("sql/bare_release.sql")),
            settled: fill(include_str!("sql/settled.sql")),
            paid: fill(include_str!("sql/paid.sql")),
            pool_queue: fill(include_str!("sql/pool_queue.sql")),
            pool_others: fill(include_str!("sql/pool_others.sql")),
            pool_free: fill(include_str!("sql/pool_free.sql")),
            pool_take: fill(include_str!("sql/pool_take.sql")),
            slots_release: fill(include_str!("sql/slots_release.sql")),
            inspect: fill(include_str!("sql/inspect.sql")),
            alive: fill(include_str!("sql/session_alive.sql")),
            sweep: fill(include_str!("sql/sweep.sql")),
            pending: fill(include_str!("sql/pending.sql")),
            forget: fill(include_str!("sql/session_forget.sql")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identifier::Identifier;

    fn all() -> Vec<Arc<str>> {
        let names = Names {
            schema: Identifier::new("schema", "dbo").unwrap(),
            table: Identifier::new("table", "t").unwrap(),
        };
        let Statements {
            lock_try,
            lock_wait,
            lock_confirm,
            lock_release,
            bare_lock,
            bare_release,
            settled,
            paid,
            pool_queue,
            pool_others,
            pool_free,
            pool_take,
            slots_release,
            inspect,
            alive,
            sweep,
            pending,
            forget,
        } = Statements::new(&names);
        vec![
            lock_try,
            lock_wait,
            lock_release,
            lock_confirm,
            bare_lock,
            bare_release,
            settled,
            paid,
            pool_queue,
            pool_others,
            pool_free,
            pool_take,
            slots_release,
            inspect,
            alive,
            sweep,
            pending,
            forget,
        ]
    }

    #[test]
    fn every_lock_lives_with_its_session_and_none_with_a_transaction() {
        for statement in all() {
            let calls = statement.matches("applock @Resource").count();
            assert_eq!(statement.matches("@LockOwner = 'Session'").count(), calls, "{statement}");
            assert!(!statement.contains("'Transaction'") && !statement.contains("BEGIN TRAN"), "{statement}");
        }
    }

    #[test]
    fn every_lock_is_of_the_principal_that_was_asked_for() {
        for statement in all() {
            let calls = statement.matches("applock @Resource").count();
            assert_eq!(statement.matches("@DbPrincipal = @P").count(), calls, "{statement}");
        }
    }

    #[test]
    fn a_token_is_drawn_after_the_lock_and_a_row_goes_before_it() {
        let [lock_try, lock_wait, lock_release] = &all()[..3] else { panic!("three statements") };
        for statement in [lock_try, lock_wait] {
            let (got, drawn) =
                (statement.find("EXEC @got = sp_getapplock"), statement.find("NEXT VALUE FOR"));
            assert!(got < drawn && got.is_some(), "{statement}");
        }
        assert!(lock_release.find("DELETE FROM") < lock_release.find("sp_releaseapplock"));
    }

    #[test]
    fn a_statement_has_no_gaps_and_its_values_are_bound() {
        for statement in all() {
            assert!(!statement.contains(['{', '}']), "{statement}");
            let words = ["'Session'", "'Exclusive'", "'NoLock'"];
            let quotes: usize = words.iter().map(|word| 2 * statement.matches(word).count()).sum();
            assert_eq!(statement.matches('\'').count(), quotes, "{statement}");
        }
    }
}
