//! The rows that show holders of mutexes to `inspect`. They are written some milliseconds after the grant, many in one
//! statement: a lock that is released before costs no row. No decision depends on a row.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use distlock_core::{FencingToken, LockId, Resource, Result};
use tokio::sync::Notify;
use tokio_postgres::types::{ToSql, Type};

use super::key::AdvisoryKey;
use super::lock_session::LockSession;
use crate::statement::{Request, Slot, Statement};
use crate::tables::Tables;
use crate::values::from_token;

/// How long a lock is held before its row is written.
const ROW_DELAY: Duration = Duration::from_millis(20);
/// The interval in which rows are written.
const INTERVAL: Duration = Duration::from_millis(10);
/// How many rows one statement writes.
const MAX_ROWS: usize = 1000;

static INSERT: [Type; 7] = [
    Type::INT8,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::BOOL_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::FLOAT8_ARRAY,
];
static DELETE: [Type; 1] = [Type::TEXT_ARRAY];

#[derive(Debug)]
pub(super) struct RowStatements {
    insert: Statement,
    delete: Statement,
}

impl RowStatements {
    pub(super) fn new(tables: &Tables) -> Self {
        let (insert, delete) = (
            include_str!("../sql/advisory_insert_rows.sql"),
            include_str!("../sql/advisory_delete_rows.sql"),
        );
        RowStatements {
            insert: Statement::new(Slot::AdvisoryInsertRows, insert, tables, &INSERT),
            delete: Statement::new(Slot::AdvisoryDeleteRows, delete, tables, &DELETE),
        }
    }
}

/// The rows of one session that are not written yet.
#[derive(Debug, Default)]
pub(super) struct HolderRows {
    pending: Mutex<Pending>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    rows: HashMap<LockId, RowState>,
    /// In the order of the grants. Some were released since.
    order: VecDeque<LockId>,
    /// The task that writes rows waits for a wake-up.
    idle: bool,
}

#[derive(Debug)]
enum RowState {
    Due(PendingRow),
    Writing,
    /// Released while its row was being written.
    Released,
}

#[derive(Debug)]
struct PendingRow {
    key: AdvisoryKey,
    resource: Resource,
    token: FencingToken,
    granted: Instant,
}

impl HolderRows {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that mutexes were granted, all with one token.
    pub(super) fn granted<'a>(
        &self,
        grants: impl IntoIterator<Item = (&'a LockId, &'a Resource, AdvisoryKey)>,
        token: FencingToken,
    ) {
        let granted = Instant::now();
        let mut pending = self.pending();
        for (id, resource, key) in grants {
            let row = PendingRow { key, resource: resource.clone(), token, granted };
            pending.rows.insert(id.clone(), RowState::Due(row));
            pending.order.push_back(id.clone());
        }
        if std::mem::take(&mut pending.idle) {
            drop(pending);
            self.wake.notify_one();
        }
    }

    /// Notes that a mutex is about to be released. Returns whether it has a row, which is then to be deleted.
    pub(super) fn released(&self, id: &LockId) -> bool {
        let mut pending = self.pending();
        match pending.rows.get_mut(id) {
            None => return true,
            Some(row @ RowState::Writing) => {
                *row = RowState::Released;
                return false;
            }
            Some(_) => {}
        }
        pending.rows.remove(id);
        false
    }

    /// Takes the rows that are due, at most [`MAX_ROWS`].
    fn take_due(&self) -> RowColumns {
        let (now, mut columns) = (Instant::now(), RowColumns::default());
        let mut pending = self.pending();
        let Pending { rows, order, .. } = &mut *pending;
        while columns.ids.len() < MAX_ROWS
            && let Some(id) = order.front()
        {
            if let Some(state @ RowState::Due(_)) = rows.get_mut(id) {
                if let RowState::Due(row) = state {
                    if now.duration_since(row.granted) < ROW_DELAY {
                        break;
                    }
                    columns.push(id, row, now);
                }
                *state = RowState::Writing;
            }
            order.pop_front();
        }
        columns
    }

    /// Notes that these rows were written. Returns those whose locks were released meanwhile.
    fn written(&self, ids: Vec<LockId>) -> Vec<LockId> {
        let mut pending = self.pending();
        let is_released = |id: &LockId| matches!(pending.rows.remove(id), Some(RowState::Released));
        ids.into_iter().filter(is_released).collect()
    }

    /// Whether the task has nothing to do until it is woken.
    fn becomes_idle(&self) -> bool {
        let mut pending = self.pending();
        pending.idle = pending.order.is_empty();
        pending.idle
    }
}

