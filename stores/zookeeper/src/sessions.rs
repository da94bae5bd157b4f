//! The sessions of a store: one for each time-out that is asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::store::support::errors::unavailable;
use distlock_core::store::support::reconnect::Reconnect;
use distlock_core::{BootClock, Clock, Result};
use zookeeper_client::{Client, Error as DriverError};

use crate::config::ZookeeperConfig;
use crate::connect::open_client;
use crate::error::driver_error;
use crate::session::KeptSession;

/// The time-out of the session for `inspect` and `doctor`, and of the first: the default expiry of a lock.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// More expiries than this share sessions with a shorter time-out.
const MAX_SESSIONS: usize = 8;

const PAUSE: Duration = Duration::from_millis(50);

/// The sessions of a store.
pub(crate) struct Sessions {
    pub(crate) config: ZookeeperConfig,
    /// The client that the application gave us, if it did. There is no other session then.
    given: Option<Client>,
    clock: Mutex<Arc<dyn Clock>>,
    open: Mutex<BTreeMap<Duration, Arc<Slot>>>,
    /// Connected when the store was, for the first session of this time-out.
    spare: Mutex<Option<(Duration, Client)>>,
}

#[derive(Debug)]
struct Slot {
    session: Reconnect<KeptSession>,
    was_open: AtomicBool,
}

impl Sessions {
    pub(crate) fn new(config: ZookeeperConfig) -> Self {
        Sessions {
            config,
            given: None,
            clock: Mutex::new(Arc::new(BootClock)),
            open: Mutex::default(),
            spare: Mutex::default(),
        }
    }

    /// The session of a client that the application connected.
    pub(crate) fn of_client(client: Client, config: ZookeeperConfig) -> Self {
        Sessions { given: Some(client), ..Sessions::new(config) }
    }

    /// Connects once, so that a wrong address or login is reported now.
    pub(crate) async fn connect(config: ZookeeperConfig) -> Result<Self> {
        let sessions = Sessions::new(config);
        let timeout = sessions.timeout_for(DEFAULT_TIMEOUT);
        let client = open_client(&sessions.config, timeout, true).await?;
        *sessions.spare() = Some((timeout, client));
        Ok(sessions)
    }

    pub(crate) fn use_clock(&self, clock: Arc<dyn Clock>) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = clock;
    }

    fn spare(&self) -> MutexGuard<'_, Option<(Duration, Client)>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<Duration, Arc<Slot>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time-out to ask for, for a lock of this expiry.
    pub(crate) fn timeout_for(&self, expiry: Duration) -> Duration {
        self.config.session_timeout.unwrap_or(expiry)
    }

    fn slot(&self, timeout: Duration) -> (Duration, Arc<Slot>) {
        let mut slots = self.slots();
        if !slots.contains_key(&timeout) && slots.len() >= MAX_SESSIONS {
            let shorter = slots.range(..timeout).next_back().or_else(|| slots.iter().next());
            if let Some((timeout, slot)) = shorter {
                return (*timeout, Arc::clone(slot));
            }
        }
        let slot = slots.entry(timeout).or_insert_with(|| {
            let session = Reconnect::new(self.config.connect_timeout);
            Arc::new(Slot { session, was_open: AtomicBool::new(false) })
        });
        (timeout, Arc::clone(slot))
    }

    /// The session for locks of this expiry, connected if it is not.
    ///
    /// # Errors
    /// If no server can be reached within the connect time-out, or the login is refused.
    pub(crate) async fn get(&self, expiry: Duration) -> Result<Arc<KeptSession>> {
        let timeout = if self.given.is_some() { Duration::ZERO } else { self.timeout_for(expiry) };
        let (timeout, slot) = self.slot(timeout);
        if let Some(session) = slot.session.current() {
            return Ok(session);
        }
        let session = slot.session.get(|| self.open(timeout, &slot)).await?;
        let slot = Arc::downgrade(&slot);
        session.start_heartbeats(move |ended| {
            if let Some(slot) = slot.upgrade() {
                slot.session.discard(ended);
            }
        });
        Ok(session)
    }

    async fn open(&self, timeout: Duration, slot: &Slot) -> Result<KeptSession> {
        let clock = Arc::clone(&self.clock.lock().unwrap_or_else(PoisonError::into_inner));
        let reopened = slot.was_open.swap(true, Ordering::SeqCst);
        let client = match (&self.given, self.take_spare(timeout)) {
            (Some(given), _) if given.state().is_terminated() => {
                return Err(unavailable("the session of the client that the store was given has ended"));
            }
            (Some(given), _) => given.clone(),
            (None, Some(spare)) => spare,
            (None, None) => self.open_new(timeout, reopened).await?,
        };
        KeptSession::keep(client, clock, self.given.is_some()).await
    }

    /// A new session. After an outage it is tried again and again: an ensemble that elects a leader refuses sessions. The
    /// caller has a time limit.
    async fn open_new(&self, timeout: Duration, patient: bool) -> Result<Client> {
        loop {
            match open_client(&self.config, timeout, !patient).await {
                Err(error) if patient && error.can_retry() => tokio::time::sleep(PAUSE).await,
                outcome => return outcome,
            }
        }
    }

    fn take_spare(&self, timeout: Duration) -> Option<Client> {
        let mut spare = self.spare();
        let (_, client) = spare.take_if(|(asked, _)| *asked == timeout)?;
        (!client.state().is_terminated()).then_some(client)
    }

    /// A session for requests that have nothing to do with a lock: one that is open, or a new one.
    pub(crate) async fn any(&self) -> Result<Arc<KeptSession>> {
        let current = self.slots().values().find_map(|slot| slot.session.current());
        match current {
            Some(session) => Ok(session),
            None => self.get(DEFAULT_TIMEOUT).await,
        }
    }

    /// All open sessions.
    pub(crate) fn all(&self) -> Vec<Arc<KeptSession>> {
        self.slots().values().filter_map(|slot| slot.session.current()).collect()
    }

    /// Repeats a read on another session if its own ends.
    ///
    /// # Errors
    /// What the server or the connection says the second time.
    pub(crate) async fn read<T, F>(&self, read: impl Fn(Arc<KeptSession>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, DriverError>>,
    {
        let session = self.any().await?;
        match read(session).await {
            Err(DriverError::SessionExpired) => {
                let session = self.any().await?;
                read(session).await.map_err(|error| driver_error(&error))
            }
            other => other.map_err(|error| driver_error(&error)),
        }
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("config", &self.config)
            .field("open", &*self.slots())
            .finish_non_exhaustive()
    }
}
