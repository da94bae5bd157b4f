//! What all verbs share.

use std::sync::Arc;

use distlock_core::Error;
use tokio::sync::OnceCell;

use crate::floor::Floor;
use crate::known::Known;
use crate::topology::Topology;
use crate::wire::Wire;

/// One connected store.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) wire: Wire,
    pub(crate) topology: Topology,
    pub(crate) floor: Floor,
    pub(crate) known: Known,
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

    /// Takes note of the server's clock.
    pub(crate) fn saw(self: &Arc<Self>, now: Option<i64>) {
        if self.floor.saw(now) {
            tracing::warn!("the clock of the MongoDB server was set back");
            let core = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(error) = core.floor.store(&core.wire).await {
                    tracing::warn!(%error, "cannot write down how far the server's clock had been");
                }
            });
        }
    }

    pub(crate) fn retention_ms(&self) -> i64 {
        crate::record::in_ms(self.wire.names().retention)
    }
}
