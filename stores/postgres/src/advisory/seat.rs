//! A session that holds locks: what makes it last, and how its end is told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use distlock_core::store::{LossReason, Session};
use distlock_core::{BootClock, Clock, Error, ErrorKind, LockId, Moment, Result};
use tokio::sync::mpsc;
use tokio_postgres::Notification;
use tokio_postgres::types::{ToSql, Type};

use crate::config::PostgresConfig;
use crate::failure;
use crate::link::Wire;
use crate::names::hex;

/// How long setting up may take.
const SET_UP: Duration = Duration::from_secs(10);

/// A session of ours. Dropping the last one of it ends the session, and with it all its locks.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) wire: Wire,
    /// The advisory lock that stands for this session: as long as somebody has it, the session is there.
    pub(super) alive: i64,
    /// The channel that this session listens on, if it does.
    pub(super) channel: String,
    /// The life of the session, for the guards that depend on all of it.
    pub(super) life: Session,
    /// Holds that can also end alone.
    guests: Mutex<HashMap<LockId, Session>>,
    /// After this long without a word from us the session is over.
    timeout: Duration,
    /// The server ends it then. Otherwise it keeps the session until TCP finds nobody there any more, which is later.
    pub(super) ends_when_silent: bool,
    /// A statement waits for a lock: the session is not idle, and cannot answer.
    waiting: AtomicBool,
}

impl Seat {
    /// Connects, and makes the session fit to hold locks.
    pub(super) async fn open(
        config: &PostgresConfig,
        mail: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Arc<Seat>> {
        let listens = mail.is_some();
        let opening = async {
            let wire = Wire::open(config, mail).await?;
            if wire.server.pooled {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "a pooler such as PgBouncer is in between, and may give each transaction another session",
                )
                .advise("connect to the server itself, or use the lease table: postgres://"));
            }
            let timeout = config.session_timeout;
            let ends_when_silent = settle(&wire, timeout).await?;
            // Not from a generator that a program may seed, or a forked child repeat: sessions would take each other's lock.
            let alive = getrandom::u64().unwrap_or_else(|_| fastrand::u64(..)).cast_signed();
            let channel = format!("dl_{}", hex(&alive.to_be_bytes()));
            let mut batch = format!("SELECT pg_catalog.pg_advisory_lock({alive})");
            if listens {
                batch = format!("{batch}; LISTEN \"{channel}\"");
            }
            let sent = BootClock.now();
            wire.client().batch_execute(&batch).await.map_err(|error| failure::of_statement(&error))?;
            let life = Session::until(deadline(sent, timeout));
            let seat = Arc::new(Seat {
                wire,
                alive,
                channel,
                life,
                guests: Mutex::default(),
                timeout,
                ends_when_silent,
                waiting: AtomicBool::new(false),
            });
            tokio::spawn(keep(Arc::downgrade(&seat), seat.wire.ended.clone(), EndOnDrop(seat.life.clone())));
            Ok(seat)
        };
        match tokio::time::timeout(SET_UP, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("no session within {SET_UP:?}"))
                .advise("check that the server runs and can be reached from here")),
        }
    }

    /// Whether it is there, as far as anybody can tell.
    pub(super) fn is_alive(&self) -> bool {
        self.wire.is_open() && self.life.ended().is_none() && BootClock.now() < self.life.deadline()
    }

    fn guests(&self) -> MutexGuard<'_, HashMap<LockId, Session>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A life for one hold: it ends with the session, or alone.
    pub(super) fn welcome(&self, id: &LockId) -> Session {
        let guest = Session::until(self.life.deadline());
        self.guests().insert(id.clone(), guest.clone());
        if let Some(reason) = self.life.ended() {
            guest.end(reason.clone());
        }
        guest
    }

    pub(super) fn dismiss(&self, id: &LockId) -> Option<Session> {
        self.guests().remove(id)
    }

    /// Ends the session at once, and with it all its locks.
    pub(super) fn cut(&self, why: &'static str) {
        self.end(&LossReason::SessionEnded(why.into()));
        self.wire.cut();
    }

    fn end(&self, reason: &LossReason) {
        self.life.end(reason.clone());
        // Taken out first: each of them tells its guard, which is not to happen with the lock in hand.
        let guests = std::mem::take(&mut *self.guests());
        for guest in guests.into_values() {
            guest.end(reason.clone());
        }
    }

    fn keep_until(&self, deadline: Moment) {
        self.life.keep_until(deadline);
        for guest in self.guests().values() {
            guest.keep_until(deadline);
        }
    }

    /// Makes sure that the session is there now, and not only was when the server said so: a message may have lain here
    /// for long, because we stood still.
    pub(super) async fn verify(&self) -> Result<()> {
        let sent = BootClock.now();
        let limit = self.timeout;
        match tokio::time::timeout(limit, self.wire.client().check_connection()).await {
            Ok(Ok(())) => {
                self.keep_until(deadline(sent, limit));
                Ok(())
            }
            Ok(Err(error)) => Err(failure::of_statement(&error)),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("no answer within {limit:?}"))),
        }
    }

    /// Says that a statement is going to wait, until the result is dropped.
    pub(super) fn begin_waiting(&self) -> Waiting<'_> {
        self.waiting.store(true, Ordering::SeqCst);
        Waiting(self)
    }
}

pub(super) struct Waiting<'a>(&'a Seat);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.store(false, Ordering::SeqCst);
    }
}

/// Until when a session is surely there that was there when `sent` was: less a margin for clocks that run at
/// different speeds.
fn deadline(sent: Moment, timeout: Duration) -> Moment {
    sent.after(timeout.saturating_sub(timeout / 50 + Duration::from_millis(2)))
}

/// Settings of a session that holds locks. Tells whether the server ends it when its client falls silent for so long,
/// as it can from version 14 on.
async fn settle(wire: &Wire, timeout: Duration) -> Result<bool> {
    let milliseconds = timeout.as_millis().to_string();
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&milliseconds, Type::TEXT)];
    let rows = wire
        .client()
        .query_typed(include_str!("../sql/advisory_seat.sql"), typed)
        .await
        .map_err(|error| failure::of_statement(&error))?;
    // Ends a session whose client is gone also while a statement of it waits. Not every system has what it takes.
    let checks = wire.client().batch_execute("SET client_connection_check_interval = 1000").await;
    if let Err(error) = checks {
        tracing::debug!(%error, "waits of clients that died end late on this server");
    }
    Ok(rows.iter().any(|row| row.try_get::<_, &str>(0).is_ok_and(|name| name == "idle_session_timeout")))
}

/// If the task below goes with its runtime, the guards must hear of it all the same.
struct EndOnDrop(Session);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(LossReason::SessionEnded("its connection ended".into()));
    }
}

/// Sends a word now and then, and tells everybody when the session ends.
async fn keep(seat: Weak<Seat>, ended: tokio_util::sync::CancellationToken, life: EndOnDrop) {
    while let Some(pause) = seat.upgrade().map(|seat| seat.timeout / 3) {
        tokio::select! {
            () = ended.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
        let Some(seat) = seat.upgrade() else { break };
        if seat.waiting.load(Ordering::SeqCst) {
            continue;
        }
        let word = seat.verify();
        tokio::select! {
            () = ended.cancelled() => break,
            // Behind a statement that has begun to wait meanwhile no answer can come.
            answer = word => if answer.is_err() && !seat.waiting.load(Ordering::SeqCst) {
                seat.cut("the server did not answer in time");
                break;
            },
        }
    }
    if let Some(seat) = seat.upgrade() {
        seat.end(&LossReason::SessionEnded("its connection ended".into()));
    }
    drop(life);
}
