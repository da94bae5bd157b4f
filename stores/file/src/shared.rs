//! What all parts of one store share.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_core::store::{Claim, SessionHold};
use distlock_core::{Error, ErrorKind, FencingToken, LockId, LockIds, Result};

use crate::config::{FileConfig, Wakeups};
use crate::layout::Layout;
use crate::mutex::MutexHold;
use crate::pool::{Doors, PoolHold};
use crate::record::{Note, since_1970};
use crate::watch::Watcher;

/// One thing that is held. Dropping it gives it back.
#[derive(Debug)]
pub(crate) enum Hold {
    Mutex(MutexHold),
    Pool(PoolHold),
}

impl Hold {
    /// What the engine is told of it.
    pub(crate) fn granted(&self) -> SessionHold {
        let (token, session) = match self {
            Hold::Mutex(hold) => (hold.token, &hold.session),
            Hold::Pool(hold) => (hold.token, &hold.session),
        };
        SessionHold { token, session: session.clone() }
    }

    /// A copy of the open file that the kernel lock belongs to.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        let file = match self {
            Hold::Mutex(hold) => hold.file(),
            Hold::Pool(hold) => hold.file(),
        };
        file.as_fd().try_clone_to_owned().ok()
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) layout: Arc<Layout>,
    pub(crate) watcher: Watcher,
    pub(crate) doors: Doors,
    process: String,
    holds: Mutex<HashMap<LockId, Hold>>,
}

impl Shared {
    pub(crate) fn new(config: FileConfig) -> Self {
        let kernel_tells = config.wakeups == Wakeups::Auto && !crate::doctor::is_network(&config.dir);
        Shared {
            watcher: Watcher::new(kernel_tells),
            layout: Arc::new(Layout::new(config.dir, config.access)),
            doors: Doors::default(),
            process: LockIds::default_label(),
            holds: Mutex::default(),
        }
    }

    /// What the files say about a claim of ours.
    pub(crate) fn note(&self, claim: &Claim, token: Option<FencingToken>) -> Note {
        Note {
            lock_id: claim.lock_id.clone(),
            process: self.process.clone(),
            token: token.map(FencingToken::get),
            since: since_1970(),
            weight: claim.weight,
            capacity: claim.capacity,
        }
    }

    pub(crate) fn holds(&self) -> MutexGuard<'_, HashMap<LockId, Hold>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does file work where it may block. If the caller is dropped, the work goes on to its end, and what came of it is
/// dropped and so given back.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_cancelled() => {
            Err(Error::new(ErrorKind::ShutDown, "the runtime is shutting down"))
        }
        Err(error) => Err(Error::new(ErrorKind::Internal, "the file store panicked").caused_by(error)),
    }
}
