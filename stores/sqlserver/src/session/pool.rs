//! The sessions of a store. A lock that is free is taken on a session that holds others too; a claim that waits has a session of its
//! own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_core::store::support::ended_session::withdrawn;
use distlock_core::store::support::reconnect::{Connection, Reconnect};
use distlock_core::{BootClock, CancellationToken, Clock, Result};
use tokio::sync::mpsc::UnboundedSender;

use super::{LockSession, Process, REQUEST_TIMEOUT};
use crate::config::SqlServerConfig;
use crate::connect::CONNECT_TIMEOUT;
use crate::connection::Attention;
use crate::lock_name::LockName;

/// How many sessions without a lock are kept for the next waiters.
const MOST_SPARE: usize = 4;

impl Connection for LockSession {
    fn is_usable(&self) -> bool {
        LockSession::is_usable(self)
    }
}

#[derive(Debug)]
pub(crate) struct Sessions {
    config: SqlServerConfig,
    process: Process,
    clock: Mutex<Arc<dyn Clock>>,
    /// Sessions that hold locks, and the one that takes free locks first.
    shared: Mutex<Vec<Arc<LockSession>>>,
    /// Sessions without a lock, for the next waiters.
    spare: Mutex<Vec<Arc<LockSession>>>,
    /// Held while a shared session is opened: however many tasks need one, one is opened.
    opening: tokio::sync::Mutex<()>,
    /// For requests that are about no lock. It shows that this process lives when another session of it ended.
    witness: Reconnect<LockSession>,
    /// Gets the names of sessions that ended.
    ended: UnboundedSender<String>,
    attention: Attention,
}

