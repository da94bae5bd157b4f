//! Rows that are locked when a statement comes to them. A statement waits for such a row only briefly and then fails as a whole.
//! Here its items are separated, and each row is looked at:
//!
//! - A row that one transaction keeps locked fails its own item, with the session named: an administrator's, or that of a program
//!   that was stopped in the middle of one.
//! - A row that one transaction after the other locks is one that clients of ours queue for. That is no error: the item queues
//!   too. An attempt that does not get its turn soon is contended; the other verbs wait longer, so that they get theirs.
//!
//! The other items are applied. A row that stayed locked is remembered: requests for it stay out of batches until it is free, so
//! that they delay neither the batch nor the connection.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::store::support::batch::BatchItem;
use distlock_core::store::support::errors;
use distlock_core::store::{Batch, Lease};
use distlock_core::{Error, RecordKind, Result};

use super::store::StoreState;
use crate::error;
use crate::keys::Key;
use crate::row_locks::{self, Blocker, CHECK_INTERVAL, IDLE_BLOCKER, ONE_BLOCKER, Session};
use crate::statement::{Request, RowLockTimeout, Statement};
use crate::tables::{PoolTable, Tables};

/// How many rows are remembered at most.
const MAX_REMEMBERED: usize = 10_000;

/// The rows of a store that stayed locked.
#[derive(Debug)]
pub(super) struct LockedRows {
    lock_statement: Statement,
    pool_statement: Statement,
    blockers: Statement,
    remembered: Mutex<HashMap<(RecordKind, String), Blocker>>,
}

impl LockedRows {
    pub(super) fn new(tables: &Tables) -> Self {
        LockedRows {
            lock_statement: row_locks::lock_statement(tables),
            pool_statement: row_locks::pool_statement(tables, PoolTable::Leases),
            blockers: row_locks::blockers_statement(tables),
            remembered: Mutex::default(),
        }
    }

    /// Whether no row is known to be locked.
    pub(super) fn is_empty(&self) -> bool {
        self.remembered().is_empty()
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<(RecordKind, String), Blocker>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a verb does about a row that clients queue for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queueing {
    /// How long it waits in the queue each time.
    pub(super) turn: RowLockTimeout,
    /// How long it queues in all.
    pub(super) patience: Duration,
    /// How long one transaction may lock the row.
    pub(super) one_blocker: Duration,
}

impl Queueing {
    /// For an attempt: the engine sends it again when the others are gone. It is answered before a short time limit of the user.
    pub(super) const ATTEMPT: Queueing = Queueing {
        turn: RowLockTimeout::Default,
        patience: Duration::from_millis(700),
        one_blocker: ONE_BLOCKER,
    };
    /// For what a user waits for, and others: it ends a hold.
    pub(super) const RELEASE: Queueing =
        Queueing { turn: RowLockTimeout::Turn, patience: Duration::from_secs(4), one_blocker: ONE_BLOCKER };

    /// For renewals: the engine sends one again if it fails, and the answers to the others of its batch wait for it. So a batch of
    /// short leases is answered soon.
    pub(super) fn of_renewals<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> Queueing {
        let shortest = leases.into_iter().map(|lease| lease.expiry).fold(Duration::MAX, Duration::min);
        let most = Duration::from_secs(2);
        Queueing {
            turn: if shortest >= 2 * most { RowLockTimeout::Turn } else { RowLockTimeout::Default },
            patience: (shortest / 6).clamp(2 * IDLE_BLOCKER, most),
            one_blocker: (shortest / 12).clamp(IDLE_BLOCKER, most / 2),
        }
    }
}

/// A verb of a lease store.
pub(super) trait Verb {
    type Item: BatchItem;
    type Answer: Send;

    /// What these items do about a row that clients queue for.
    fn queueing(items: &[&Self::Item]) -> Queueing;

    /// Sends all items in one statement on one table.
    fn send(
        state: &StoreState,
        record: RecordKind,
        items: &[&Self::Item],
        timeout: RowLockTimeout,
    ) -> impl Future<Output = Batch<Self::Answer>> + Send;

    /// The answer to an item that queued for its row for too long.
    fn crowded() -> Result<Self::Answer> {
        Err(error::row_locked(None))
    }
}

/// Whether a request failed because of a locked row, as a whole or for some of its items.
pub(super) fn is_blocked<A>(answers: &Batch<A>) -> bool {
    match answers {
        Ok(answers) => answers.iter().any(|answer| answer.as_ref().is_err_and(error::is_row_locked)),
        Err(error) => error::is_row_locked(error),
    }
}

/// Sends the blocked items of a request again, each when its row is free or in the queue of its row.
pub(super) async fn send_blocked<V: Verb>(
    state: &StoreState,
    record: RecordKind,
    items: Vec<&V::Item>,
    answers: Batch<V::Answer>,
) -> Batch<V::Answer> {
    let mut split = Split::<V>::new(state, record, items);
    let all: Vec<usize> = (0..split.items.len()).collect();
    split.settle(&all, answers);
    split.finish().await
}

/// Sends the items whose rows are not known to be locked in one statement, and the others each when its row is free.
pub(super) async fn send_around<V: Verb>(
    state: &StoreState,
    record: RecordKind,
    items: Vec<&V::Item>,
) -> Batch<V::Answer> {
    let mut split = Split::<V>::new(state, record, items);
    let free = {
        let remembered = state.locked_rows.remembered();
        let is_free = |at: &usize| !remembered.contains_key(&(record, split.keys[*at].clone()));
        (0..split.items.len()).filter(is_free).collect::<Vec<usize>>()
    };
    split.send(&free, RowLockTimeout::Default).await;
    split.finish().await
}

/// What the checks of a row have shown.
#[derive(Debug)]
struct Checked {
    blocker: Blocker,
    since: Instant,
    /// Its session was looked up.
    looked_up: bool,
    /// When it was looked up, it had ended. Locks that several transactions share have no session that could be found.
    ended: bool,
    /// Another transaction had locked it before, or none had: clients queue for it.
    changed: bool,
}

/// A batch whose items are answered separately.
struct Split<'a, V: Verb> {
    state: &'a StoreState,
    record: RecordKind,
    items: Vec<&'a V::Item>,
    keys: Vec<String>,
    answers: Vec<Option<Result<V::Answer>>>,
    queueing: Queueing,
    started: Instant,
    /// By key.
    checked: HashMap<String, Checked>,
}

impl<'a, V: Verb> Split<'a, V> {
    fn new(state: &'a StoreState, record: RecordKind, items: Vec<&'a V::Item>) -> Self {
        let key = |item: &&V::Item| Key::new(item.resource(), state.server.utf8).key;
        Split {
            state,
            record,
            keys: items.iter().map(key).collect(),
            answers: items.iter().map(|_| None).collect(),
            queueing: V::queueing(&items),
            items,
            started: Instant::now(),
            checked: HashMap::new(),
        }
    }

