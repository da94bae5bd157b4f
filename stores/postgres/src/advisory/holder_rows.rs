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
pub(super) const ROW_DELAY: Duration = Duration::from_millis(20);
/// The interval in which rows are written.
const INTERVAL: Duration = Duration::from_millis(10);
/// The pause after a statement that failed. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(5);
/// How many rows one statement writes.
const MAX_ROWS: usize = 1000;
/// For how many rows there is always room.
const LEAST_ROOM: usize = 1024;
/// How many rows that could not be deleted are remembered. A sweep deletes the others.
const MAX_STALE: usize = 10_000;

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
    /// Rows to delete: their locks were released.
    stale: Vec<LockId>,
    /// The task that writes rows waits for a wake-up.
    idle: bool,
}

#[derive(Debug)]
enum RowState {
    Due(PendingRow),
    Writing(PendingRow),
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
        self.wake_if_idle(pending);
    }

    /// Notes that the rows of these locks could not be deleted. They are deleted later.
    pub(super) fn left_behind(&self, ids: impl IntoIterator<Item = LockId>) {
        let mut pending = self.pending();
        let room = MAX_STALE.saturating_sub(pending.stale.len());
        pending.stale.extend(ids.into_iter().take(room));
        self.wake_if_idle(pending);
    }

    fn wake_if_idle(&self, mut pending: MutexGuard<'_, Pending>) {
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
            Some(row @ RowState::Writing(_)) => {
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
            match rows.remove(id) {
                Some(RowState::Due(row)) if now.duration_since(row.granted) < ROW_DELAY => {
                    rows.insert(id.clone(), RowState::Due(row));
                    break;
                }
                Some(RowState::Due(row)) => {
                    columns.push(id, &row, now);
                    rows.insert(id.clone(), RowState::Writing(row));
                }
                Some(other) => drop(rows.insert(id.clone(), other)),
                None => {}
            }
            order.pop_front();
        }
        columns
    }

    /// Notes that these rows were written. Those whose locks were released meanwhile are to be deleted.
    fn written(&self, ids: Vec<LockId>) {
        let mut pending = self.pending();
        let Pending { rows, stale, .. } = &mut *pending;
        let is_released = |id: &LockId| matches!(rows.remove(id), Some(RowState::Released));
        stale.extend(ids.into_iter().filter(is_released));
    }

    /// Notes that these rows could not be written. They are due again, except those whose locks were released meanwhile.
    fn not_written(&self, ids: Vec<LockId>) {
        let mut pending = self.pending();
        for id in ids {
            if let Some(RowState::Writing(row)) = pending.rows.remove(&id) {
                pending.rows.insert(id.clone(), RowState::Due(row));
                pending.order.push_back(id);
            }
        }
    }

    fn take_stale(&self) -> Vec<LockId> {
        std::mem::take(&mut self.pending().stale)
    }

    /// Whether the task has nothing to do until it is woken.
    fn becomes_idle(&self) -> bool {
        let mut pending = self.pending();
        pending.idle = pending.order.is_empty() && pending.stale.is_empty();
        if pending.idle {
            // A burst of holds leaves no room behind it.
            pending.rows.shrink_to(LEAST_ROOM);
            pending.order.shrink_to(LEAST_ROOM);
            pending.stale.shrink_to(LEAST_ROOM);
        }
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
    let mut pause = FIRST_PAUSE;
    loop {
        match rows.becomes_idle() {
            true => rows.wake.notified().await,
            false => tokio::time::sleep(INTERVAL).await,
        }
        loop {
            let Some(session) = session.upgrade().filter(|session| session.is_alive()) else { return };
            match write_once(&session, &rows, &statements).await {
                Ok(true) => pause = FIRST_PAUSE,
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "holders of mutexes are not shown yet");
                    drop(session);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }
}

/// Deletes the rows that are stale, and writes those that are due. Returns whether there were any. What fails is done again by
/// the next call.
async fn write_once(session: &LockSession, rows: &HolderRows, statements: &RowStatements) -> Result<bool> {
    let stale = rows.take_stale();
    let mut deleted = Ok(false);
    if !stale.is_empty() {
        let texts: Vec<&str> = stale.iter().map(LockId::as_str).collect();
        deleted = session.connection.query(&Request::new(&statements.delete, &[&texts])).await.map(|_| true);
        if deleted.is_err() {
            rows.left_behind(stale);
        }
    }
    let RowColumns { ids, keys, pairs, names, tokens, ages } = rows.take_due();
    if ids.is_empty() {
        return deleted;
    }
    let texts: Vec<&str> = ids.iter().map(LockId::as_str).collect();
    let names: Vec<&[u8]> = names.iter().map(|resource| resource.name().as_bytes()).collect();
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&session.session_lock, &texts, &keys, &pairs, &names, &tokens, &ages];
    let inserted = session.connection.query(&Request::new(&statements.insert, &parameters)).await;
    match &inserted {
        Ok(_) => rows.written(ids),
        Err(_) => rows.not_written(ids),
    }
    inserted.and(deleted).map(|_| true)
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
        rows.written(vec![long.clone()]);
        assert!(rows.take_stale().is_empty());
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
        rows.written(vec![id.clone()]);
        assert!(!rows.becomes_idle(), "it is still to be deleted");
        assert_eq!(rows.take_stale(), [id]);
        assert!(rows.pending().rows.is_empty() && rows.becomes_idle());
    }

    #[test]
    fn a_row_that_could_not_be_written_is_written_later_unless_its_lock_was_released() {
        let rows = HolderRows::default();
        let (kept, released) = (grant(&rows, "kept"), grant(&rows, "released"));
        make_due(&rows);
        assert_eq!(rows.take_due().ids, [kept.clone(), released.clone()]);
        assert!(!rows.released(&released));
        rows.not_written(vec![kept.clone(), released]);
        assert!(!rows.becomes_idle());
        assert_eq!(rows.take_due().ids, std::slice::from_ref(&kept));
        rows.not_written(vec![kept.clone()]);
        assert!(!rows.released(&kept), "it has no row");
        assert!(rows.take_due().ids.is_empty() && rows.take_stale().is_empty() && rows.becomes_idle());
    }

    #[test]
    fn a_row_that_could_not_be_deleted_is_deleted_later() {
        let rows = HolderRows::default();
        assert!(rows.becomes_idle());
        rows.left_behind([LockId::from_stored("a")]);
        assert!(!rows.becomes_idle());
        assert_eq!(rows.take_stale(), [LockId::from_stored("a")]);
    }
}
