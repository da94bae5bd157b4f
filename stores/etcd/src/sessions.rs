//! The sessions of a store: one for each time-to-live that is in use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use distlock_core::{BootClock, CancellationToken, Clock};

use crate::client::Client;
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
        let session = match current.as_ref().filter(|session| session.is_alive()) {
            Some(session) => Arc::clone(session),
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
                Arc::clone(current.insert(begun.await?))
            }
        };
        if let Some(cadence) = cadence {
            session.renew_every(cadence);
        }
        Ok(session)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}
