//! What all verbs share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distlock_core::{Error, ErrorKind, Result};
use tokio::sync::OnceCell;

use crate::floor::Floor;
use crate::known::Known;
use crate::seen::Seen;
use crate::topology::Topology;
use crate::wire::Wire;

/// One connected store.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) wire: Wire,
    pub(crate) topology: Topology,
    pub(crate) floor: Floor,
    pub(crate) known: Known,
    /// Mutexes that have a document.
    pub(crate) seen: Seen,
    /// Whether the indexes were seen to.
    pub(crate) indexed: AtomicBool,
    /// Somebody writes down what became of the server's clock.
    noting: AtomicBool,
    /// The server does not hand on a mutex in one request.
    cannot_pass: AtomicBool,
    /// Why lines cannot be kept, if the server refused.
    lines_refused: OnceCell<Error>,
}

impl Core {
    pub(crate) fn new(wire: Wire, topology: Topology) -> Arc<Self> {
        Arc::new(Core {
            wire,
            topology,
            floor: Floor::default(),
            known: Known::default(),
            seen: Seen::default(),
            indexed: AtomicBool::new(false),
            noting: AtomicBool::new(false),
            cannot_pass: AtomicBool::new(false),
            lines_refused: OnceCell::new(),
        })
    }

    /// Whether waiters of a mutex stand in a line: not where nobody could be woken.
    pub(crate) fn has_lines(&self) -> bool {
        self.topology.pushes() && !self.lines_refused.initialized()
    }

    /// The collection of queues refused us: mutexes work without it, and their waiters ask again and again.
    pub(crate) fn refuse_lines(&self, error: &Error) {
        if self.lines_refused.set(error.clone()).is_ok() {
            tracing::warn!(%error, "waiters of a mutex cannot be woken");
        }
    }

    /// Whether a mutex can be handed on in one request: not before MongoDB 4.4, not on a sharded cluster, whose shards
    /// do not look into each other's collections, and not where the server refused it.
    pub(crate) fn passes(&self) -> bool {
        self.topology.merges() && !self.cannot_pass.load(Ordering::Relaxed)
    }

    /// The server refused to hand a mutex on in one request; two do it as well.
    pub(crate) fn refuse_passing(&self, error: &Error) {
        tracing::debug!(%error, "mutexes are handed on in two requests");
        self.cannot_pass.store(true, Ordering::Relaxed);
    }

    /// Takes note of the server's clock.
    pub(crate) fn saw(self: &Arc<Self>, now: Option<i64>) {
        if self.floor.saw(now) && !self.noting.swap(true, Ordering::Relaxed) {
            let core = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(error) = core.note_clock().await {
                    tracing::warn!(%error, "cannot write down how far the server's clock had been");
                }
                core.noting.store(false, Ordering::Relaxed);
            });
        }
    }

    /// Takes note of the server's clock when a mutex was granted. Its document goes when it expires, token and all: if
    /// the clock was set back, that is written down before the grant is believed.
    pub(crate) async fn granted(&self, token: i64, now: Option<i64>) -> Result<()> {
        // Both are to be told.
        if !(self.floor.saw_token(token, now) | self.floor.saw(now)) {
            return Ok(());
        }
        match self.note_clock().await {
            // A user without a right to the second collection has locks all the same.
            Err(error) if error.kind() == ErrorKind::Denied => {
                tracing::warn!(%error, "cannot write down how far the server's clock had been");
                Ok(())
            }
            noted => noted.map_err(|error| error.with_unknown_outcome()),
        }
    }

    async fn note_clock(&self) -> Result<()> {
        tracing::warn!("the clock of the MongoDB server was set back");
        self.floor.store(&self.wire).await
    }

    pub(crate) fn retention_ms(&self) -> i64 {
        crate::record::in_ms(self.wire.names().retention)
    }
}
