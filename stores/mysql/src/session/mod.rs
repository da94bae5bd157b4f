//! `GET_LOCK`: mutexes that live with a session of the server.

mod actor;
mod exchange;
mod inspect;
mod lock_name;
mod settle;
mod shared_sessions;
mod statements;
mod store;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::store::support::compact_lock_id::{CompactLockIds, LockIdMap};
use distlock_core::{BootClock, Clock};
use distlock_core::{LockId, Result};
use mysql_async::Pool;

pub use store::MysqlSessionStore;

use crate::batch::micros;
use crate::config::{CONNECT_TIMEOUT, MysqlConfig};
use crate::connect::{self, Connected};
use crate::connections::{Connections, Source};
use crate::identifier::Tables;
use crate::schema::Purpose;
use crate::server::Server;
use crate::sweep::{self, Orphans, Swept, Target};
use actor::{SessionActor, Timing};
use shared_sessions::SharedSessions;

/// How many sessions without a lock are kept for the next waiters.
const MOST_SPARE: usize = 4;

/// What clones of a store share.
#[derive(Debug)]
pub(crate) struct SessionState {
    /// For requests that need no session of their own: inspect, break, doctor.
    pub(crate) connections: Connections,
    pub(crate) tables: Tables,
    pub(crate) server: Server,
    pub(crate) plain_text: bool,
    timing: Timing,
    retention: Duration,
    setup: String,
    clock: Mutex<Arc<dyn Clock>>,
    /// The sessions that take free locks. Many holds share one.
    shared: SharedSessions,
    /// Sessions without a lock, for the next waiters.
    spare: Mutex<Vec<Arc<SessionActor>>>,
    holds: Mutex<Holds>,
    ids: CompactLockIds,
}

/// The sessions that hold locks. The name of a lock is not kept: the lease that releases it has it.
type Holds = LockIdMap<Arc<SessionActor>>;

impl SessionState {
    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which session holds a lock.
    fn hold(&self, lock_id: &LockId, session: Arc<SessionActor>) {
        let mut holds = self.holds();
        if holds.is_full() {
            // Before it grows: holds whose session ended were not released.
            holds.retain(|session| session.is_usable());
        }
        holds.insert(self.ids.of(lock_id), session);
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens a session of its own.
    async fn open_session(&self) -> Result<SessionActor> {
        let connection = self.connections.source().open(&self.setup).await?;
        Ok(SessionActor::start(connection, self.tables.clone(), self.clock(), self.timing))
    }

    /// A session that takes a free lock.
    async fn shared_session(&self) -> Result<Arc<SessionActor>> {
        self.shared.get(|| self.open_session()).await
    }

    /// A session that holds nothing and that no other task uses.
    async fn spare_session(&self) -> Result<Arc<SessionActor>> {
        loop {
            let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match spare {
                Some(session) if session.is_usable() => return Ok(session),
                Some(_) => {}
                None => return Ok(Arc::new(self.open_session().await?)),
            }
        }
    }

    /// A lock was released.
    fn released(&self, session: Arc<SessionActor>) {
        if !self.shared.released(&session) {
            self.keep_spare(session);
        }
    }

    /// Keeps a session of its own that holds nothing for the next waiter.
    fn keep_spare(&self, session: Arc<SessionActor>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MOST_SPARE && session.is_usable() {
            spare.push(session);
        }
    }
}

impl Swept for SessionState {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn targets(&self) -> Vec<Target> {
        let spent = format!(
            "t.acquired_at <= @distlock_now - {} AND t.token < @distlock_now DIV 1000 AND t.hold_us = 0 AND t.pending_us = 0
             AND IS_FREE_LOCK({}) = 1",
            micros(self.retention),
            lock_name::FROM_KEY
        );
        vec![Target { ending: "_session", spent }]
    }

    fn orphans(&self) -> Option<Orphans> {
        let is_free = format!("IS_FREE_LOCK({}) = 1", lock_name::FROM_KEY);
        let find = format!(
            "SELECT k, token, GREATEST(hold_us, pending_us) AS pending FROM {{session}}
             WHERE (hold_us > 0 OR pending_us > 0) AND acquired_at <= {{now}} - {} AND {is_free} LIMIT 1000",
            micros(self.retention)
        );
        let settle = format!(
            "UPDATE {{session}} SET hold_us = 0, pending_us = 0 WHERE k = {{k}} AND token = {{token}} AND {is_free}"
        );
        Some(Orphans { find: self.tables.statement(&find), settle: self.tables.statement(&settle) })
    }
}

impl MysqlSessionStore {
    /// Connects, and creates the table of the fencing tokens if it is not there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) or
    /// [`ErrorKind::Denied`](distlock_core::ErrorKind::Denied) if the server cannot be reached or refuses us;
    /// [`ErrorKind::Unsupported`](distlock_core::ErrorKind::Unsupported) on a Galera node, and before MySQL 5.7.5 and MariaDB
    /// 10.0.2, where a second lock of a session frees the first.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but the table if it was created.
    pub async fn connect(config: MysqlConfig) -> Result<Self> {
        let location = config.location();
        open(Source::of_config(&config), &config, config.is_plain_text(), location).await
    }

    /// Uses a pool that the application has already, and the names and time limits of `config`. A connection that served a
    /// session never goes back to the pool: it is closed.
    ///
    /// # Errors
    /// As for [`connect`](MysqlSessionStore::connect).
    ///
    /// # Cancel safety
    /// As for [`connect`](MysqlSessionStore::connect).
    pub async fn with_client(pool: Pool, config: MysqlConfig) -> Result<Self> {
        open(Ok(Source::Pool(pool)), &config, false, "mysql pool".to_owned()).await
    }
}

fn limits(timing: Timing) -> String {
    format!("lock_wait_timeout = 1, wait_timeout = {}", timing.session.as_secs())
}

async fn open(
    source: Result<Source>,
    config: &MysqlConfig,
    plain_text: bool,
    location: String,
) -> Result<MysqlSessionStore> {
    let Connected { connections, tables, server } =
        connect::connect(source, config, Purpose::Session, &location).await?;
    let timing = Timing { session: config.get_session_timeout(), heartbeat: config.get_heartbeat_timeout() };
    let state = Arc::new(SessionState {
        connections,
        tables,
        server,
        plain_text,
        timing,
        retention: config.get_retention(),
        // The server ends a session that sends nothing for this long. A table that is locked must not keep a session from
        // its heartbeats.
        setup: connect::SETUP.replace("lock_wait_timeout = 5, wait_timeout = 28800", &limits(timing)),
        clock: Mutex::new(Arc::new(BootClock)),
        shared: SharedSessions::new(CONNECT_TIMEOUT * 2),
        spare: Mutex::default(),
        holds: Mutex::default(),
        ids: CompactLockIds::default(),
    });
    sweep::start(&state);
    Ok(MysqlSessionStore::new(state, location))
}