impl Sessions {
    pub(crate) fn new(config: SqlServerConfig, ended: UnboundedSender<String>) -> Self {
        Sessions {
            config,
            process: Process::new(),
            clock: Mutex::new(Arc::new(BootClock)),
            shared: Mutex::default(),
            spare: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            witness: Reconnect::new(CONNECT_TIMEOUT + REQUEST_TIMEOUT),
            ended,
            attention: Attention::default(),
        }
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&lock(&self.clock))
    }

    /// Sessions that are open already keep the clock that they began with, so those without a lock are closed if it shows another
    /// time.
    pub(crate) fn use_clock(&self, clock: Arc<dyn Clock>) {
        let ours = std::mem::replace(&mut *lock(&self.clock), Arc::clone(&clock));
        let (before, now, after) = (ours.now(), clock.now(), ours.now());
        if before <= now && now <= after {
            return;
        }
        lock(&self.spare).clear();
        lock(&self.shared).retain(|session| !session.is_idle());
    }

    /// What is known about the server.
    pub(crate) fn attention(&self) -> &Attention {
        &self.attention
    }

    async fn open(&self) -> Result<LockSession> {
        let session = LockSession::open(&self.config, &self.process, self.clock(), &self.attention).await?;
        let (life, name, ended) = (session.session().clone(), session.name().to_owned(), self.ended.clone());
        tokio::spawn(async move {
            life.wait_for_end().await;
            // The store may be gone.
            let _ = ended.send(name);
        });
        Ok(session)
    }

    /// A session that does not hold this resource, and may hold others.
    pub(crate) async fn share(&self, name: &LockName) -> Result<Reservation> {
        if let Some(reservation) = self.find(name) {
            return Ok(reservation);
        }
        let _opening = self.opening.lock().await;
        if let Some(reservation) = self.find(name) {
            return Ok(reservation);
        }
        let session = self.spare_or_new().await?;
        session.reserve(name);
        lock(&self.shared).push(Arc::clone(&session));
        Ok(Reservation::new(session, name))
    }

    fn find(&self, name: &LockName) -> Option<Reservation> {
        let mut shared = lock(&self.shared);
        shared.retain(|session| session.is_usable());
        let session = shared.iter().find(|session| session.reserve(name))?;
        Some(Reservation::new(Arc::clone(session), name))
    }

    fn take_spare(&self) -> Option<Arc<LockSession>> {
        let mut spare = lock(&self.spare);
        spare.retain(|session| session.is_usable());
        spare.pop()
    }

    /// Opens the session of the first lock beforehand.
    pub(crate) async fn warm_up(&self) -> Result<()> {
        self.keep_spare(&Arc::new(self.open().await?));
        Ok(())
    }

    /// The witness, for requests that are about no lock.
    pub(crate) async fn observer(&self) -> Result<Arc<LockSession>> {
        self.witness.get(|| self.open()).await
    }

    pub(crate) fn has_witness(&self) -> bool {
        self.witness.current().is_some()
    }

    async fn spare_or_new(&self) -> Result<Arc<LockSession>> {
        match self.take_spare() {
            Some(session) => Ok(session),
            None => self.open().await.map(Arc::new),
        }
    }

    /// A session that holds nothing and that no other task uses. `None`: the claim was withdrawn while a session was opened, which
    /// can take longer than a wait.
    ///
    /// # Cancel safety
    /// Dropping the future closes a connection that is being opened.
    pub(crate) async fn own(
        &self,
        name: &LockName,
        withdraw: Option<&CancellationToken>,
    ) -> Result<Option<Reservation>> {
        let session = tokio::select! {
            biased;
            session = self.spare_or_new() => session?,
            () = withdrawn(withdraw) => return Ok(None),
        };
        session.reserve(name);
        Ok(Some(Reservation::new(session, name)))
    }

    /// Other locks may be taken on this session, whose wait is over.
    pub(crate) fn publish(&self, session: &Arc<LockSession>) {
        let mut shared = lock(&self.shared);
        if !shared.iter().any(|other| Arc::ptr_eq(other, session)) {
            shared.push(Arc::clone(session));
        }
    }

    /// A lock of this session was released: if it holds no other, it is kept for the next waiters or closed. One session stays shared.
    pub(crate) fn tidy(&self, session: &Arc<LockSession>) {
        let mut shared = lock(&self.shared);
        let is_first = shared.first().is_some_and(|first| Arc::ptr_eq(first, session));
        if is_first || !session.is_idle() || !session.is_usable() {
            return;
        }
        shared.retain(|other| !Arc::ptr_eq(other, session));
        drop(shared);
        self.keep_spare(session);
    }

    /// Keeps a session that holds nothing for the next waiter.
    pub(crate) fn keep_spare(&self, session: &Arc<LockSession>) {
        let mut spare = lock(&self.spare);
        let is_kept = spare.iter().any(|other| Arc::ptr_eq(other, session));
        if spare.len() < MOST_SPARE && session.is_usable() && !is_kept {
            spare.push(Arc::clone(session));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session that is asked for a resource. Dropped, it may be asked again: the server holds nothing of it by then.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) session: Arc<LockSession>,
    pub(crate) name: LockName,
    reserved: LockName,
    is_granted: bool,
}

impl Reservation {
    fn new(session: Arc<LockSession>, name: &LockName) -> Self {
        Reservation { session, name: name.clone(), reserved: name.clone(), is_granted: false }
    }

    /// A guard depends on it from now on.
    pub(crate) fn grant(mut self) -> Self {
        if !std::mem::replace(&mut self.is_granted, true) {
            self.session.count_granted(true);
        }
        self
    }

    /// A permit that was granted: the session holds it, and may be asked for another one of the same semaphore.
    pub(crate) fn hold_permit(&self, lock_id: &str) -> Reservation {
        let reserved = self.name.permit(lock_id);
        self.session.reserve(&reserved);
        let session = Arc::clone(&self.session);
        Reservation { session, name: self.name.clone(), reserved, is_granted: false }.grant()
    }

    /// Whether its session has, or is releasing, other permits of the same semaphore.
    pub(crate) fn has_other_permits(&self) -> bool {
        self.session.reservations(&self.name) > 1
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_granted {
            self.session.count_granted(false);
        }
        self.session.free(&self.reserved);
    }
}
