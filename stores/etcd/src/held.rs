//! What the store keeps of a claim that holds.

use std::sync::Arc;

use distlock_core::{LockId, Result};

use crate::session::EtcdSession;

/// A claim that holds. A process may have many, so its size matters: its key is with its session. Dropping it deletes the key.
#[derive(Debug)]
pub(crate) struct HeldClaim {
    pub(crate) session: Arc<EtcdSession>,
    pub(crate) lock_id: LockId,
    /// The creation revision of the key.
    pub(crate) revision: i64,
    /// An enter of it may still be in flight.
    pub(crate) uncertain: bool,
}

impl HeldClaim {
    /// Deletes the key and waits until the server has confirmed. If it fails, the session deletes it later.
    pub(crate) async fn leave(self) -> Result<()> {
        let Some(mut deletion) = self.begin_deletion() else { return Ok(()) };
        let Deletion { session, key, revision, uncertain, .. } = &deletion;
        session.delete_claim(key, *revision, *uncertain).await.map_err(|failure| failure.error)?;
        deletion.is_done = true;
        Ok(())
    }

    /// `None` if the session does not have it any more: it is being deleted.
    fn begin_deletion(&self) -> Option<Deletion> {
        let key = self.session.remove_claim(&self.lock_id)?;
        let session = Arc::clone(&self.session);
        Some(Deletion { session, key, revision: self.revision, uncertain: self.uncertain, is_done: false })
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        drop(self.begin_deletion());
    }
}

/// A key that is to be deleted. Dropping it unfinished leaves that to the session.
struct Deletion {
    session: Arc<EtcdSession>,
    key: Vec<u8>,
    revision: i64,
    uncertain: bool,
    is_done: bool,
}

impl Drop for Deletion {
    fn drop(&mut self) {
        if !self.is_done {
            self.session.delete_later(std::mem::take(&mut self.key), self.revision, self.uncertain);
        }
    }
}
