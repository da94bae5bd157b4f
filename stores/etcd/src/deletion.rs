//! Deleting the key of a claim that was released.

use std::sync::Arc;

use distlock_core::Result;

use crate::claims::Kept;
use crate::session::EtcdSession;

/// A key that is to be deleted. Dropping it unfinished leaves that to the session.
pub(crate) struct Deletion {
    session: Arc<EtcdSession>,
    key: Vec<u8>,
    kept: Kept,
    is_done: bool,
}

impl Deletion {
    pub(crate) fn new(session: Arc<EtcdSession>, key: Vec<u8>, kept: Kept) -> Self {
        Deletion { session, key, kept, is_done: false }
    }

    /// Deletes the key and waits until the server has confirmed. If it fails, the session deletes it later.
    pub(crate) async fn run(mut self) -> Result<()> {
        let Kept { revision, uncertain } = self.kept;
        let deleted = self.session.delete_claim(&self.key, revision, uncertain).await;
        deleted.map_err(|failure| failure.error)?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for Deletion {
    fn drop(&mut self) {
        if !self.is_done {
            self.session.delete_later(std::mem::take(&mut self.key), self.kept.revision, self.kept.uncertain);
        }
    }
}
