//! What all claims of one store share: its sessions and its statements.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use distlock_core::store::support::reconnect::Reconnect;
use distlock_core::{BootClock, Clock, LockId, Result};
use tokio_postgres::types::Type;

use super::advisory_lock::{HeldLock, LockStatements};
use super::lock_session::LockSession;
use super::shared_session::SharedSession;
use super::sweep;
use crate::config::PostgresConfig;
use crate::pool_batch::PoolStatements;
use crate::schema::{Schema, StoreKind};
use crate::statement::{Request, Slot, Statement};
use crate::tables::PoolTable;

/// How many sessions without locks are kept for claims that have to wait.
const MAX_IDLE: usize = 2;
/// How long opening the shared session may take. Creating its tables may wait for other clients.
const SHARED_SESSION_LIMIT: Duration = Duration::from_secs(30);
/// The cancel signal is sent again if the statement has not ended after this long.
const CANCEL_INTERVAL: Duration = Duration::from_millis(100);
/// A session whose statement has not ended after this long is closed.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);
const TOO_LONG_SILENT: &str = "its client was silent for too long";

static CANCEL: [Type; 1] = [Type::INT8];

#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) config: PostgresConfig,
    pub(super) schema: Schema,
    pub(super) location: String,
    pub(super) lock: LockStatements,
    pub(super) pool: PoolStatements,
    pub(super) sweep: sweep::Statements,
    cancel: Statement,
    /// The engine's clock, once an engine uses the store.
    clock: OnceLock<Arc<dyn Clock>>,
    pub(super) shared: Reconnect<SharedSession>,
    /// The last shared session that was opened, alive or not.
    last_shared: Mutex<Weak<LockSession>>,
    idle: Mutex<Vec<Arc<LockSession>>>,
    held: Mutex<HashMap<LockId, HeldLock>>,
    /// For each semaphore with waiters, the right to watch the sessions that block it: one watch in this process is enough.
    pub(super) watches: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Semaphores whose rows another session had locked at the last request.
    pub(super) locked_pools: Mutex<HashSet<String>>,
}

impl StoreState {
    pub(super) fn new(config: PostgresConfig) -> Self {
        let schema = Schema::new(&config, StoreKind::Advisory);
        let tables = schema.tables();
        StoreState {
            location: format!("{config} (advisory)"),
            lock: LockStatements::new(tables),
            pool: PoolStatements::new(tables, PoolTable::Sessions),
            sweep: sweep::Statements::new(tables),
            cancel: Statement::new(
                Slot::AdvisoryCancel,
                include_str!("../sql/advisory_cancel.sql"),
                tables,
                &CANCEL,
            ),
            config,
            schema,
            clock: OnceLock::new(),
            shared: Reconnect::new(SHARED_SESSION_LIMIT),
            last_shared: Mutex::default(),
            idle: Mutex::default(),
            held: Mutex::default(),
            watches: Mutex::default(),
            locked_pools: Mutex::default(),
        }
    }

    /// The engine's clock; before there is an engine, the real one.
    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.get().map_or_else(|| Arc::new(BootClock) as Arc<dyn Clock>, Arc::clone)
    }

    /// Measures on the engine's clock from now on. The first engine's clock stays: engines that share a store share a clock.
    pub(super) fn use_clock(&self, clock: Arc<dyn Clock>) {
        if self.clock.set(clock).is_ok()
            && let Some((clock, session)) = self.clock.get().zip(self.last_shared())
        {
            session.life.use_clock(clock);
        }
    }

    /// The shared session, opened now if there is none.
    pub(super) async fn shared(&self) -> Result<Arc<SharedSession>> {
        self.shared.get(|| self.open_shared()).await
    }

    async fn open_shared(&self) -> Result<SharedSession> {
        if let Some(old) = self.last_shared() {
            // It may have been stalled only: then the server must free its locks now.
            old.close(TOO_LONG_SILENT);
        }
        let shared = SharedSession::open(&self.config, &self.schema, self.clock()).await?;
        *self.last_shared.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&shared.session);
        if let Some(clock) = self.clock.get() {
            shared.session.life.use_clock(clock);
        }
        Ok(shared)
    }

    /// The last shared session, alive or not.
    pub(super) fn last_shared(&self) -> Option<Arc<LockSession>> {
        self.last_shared.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// The locks that are held, with their sessions. Permits are held by the shared session.
    pub(super) fn held(&self) -> MutexGuard<'_, HashMap<LockId, HeldLock>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session without locks.
    pub(super) async fn idle_session(&self) -> Result<Arc<LockSession>> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(session) if session.is_alive() => return Ok(session),
                Some(session) => session.close(TOO_LONG_SILENT),
                None => return LockSession::open(&self.config, self.clock(), None).await,
            }
        }
    }

    /// Keeps a session without locks for the next claim that has to wait.
    pub(super) fn keep_idle(&self, session: Arc<LockSession>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_alive() && idle.len() < MAX_IDLE {
            idle.push(session);
        }
    }

    /// Cancels the statement that a session is executing, and returns its outcome: it may have ended before. `None`: it did not
    /// end, and the session is unusable. Afterwards no cancel signal can hit the next statement of the session.
    pub(super) async fn cancel_statement<T>(
        &self,
        session: &LockSession,
        mut running: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> Option<T> {
        let cancelling = async {
            loop {
                let shared = self.shared.current()?;
                let connection = &shared.session.connection;
                let rows =
                    connection.run(&Request::new(&self.cancel, &[&session.session_lock])).await.ok()?;
                if !rows.first().is_some_and(|row| row.try_get("signalled").unwrap_or(false)) {
                    return None;
                }
                // If the signal came before the server began the statement it had no effect, and is sent again.
                if let Ok(ended) = tokio::time::timeout(CANCEL_INTERVAL, running.as_mut()).await {
                    return Some(ended);
                }
            }
        };
        tokio::time::timeout(CANCEL_LIMIT, cancelling).await.ok().flatten()
    }
}
