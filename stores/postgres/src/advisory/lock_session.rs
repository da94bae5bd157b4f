//! A session that holds locks: its settings, its heartbeat and its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use distlock_core::store::LossReason;
use distlock_core::store::support::errors;
use distlock_core::{Clock, Error, ErrorKind, Result};
use tokio_postgres::types::{ToSql, Type};
use tokio_util::sync::CancellationToken;

use super::key::AdvisoryKey;
use super::session_life::{Sent, SessionLife};
use crate::config::PostgresConfig;
use crate::connect::{self, CHECK_CLIENT, CONNECT_TIMEOUT, Notifications};
use crate::connection::Connection;
use crate::error;
use crate::keys::hex;

const CONNECTION_ENDED: LossReason =
    LossReason::SessionEnded(std::borrow::Cow::Borrowed("its connection ended"));

/// A session of ours. Dropping the last reference ends the session, and with it all its locks.
#[derive(Debug)]
pub(super) struct LockSession {
    pub(super) connection: Connection,
    /// The advisory lock that only this session holds: as long as it is held, the session is alive.
    pub(super) session_lock: i64,
    /// The channel that this session listens on, if it does.
    pub(super) channel: String,
    pub(super) life: Arc<SessionLife>,
    /// After this long without a message from us the session ends.
    pub(super) timeout: Duration,
    /// The server ends the session then. Otherwise it keeps the session until TCP finds the client gone, which is later.
    pub(super) ends_when_silent: bool,
    /// A statement waits for a lock: the session is not idle, and cannot reply.
    waiting: AtomicBool,
}

impl LockSession {
    /// Connects, and sets the session up to hold locks.
    pub(super) async fn open(
        config: &PostgresConfig,
        clock: Arc<dyn Clock>,
        notifications: Option<Notifications>,
    ) -> Result<Arc<LockSession>> {
        connect::within(CONNECT_TIMEOUT, async {
            let listens = notifications.is_some();
            let connection = connect::open(config, notifications).await?;
            if connection.server.pooled {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "a pooler such as PgBouncer may run each transaction in another session",
                )
                .advise("connect to the server itself, or use the lease table: postgres://"));
            }
            let timeout = config.session_timeout;
            let ends_when_silent = apply_settings(&connection, timeout).await?;
            // Not from a generator that a program may seed, or a forked child repeat: two sessions would have one lock.
            let session_lock = getrandom::u64().unwrap_or_else(|_| fastrand::u64(..)).cast_signed();
            let channel = format!("dl_{}", hex(&session_lock.to_be_bytes()));
            let mark = AdvisoryKey::session_mark(&config.schema, &config.table);
            let mut batch = format!(
                "SELECT pg_catalog.pg_advisory_lock({session_lock}), pg_catalog.pg_advisory_lock_shared({mark})"
            );
            if listens {
                batch = format!("{batch}; LISTEN \"{channel}\"");
            }
            let sent = Sent::now(clock);
            connection.client().batch_execute(&batch).await.map_err(error::from_statement)?;
            let session = Arc::new(LockSession {
                connection,
                session_lock,
                channel,
                life: Arc::new(SessionLife::new(&sent, timeout)),
                timeout,
                ends_when_silent,
                waiting: AtomicBool::new(false),
            });
            let ended = session.connection.ended().clone();
            tokio::spawn(heartbeat(Arc::downgrade(&session), ended, EndOnDrop(Arc::clone(&session.life))));
            Ok(session)
        })
        .await
    }

    /// Whether it can hold locks, as far as this process knows.
    pub(super) fn is_alive(&self) -> bool {
        self.connection.is_open() && !self.life.is_over()
    }

    /// Ends the session at once, and with it all its locks.
    pub(super) fn close(&self, reason: &'static str) {
        self.life.end(&LossReason::SessionEnded(reason.into()));
        self.connection.close();
    }

    /// Checks that the session is alive now, and not only was when the server replied: a reply may have waited here while this
    /// process was stalled.
    pub(super) async fn verify(&self) -> Result<()> {
        let (sent, limit) = (self.life.sent(), self.timeout);
        match tokio::time::timeout(limit, self.connection.client().check_connection()).await {
            Ok(Ok(())) => {
                self.life.answered(&sent, limit);
                Ok(())
            }
            Ok(Err(error)) => Err(error::from_statement(error)),
            Err(_) => Err(errors::unavailable(format!("no reply within {limit:?}"))),
        }
    }

    /// Notes that the statement that waited for a lock was answered. The server counts the silence of this client from the end of
    /// that statement, which it received after it was sent: so the session lives on from that moment. After a long wait this says
    /// too little, and the server is asked.
    pub(super) async fn answered_wait(&self, sent: &Sent) -> Result<()> {
        if self.life.age(sent) >= self.timeout / 3 {
            return self.verify().await;
        }
        self.life.answered(sent, self.timeout);
        Ok(())
    }

    /// Marks the session as waiting for a lock, until the mark is dropped.
    pub(super) fn mark_waiting(&self) -> WaitingMark<'_> {
        self.waiting.store(true, Ordering::SeqCst);
        WaitingMark(self)
    }

    fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst)
    }
}