    /// Stores the answers to the items at these positions. An item that failed because of a locked row stays open.
    fn settle(&mut self, positions: &[usize], answers: Batch<V::Answer>) {
        match answers {
            Ok(answers) => {
                for (at, answer) in positions.iter().zip(answers) {
                    if !answer.as_ref().is_err_and(error::is_row_locked) {
                        self.answers[*at] = Some(answer);
                    }
                }
            }
            Err(error) if error::is_row_locked(&error) => {}
            Err(error) => self.fail(positions, &error),
        }
    }

    fn fail(&mut self, positions: &[usize], error: &Error) {
        for at in positions {
            self.answers[*at] = Some(Err(error.clone()));
        }
    }

    fn open(&self) -> Vec<usize> {
        (0..self.answers.len()).filter(|at| self.answers[*at].is_none()).collect()
    }

    /// Sends the items at these positions, and forgets the locks of those that were answered.
    async fn send(&mut self, positions: &[usize], timeout: RowLockTimeout) {
        if positions.is_empty() {
            return;
        }
        let items: Vec<&V::Item> = positions.iter().map(|at| self.items[*at]).collect();
        let answers = V::send(self.state, self.record, &items, timeout).await;
        self.settle(positions, answers);
        let mut remembered = self.state.locked_rows.remembered();
        for at in positions.iter().filter(|at| self.answers[**at].is_some()) {
            remembered.remove(&(self.record, self.keys[*at].clone()));
        }
    }

