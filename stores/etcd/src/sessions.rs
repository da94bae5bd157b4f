//! The sessions of a store: one for each time-to-live that is in use, and more where it has very many claims.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use distlock_core::{BootClock, CancellationToken, Clock};

use crate::claims::ClaimId;
use crate::client::Client;
use crate::deletion::Deletion;
use crate::error::Failure;
use crate::keys::Keys;
use crate::session::EtcdSession;
use crate::watch::Watches;

type Slot = Arc<tokio::sync::Mutex<Option<Arc<EtcdSession>>>>;

/// Finds or begins sessions. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Sessions {
    client: Client,
    keys: Keys,
    clock: OnceLock<Arc<dyn Clock>>,
    watches: Mutex<Watches>,
    /// By time-to-live in seconds.
    slots: Mutex<HashMap<i64, Slot>>,
    /// All that live or have claims: a claim is released where it was entered.
    all: Mutex<Vec<Arc<EtcdSession>>>,
    closing: CancellationToken,
}

impl Sessions {
    pub(crate) fn new(client: Client, keys: Keys) -> Self {
        Sessions {
            watches: Mutex::new(Watches::start(client.clone())),
            client,
            keys,
            clock: OnceLock::new(),
            slots: Mutex::default(),
            all: Mutex::default(),
            closing: CancellationToken::new(),
        }
    }

    pub(crate) fn use_clock(&self, clock: Arc<dyn Clock>) {
        let _ = self.clock.set(clock);
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(self.clock.get_or_init(|| Arc::new(BootClock)))
    }

    /// The watches. They are started again if the runtime that they were started on has ended.
    fn watches(&self) -> Watches {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if !watches.is_running() {
            *watches = Watches::start(self.client.clone());
        }
        watches.clone()
    }

    /// A live session for claims of this expiry. Many callers share one attempt to begin it.
    pub(crate) async fn get(
        &self,
        expiry: Duration,
        cadence: Option<Duration>,
    ) -> Result<Arc<EtcdSession>, Failure> {
        // etcd counts in seconds.
        let seconds = i64::try_from(expiry.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(seconds).or_default())
        };
        let mut current = slot.lock().await;
        let usable = |session: &&Arc<EtcdSession>| session.is_alive() && session.has_room(false);
        let usable = current.as_ref().filter(usable).map(Arc::clone);
        let session = match usable.or_else(|| self.with_room_again(seconds)) {
            Some(session) => Arc::clone(current.insert(session)),
            None => {
                let watches = self.watches();
                let begun = EtcdSession::begin(
                    &self.keys,
                    &self.client,
                    &watches,
                    self.clock(),
                    seconds,
                    self.closing.child_token(),
                );
                let begun = begun.await?;
                self.add(Arc::clone(&begun));
                Arc::clone(current.insert(begun))
            }
        };
        if let Some(cadence) = cadence {
            session.renew_every(cadence);
        }
        Ok(session)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<EtcdSession>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, session: Arc<EtcdSession>) {
        let mut all = self.all();
        // Of a session that ended, claims may still be released: their keys are there until the server ends the lease. One that is only
        // past its deadline may be renewed yet.
        all.retain(|session| session.life.ended().is_none() || session.has_claims());
        all.push(session);
    }

    /// A session that was full, and has lost many of its claims.
    fn with_room_again(&self, seconds: i64) -> Option<Arc<EtcdSession>> {
        let usable = |session: &&Arc<EtcdSession>| {
            session.wanted_seconds == seconds && session.is_alive() && session.has_room(true)
        };
        self.all().iter().find(usable).map(Arc::clone)
    }

    /// Takes a claim that holds out of its session, to delete its key. `None` if there is none.
    pub(crate) fn take_claim(&self, key: Vec<u8>) -> Option<Deletion> {
        let id = ClaimId::of(&key);
        let taken =
            |session: &Arc<EtcdSession>| session.take_claim(id).map(|kept| (Arc::clone(session), kept));
        let (session, kept) = self.all().iter().find_map(taken)?;
        Some(Deletion::new(session, key, kept))
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}