pub(super) struct WaitingMark<'a>(&'a LockSession);

impl Drop for WaitingMark<'_> {
    fn drop(&mut self) {
        self.0.waiting.store(false, Ordering::SeqCst);
    }
}

/// Closes a session when it is dropped before it is disarmed: an await was abandoned whose outcome is then unknown.
pub(super) struct CloseOnDrop<'a> {
    session: Option<&'a LockSession>,
    reason: &'static str,
}

impl<'a> CloseOnDrop<'a> {
    pub(super) fn new(session: &'a LockSession, reason: &'static str) -> Self {
        CloseOnDrop { session: Some(session), reason }
    }

    pub(super) fn disarm(mut self) {
        self.session = None;
    }
}

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session {
            session.close(self.reason);
        }
    }
}

/// Applies the settings of a session that holds locks. Returns whether the server ends it when its client is silent for this
/// long: PostgreSQL 14 and later do.
async fn apply_settings(connection: &Connection, timeout: Duration) -> Result<bool> {
    let milliseconds = timeout.as_millis().to_string();
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&milliseconds, Type::TEXT)];
    let rows = connection
        .client()
        .query_typed(include_str!("../sql/advisory_session_settings.sql"), typed)
        .await
        .map_err(error::from_statement)?;
    // Ends a session whose client is gone also while a statement of it waits. Not every operating system supports it.
    if let Err(error) = connection.client().batch_execute(CHECK_CLIENT).await {
        tracing::debug!(%error, "waits of dead clients end late on this server");
    }
    Ok(rows.iter().any(|row| row.try_get::<_, &str>(0).is_ok_and(|name| name == "idle_session_timeout")))
}

/// Ends the life of the session if its heartbeat is dropped with the runtime.
struct EndOnDrop(Arc<SessionLife>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(&CONNECTION_ENDED);
    }
}

/// Sends a message every third of the time-out. Ends the life of the session when its connection ends.
async fn heartbeat(session: Weak<LockSession>, ended: CancellationToken, life: EndOnDrop) {
    while let Some(interval) = session.upgrade().map(|session| session.timeout / 3) {
        tokio::select! {
            () = ended.cancelled() => break,
            () = tokio::time::sleep(interval) => {}
        }
        let Some(session) = session.upgrade() else { break };
        if session.is_waiting() {
            continue;
        }
        tokio::select! {
            () = ended.cancelled() => break,
            // A statement that began to wait meanwhile delays the reply: that is no failure.
            reply = session.verify() => if reply.is_err() && !session.is_waiting() {
                session.close("the server did not reply in time");
                break;
            },
        }
    }
    drop(life);
}