/// The columns of [`RowStatements::insert`].
#[derive(Default)]
struct RowColumns {
    ids: Vec<LockId>,
    keys: Vec<i64>,
    pairs: Vec<bool>,
    names: Vec<Resource>,
    tokens: Vec<i64>,
    ages: Vec<f64>,
}

impl RowColumns {
    fn push(&mut self, id: &LockId, row: &PendingRow, now: Instant) {
        let (key, pair, _) = row.key.parts();
        self.ids.push(id.clone());
        self.keys.push(key);
        self.pairs.push(pair);
        self.names.push(row.resource.clone());
        self.tokens.push(from_token(row.token));
        self.ages.push(now.duration_since(row.granted).as_secs_f64());
    }
}

/// Writes the rows of a session for as long as it lives.
pub(super) async fn write(session: Weak<LockSession>, rows: Arc<HolderRows>, statements: Arc<RowStatements>) {
    loop {
        match rows.becomes_idle() {
            true => rows.wake.notified().await,
            false => tokio::time::sleep(INTERVAL).await,
        }
        loop {
            let Some(session) = session.upgrade().filter(|session| session.is_alive()) else { return };
            let columns = rows.take_due();
            if columns.ids.is_empty() {
                break;
            }
            if let Err(error) = write_once(&session, &rows, &statements, columns).await {
                tracing::debug!(%error, "holders of mutexes are not shown");
            }
        }
    }
}

async fn write_once(
    session: &LockSession,
    rows: &HolderRows,
    statements: &RowStatements,
    columns: RowColumns,
) -> Result<()> {
    let RowColumns { ids, keys, pairs, names, tokens, ages } = columns;
    let texts: Vec<&str> = ids.iter().map(LockId::as_str).collect();
    let names: Vec<&[u8]> = names.iter().map(|resource| resource.name().as_bytes()).collect();
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&session.session_lock, &texts, &keys, &pairs, &names, &tokens, &ages];
    let inserted = session.connection.query(&Request::new(&statements.insert, &parameters)).await;
    let released = rows.written(ids);
    inserted?;
    if !released.is_empty() {
        let texts: Vec<&str> = released.iter().map(LockId::as_str).collect();
        session.connection.query(&Request::new(&statements.delete, &[&texts])).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use distlock_core::Kind;

    use super::*;

    fn grant(rows: &HolderRows, name: &str) -> LockId {
        let id = LockId::from_stored(name);
        let resource = Resource::new(Kind::Mutex, name).unwrap();
        rows.granted([(&id, &resource, AdvisoryKey::One(1))], FencingToken::new(7));
        id
    }

    fn make_due(rows: &HolderRows) {
        for row in rows.pending().rows.values_mut() {
            if let RowState::Due(row) = row {
                row.granted = Instant::now().checked_sub(2 * ROW_DELAY).unwrap();
            }
        }
    }

    #[test]
    fn a_lock_that_is_released_early_has_no_row() {
        let rows = HolderRows::default();
        let (short, long) = (grant(&rows, "short"), grant(&rows, "long"));
        assert!(!rows.released(&short));
        assert!(rows.take_due().ids.is_empty(), "written too early");
        make_due(&rows);
        assert_eq!(rows.take_due().ids, std::slice::from_ref(&long));
        assert!(rows.written(vec![long.clone()]).is_empty());
        assert!(rows.released(&long), "its row was written");
        assert!(rows.becomes_idle());
    }

    #[test]
    fn a_row_whose_lock_is_released_while_it_is_written_is_deleted() {
        let rows = HolderRows::default();
        let id = grant(&rows, "a");
        make_due(&rows);
        assert_eq!(rows.take_due().ids, std::slice::from_ref(&id));
        assert!(!rows.released(&id), "the task that writes it deletes it");
        assert_eq!(rows.written(vec![id.clone()]), [id]);
        assert!(rows.pending().rows.is_empty());
    }
}
