//! The store: takes free locks on shared sessions, and waits for others on sessions of their own.

#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::Clock;
use distlock_core::store::{
    Capabilities, Claim, Fairness, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore, Store,
};
use distlock_core::{CancellationToken, Kind, Resource, Result};
#[cfg(unix)]
use distlock_core::{LockId, store::support::process_socket};
use tokio::time::timeout;

use super::actor::{Drawn, SessionActor, Taken};
use super::lock_name::LockName;
use super::settle::Unsettled;
use super::statements::{Grant, Mark, Release};
use super::{SessionState, inspect};
use crate::config::CONNECT_TIMEOUT;
use crate::{doctor, sweep};

/// Mutexes as `GET_LOCK` locks of MySQL or MariaDB. The server keeps their waiters in order, and frees them when their session ends.
/// After a crash the next client on the same machine has the lock at once, any other after the heartbeat time-out. Cheap to
/// clone; clones share their sessions.
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

    /// Grants a lock that a session has, as soon as no earlier holder can believe that it holds it. `None`: it was withdrawn.
    async fn settle(
        &self,
        session: Arc<SessionActor>,
        grant: &Grant,
        drawn: Drawn,
        withdraw: Withdraw<'_>,
    ) -> Result<Option<SessionHold>> {
        let unsettled = Unsettled::new(&session, grant, drawn, self.state.clock());
        if !unsettled.settle(&self.state.tables, withdraw.during_a_wait()).await? {
            return Ok(None);
        }
        let hold = SessionHold { token: drawn.token, session: session.session().clone() };
        self.state.hold(&grant.lock_id, session);
        Ok(Some(hold))
    }

    /// Takes the lock if it is free.
    async fn take_shared(&self, grant: &Grant, withdraw: Withdraw<'_>) -> Result<TakenShared> {
        let mut tries = 0;
        loop {
            let shared = self.state.shared_session().await?;
            let taken = match shared.take(grant.clone()).await {
                Ok(Taken::Granted(drawn)) => {
                    self.settle(Arc::clone(&shared), grant, drawn, withdraw).await.map(TakenShared::Done)
                }
                Ok(Taken::Busy) => Ok(TakenShared::Busy),
                Ok(Taken::HeldHere) => Ok(TakenShared::HeldHere),
                Err(error) => Err(error),
            };
            match taken {
                // A lock ends with its session, so nothing is left of this attempt.
                Err(_) if tries == 0 && !shared.is_usable() => tries += 1,
                taken => return taken,
            }
        }
    }

    async fn wait(&self, grant: &Grant, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        let mut tries = 0;
        loop {
            let session = self.state.spare_session().await?;
            let mut waiting = pin!(session.wait(grant.clone()));
            let waited = tokio::select! {
                biased;
                waited = &mut waiting => waited,
                () = withdraw.cancelled() => {
                    let killed = inspect::end_waiter(&self.state, session.connection_id(), &grant.name).await;
                    // A lock that it was granted meanwhile is released, which leaves no trace.
                    if !killed && let Ok(Ok(Taken::Granted(drawn))) = timeout(CONNECT_TIMEOUT, waiting).await {
                        drop(Unsettled::new(&session, grant, drawn, self.state.clock()));
                        self.state.keep_spare(Arc::clone(&session));
                        return Ok(None);
                    }
                    session.end("its wait was withdrawn");
                    return Ok(None);
                }
            };
            let outcome = match waited {
                Ok(Taken::Granted(drawn)) => {
                    match self.settle(Arc::clone(&session), grant, drawn, Withdraw::At(withdraw)).await {
                        Ok(None) => {
                            self.state.keep_spare(Arc::clone(&session));
                            return Ok(None);
                        }
                        settled => settled,
                    }
                }
                Ok(_) => {
                    self.state.keep_spare(Arc::clone(&session));
                    continue;
                }
                Err(error) => Err(error),
            };
            match outcome {
                // The session was killed, or the server restarts.
                Err(_) if tries < TRIES && !session.is_usable() => {
                    tries += 1;
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE * tries) => {}
                        () = withdraw.cancelled() => return Ok(None),
                    }
                }
                outcome => return outcome,
            }
        }
    }
}

/// When a claim is given up.
#[derive(Clone, Copy)]
enum Withdraw<'a> {
    At(&'a CancellationToken),
    /// One attempt is made. After a holder that did not release it takes longer, since an attempt that ended before would
    /// never succeed.
    AfterOneAttempt,
}

impl<'a> Withdraw<'a> {
    fn during_a_wait(self) -> Option<&'a CancellationToken> {
        match self {
            Withdraw::At(withdraw) => Some(withdraw),
            Withdraw::AfterOneAttempt => None,
        }
    }
}

enum TakenShared {
    /// Granted, or withdrawn.
    Done(Option<SessionHold>),
    /// Another session holds it.
    Busy,
    /// This process holds it on the shared session.
    HeldHere,
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
        // On the same machine. Elsewhere, when its heartbeat time-out has passed.
        capabilities.frees_on_crash = false;
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

    #[cfg(unix)]
    fn descriptor(&self, lock_id: &LockId) -> Option<OwnedFd> {
        self.state
            .holds()
            .get(&self.state.ids.of(lock_id))
            .is_some()
            .then(process_socket::descriptor)
            .flatten()
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
        let once = withdraw.is_cancelled();
        let withdrawn = if once { Withdraw::AfterOneAttempt } else { Withdraw::At(withdraw) };
        let held_here = match self.take_shared(&grant, withdrawn).await? {
            TakenShared::Done(hold) => return Ok(hold),
            TakenShared::Busy => false,
            TakenShared::HeldHere => true,
        };
        if !withdraw.is_cancelled() {
            return self.wait(&grant, withdraw).await;
        }
        if !held_here {
            return Ok(None);
        }
        // The shared session would be granted its own lock again: another one asks the server.
        let session = self.state.spare_session().await?;
        match session.take(grant.clone()).await? {
            Taken::Granted(drawn) => self.settle(session, &grant, drawn, withdrawn).await,
            Taken::Busy | Taken::HeldHere => {
                self.state.keep_spare(session);
                Ok(None)
            }
        }
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let Some(session) = self.state.holds().remove(&self.state.ids.of(&lease.lock_id)) else {
            return Ok(());
        };
        let name = LockName::of(&self.state.tables, &lease.resource);
        let release = Release { name, lock_id: lease.lock_id.clone(), mark: Mark::Released };
        match session.release(release).await {
            Ok(_) => {
                self.state.released(session);
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
