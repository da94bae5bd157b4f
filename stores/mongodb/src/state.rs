//! What all verbs of one connected store share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_core::store::GRANT_WINDOW;
use distlock_core::{Error, ErrorKind, Result};

use crate::commands::Commands;
use crate::document_cache::DocumentCache;
use crate::documents::whole_ms;
use crate::pipelines::GrantTerms;
use crate::server_clock::ServerClock;
use crate::topology::Topology;
use crate::waiter_cache::WaiterCache;

#[derive(Debug)]
pub(crate) struct StoreState {
    pub(crate) commands: Commands,
    pub(crate) topology: Topology,
    /// How long the server waits for an event before it answers a `getMore` of the change stream without one.
    pub(crate) longest_silence: Duration,
    pub(crate) clock: ServerClock,
    pub(crate) waiters: WaiterCache,
    /// The mutexes that have a document.
    pub(crate) documents: DocumentCache,
    /// Whether the indexes are taken care of.
    pub(crate) indexes_started: AtomicBool,
    /// A note of the server's clock is being written.
    clock_note_in_flight: AtomicBool,
    /// The server refused to hand a mutex off in one request.
    merge_refused: AtomicBool,
    /// The server refused us the collection of the wait queues.
    wait_queues_refused: AtomicBool,
}

impl StoreState {
    pub(crate) fn new(commands: Commands, topology: Topology, longest_silence: Duration) -> Arc<Self> {
        Arc::new(StoreState {
            commands,
            topology,
            longest_silence,
            clock: ServerClock::default(),
            waiters: WaiterCache::default(),
            documents: DocumentCache::default(),
            indexes_started: AtomicBool::new(false),
            clock_note_in_flight: AtomicBool::new(false),
            merge_refused: AtomicBool::new(false),
            wait_queues_refused: AtomicBool::new(false),
        })
    }

    /// Whether mutexes have wait queues. Without change streams no waiter could be woken.
    pub(crate) fn has_wait_queues(&self) -> bool {
        self.topology.has_change_streams() && !self.wait_queues_refused.load(Ordering::Relaxed)
    }

    /// Goes on without wait queues: mutexes work, and their waiters poll.
    pub(crate) fn refuse_wait_queues(&self, error: &Error) {
        if !self.wait_queues_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "waiters of a mutex cannot be woken");
        }
    }

    /// Whether a mutex can be handed off in one request, with `$merge`. Not before MongoDB 4.4, and not on a sharded
    /// cluster, whose shards cannot read each other's collections.
    pub(crate) fn can_merge(&self) -> bool {
        self.topology.can_merge() && !self.merge_refused.load(Ordering::Relaxed)
    }

    /// Hands mutexes off in two requests from now on.
    pub(crate) fn refuse_merge(&self, error: &Error) {
        tracing::debug!(%error, "mutexes are handed off in two requests");
        self.merge_refused.store(true, Ordering::Relaxed);
    }

    /// Records a reading of the server's clock. A clock that was set back is written down in the background.
    pub(crate) fn observe_clock(self: &Arc<Self>, now: Option<i64>) {
        if self.clock.observe(now) && !self.clock_note_in_flight.swap(true, Ordering::Relaxed) {
            let state = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(error) = state.write_clock_note().await {
                    tracing::warn!(%error, "cannot write down how far the server's clock was set back");
                }
                state.clock_note_in_flight.store(false, Ordering::Relaxed);
            });
        }
    }

    /// Records the token of a mutex grant and the clock at that time. The document is deleted when it expires, and its
    /// token with it. If the clock was set back, that is written down before the grant is returned.
    pub(crate) async fn observe_grant(&self, token: i64, now: Option<i64>) -> Result<()> {
        // Not `||`: both record what they are given.
        if !(self.clock.observe_token(token, now) | self.clock.observe(now)) {
            return Ok(());
        }
        match self.write_clock_note().await {
            // Mutexes work for a user without rights to the second collection.
            Err(error) if error.kind() == ErrorKind::Denied => {
                tracing::warn!(%error, "cannot write down how far the server's clock was set back");
                Ok(())
            }
            written => written.map_err(|error| error.with_unknown_outcome()),
        }
    }

    async fn write_clock_note(&self) -> Result<()> {
        tracing::warn!("the clock of the MongoDB server was set back");
        self.clock.store(&self.commands).await
    }

    pub(crate) fn retention_ms(&self) -> i64 {
        whole_ms(self.commands.names().retention)
    }

    /// What every pipeline on a pool is bound to.
    pub(crate) fn grant_terms(&self) -> GrantTerms {
        GrantTerms {
            window_ms: whole_ms(GRANT_WINDOW),
            lowest_token: self.clock.lowest_token(),
            retention_ms: self.retention_ms(),
        }
    }
}
