//! The store: takes free locks on one shared session, and waits for others on sessions of their own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::Clock;
use distlock_core::store::{
    Capabilities, Claim, Fairness, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore, Store,
};
use distlock_core::{CancellationToken, FencingToken, Kind, Resource, Result};

use super::actor::{SessionActor, Taken};
use super::lock_name::LockName;
use super::statements::Grant;
use super::{Hold, SessionState, inspect};
use crate::{doctor, sweep};

/// Mutexes as `GET_LOCK` locks of MySQL or MariaDB: they are free at once when their session ends, and the server keeps their
/// waiters in order. Cheap to clone; clones share their sessions.
///
/// ```no_run
/// use distlock_core::Locks;
/// use distlock_core::store::{Backend, StoreUrl};
/// use distlock_mysql::{MysqlConfig, MysqlSessionStore};
///
/// # async fn example() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("mysql+session://app:secret@db.example/orders")?;
/// let store = MysqlSessionStore::connect(MysqlConfig::from_url(&url)?).await?;
/// let locks = Locks::new(Backend::session(store))?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MysqlSessionStore {
    state: Arc<SessionState>,
    location: Arc<str>,
}

/// How often a wait whose session was lost starts again, on another session.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

const REASONS: &[(&str, &str)] = &[
    ("reader-writer locks", "GET_LOCK has no shared mode; use mysql:// (the lease table)"),
    (
        "fair mutexes",
        "the server knows only the first waiter of each process; use mysql:// (the lease table)",
    ),
    ("semaphores", "GET_LOCK has one holder; use mysql:// (the lease table)"),
    ("minimum hold times", "the lock ends with the session of its holder; mysql:// has them"),
];

impl MysqlSessionStore {
    pub(super) fn new(state: Arc<SessionState>, location: String) -> Self {
        MysqlSessionStore { state, location: location.into() }
    }

    #[cfg(feature = "bench")]
    pub(crate) fn state(&self) -> &Arc<SessionState> {
        &self.state
    }

    /// Deletes the tokens of names that were not used for the retention time, and returns their number. A background task
    /// does this too, in one process at a time; while another process does it this returns 0.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest for later.
    pub async fn sweep(&self) -> Result<u64> {
        sweep::once(&self.state).await
    }

    fn hold(
        &self,
        session: Arc<SessionActor>,
        name: LockName,
        claim: &Claim,
        token: FencingToken,
        is_shared: bool,
    ) -> Option<SessionHold> {
        let hold = SessionHold { token, session: session.session().clone() };
        let mut holds = self.state.holds();
        if holds.len() == holds.capacity() {
            // Before it grows: holds whose session ended were not released.
            holds.retain(|_, hold| hold.session.is_usable());
        }
        holds.insert(claim.lock_id.clone(), Hold { session, name, is_shared });
        Some(hold)
    }

    /// Takes the lock if it is free. `Err(true)` in the inner result: this process holds it on the shared session.
    async fn take_shared(&self, claim: &Claim, grant: &Grant) -> Result<Result<SessionHold, bool>> {
        let mut tries = 0;
        loop {
            let shared = self.state.shared_session().await?;
            match shared.take(grant.clone()).await {
                Ok(Taken::Granted(token)) => {
                    return Ok(self.hold(shared, grant.name, claim, token, true).ok_or(false));
                }
                Ok(Taken::Busy) => return Ok(Err(false)),
                Ok(Taken::HeldHere) => return Ok(Err(true)),
                // A lock ends with its session, so nothing is left of this attempt.
                Err(_) if tries == 0 && !shared.is_usable() => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    async fn wait(
        &self,
        claim: &Claim,
        grant: &Grant,
        withdraw: &CancellationToken,
    ) -> Result<Option<SessionHold>> {
        let mut tries = 0;
        loop {
            let session = self.state.spare_session().await?;
            let waited = tokio::select! {
                biased;
                waited = session.wait(grant.clone()) => waited,
                () = withdraw.cancelled() => {
                    inspect::end_waiter(&self.state, session.connection_id(), &grant.name).await;
                    session.end("its wait was withdrawn");
                    return Ok(None);
                }
            };
            match waited {
                Ok(Taken::Granted(token)) => return Ok(self.hold(session, grant.name, claim, token, false)),
                Ok(_) => self.state.keep_spare(session),
                // The session was killed, or the server restarts.
                Err(_) if tries < TRIES && !session.is_usable() => {
                    tries += 1;
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE * tries) => {}
                        () = withdraw.cancelled() => return Ok(None),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[async_trait]
impl Store for MysqlSessionStore {
    fn describe(&self) -> String {
        self.location.to_string()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.rw_lock = false;
        capabilities.semaphore = false;
        // The server serves its waiters in order, but of each process it knows only the first.
        capabilities.fairness = Fairness::None;
        capabilities.frees_on_crash = true;
        capabilities.durable = false;
        capabilities.minimum_hold = false;
        capabilities.reasons = REASONS;
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        inspect::inspect(&self.state, query).await
    }

    /// Ends the session that holds the lock, and with it all else that it holds.
    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        if resource.kind() != Kind::Mutex {
            return Ok(Vec::new());
        }
        inspect::break_lock(&self.state, resource).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine_session(&self.state).await
    }

    fn use_clock(&self, clock: Arc<dyn Clock>) {
        *self.state.clock.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = clock;
    }
}

#[async_trait]
impl SessionStore for MysqlSessionStore {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        match claim.resource.kind() {
            Kind::Mutex => {}
            Kind::Semaphore => return Err(self.capabilities().unsupported("semaphores")),
            _ => return Err(self.capabilities().unsupported("reader-writer locks")),
        }
        let name = LockName::of(&self.state.tables, &claim.resource);
        let grant = Grant::new(name, claim.resource.name(), &claim.lock_id);
        let held_here = match self.take_shared(claim, &grant).await? {
            Ok(hold) => return Ok(Some(hold)),
            Err(held_here) => held_here,
        };
        if !withdraw.is_cancelled() {
            return self.wait(claim, &grant, withdraw).await;
        }
        if !held_here {
            return Ok(None);
        }
        // The shared session would be granted its own lock again: another one asks the server.
        let session = self.state.spare_session().await?;
        match session.take(grant).await? {
            Taken::Granted(token) => Ok(self.hold(session, name, claim, token, false)),
            Taken::Busy | Taken::HeldHere => {
                self.state.keep_spare(session);
                Ok(None)
            }
        }
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let Some(Hold { session, name, is_shared }) = self.state.holds().remove(&lease.lock_id) else {
            return Ok(());
        };
        match session.release(name).await {
            Ok(_) if is_shared => Ok(()),
            Ok(_) => {
                self.state.keep_spare(session);
                Ok(())
            }
            Err(error) => {
                let ended = !session.is_usable();
                session.end("a lock could not be released");
                if ended { Ok(()) } else { Err(error) }
            }
        }
    }
}