    /// Checks the rows of the open items until each item is answered.
    async fn finish(mut self) -> Batch<V::Answer> {
        loop {
            let open = self.open();
            if open.is_empty() {
                break;
            }
            if let Err(error) = self.check_rows(&open).await {
                // The whole table is locked, or the server is unavailable.
                self.fail(&open, &error);
                break;
            }
            let (mut queued, open) = (false, self.open());
            for at in open {
                if self.has_changed(at) && self.started.elapsed() > self.queueing.patience {
                    self.answers[at] = Some(V::crowded());
                } else if self.has_changed(at) {
                    self.send(&[at], self.queueing.turn).await;
                    queued = true;
                }
            }
            if !queued && self.answers.iter().any(Option::is_none) {
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        }
        let unanswered = || Err(errors::too_few_answers());
        Ok(self.answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect())
    }

    /// Sends the items whose rows are free, and fails those whose rows stay locked.
    async fn check_rows(&mut self, open: &[usize]) -> Result<()> {
        let keys = open.iter().map(|at| self.keys[*at].as_str()).collect();
        let rows = row_states(self.state, self.record, keys).await?;
        let (mut free, mut invisible, mut locked) = (Vec::new(), Vec::new(), Vec::new());
        for at in open.iter().copied() {
            match rows.get(&self.keys[at]) {
                Some(None) => free.push(at),
                Some(Some(blocker)) => {
                    self.note(at, Some(blocker));
                    locked.push(at);
                }
                None => {
                    self.note(at, None);
                    invisible.push(at);
                }
            }
        }
        self.send(&free, RowLockTimeout::Default).await;
        for at in free {
            // Free at the check, and locked at the request.
            if self.answers[at].is_none() {
                let now = Instant::now();
                let checked =
                    Checked { blocker: None, since: now, looked_up: false, ended: false, changed: true };
                self.checked.insert(self.keys[at].clone(), checked);
            }
        }
        self.send(&invisible, RowLockTimeout::Short).await;
        invisible.retain(|at| self.answers[*at].is_none());
        for at in invisible {
            self.send(&[at], RowLockTimeout::Short).await;
            if self.answers[at].is_none()
                && (self.is_remembered(at) || self.locked_for(at) >= self.queueing.one_blocker)
            {
                self.stays_locked(at, None);
            }
        }
        self.fail_locked(&locked).await
    }

    fn note(&mut self, at: usize, blocker: Option<&String>) {
        let now = Instant::now();
        let first = || Checked {
            blocker: blocker.cloned(),
            since: now,
            looked_up: false,
            ended: false,
            changed: false,
        };
        let checked = self.checked.entry(self.keys[at].clone()).or_insert_with(first);
        if checked.blocker.as_ref() != blocker {
            *checked = Checked { changed: true, ..first() };
        }
    }

    fn has_changed(&self, at: usize) -> bool {
        self.checked.get(&self.keys[at]).is_some_and(|checked| checked.changed)
    }

    /// Since when the same transaction has locked the row.
    fn locked_for(&self, at: usize) -> Duration {
        self.checked.get(&self.keys[at]).map_or(Duration::ZERO, |checked| checked.since.elapsed())
    }

    /// Whether the row stayed locked by the same transaction before.
    fn is_remembered(&self, at: usize) -> bool {
        let key = &self.keys[at];
        let blocker = self.checked.get(key).map(|checked| &checked.blocker);
        blocker.is_some() && self.state.locked_rows.remembered().get(&(self.record, key.clone())) == blocker
    }

    /// Fails the items whose rows one transaction keeps locked.
    async fn fail_locked(&mut self, locked: &[usize]) -> Result<()> {
        let mut blockers = Vec::new();
        for at in locked {
            let locked_for = self.locked_for(*at);
            let known = self.is_remembered(*at);
            let Some(checked) = self.checked.get_mut(&self.keys[*at]) else { continue };
            let is_due = locked_for >= IDLE_BLOCKER && !checked.looked_up;
            if known || is_due || locked_for >= self.queueing.one_blocker {
                checked.looked_up = true;
                blockers.extend(checked.blocker.clone().map(|blocker| (*at, blocker)));
            }
        }
        if blockers.is_empty() {
            return Ok(());
        }
        let ids = blockers.iter().map(|(_, blocker)| blocker.as_str()).collect();
        let sessions = sessions(self.state, ids).await?;
        for (at, blocker) in blockers {
            let found = sessions.get(&blocker).copied();
            if found.is_none() && self.has_just_ended(at) {
                // It ended between the check and the look-up. The next check tells.
                continue;
            }
            let session = found.unwrap_or_default();
            let for_long = self.locked_for(at) >= self.queueing.one_blocker;
            if session.idle || for_long || self.is_remembered(at) {
                self.stays_locked(at, session.pid);
            }
        }
        Ok(())
    }

    /// Notes that a transaction had ended when it was looked up. False if that was noted before.
    fn has_just_ended(&mut self, at: usize) -> bool {
        self.checked
            .get_mut(&self.keys[at])
            .is_some_and(|checked| !std::mem::replace(&mut checked.ended, true))
    }

    /// Fails an item, and remembers its row.
    fn stays_locked(&mut self, at: usize, pid: Option<i32>) {
        self.answers[at] = Some(Err(error::row_locked(pid)));
        let blocker = self.checked.get(&self.keys[at]).and_then(|checked| checked.blocker.clone());
        let mut remembered = self.state.locked_rows.remembered();
        if remembered.len() >= MAX_REMEMBERED {
            remembered.clear();
        }
        remembered.insert((self.record, self.keys[at].clone()), blocker);
    }
}

/// For each row that is visible, the transaction that has locked it, or `None` if it is free.
async fn row_states(
    state: &StoreState,
    record: RecordKind,
    keys: Vec<&str>,
) -> Result<HashMap<String, Option<String>>> {
    let statement = match record {
        RecordKind::Lock => &state.locked_rows.lock_statement,
        RecordKind::Pool => &state.locked_rows.pool_statement,
    };
    row_locks::row_states(&state.shared.query(&Request::new(statement, &[&keys])).await?)
}

/// The sessions of transactions, without those that have ended.
async fn sessions(state: &StoreState, blockers: Vec<&str>) -> Result<HashMap<String, Session>> {
    row_locks::sessions(&state.shared.query(&Request::new(&state.locked_rows.blockers, &[&blockers])).await?)
}
