//! The engine: everything that is the same on every store, once. It waits, coalesces, renews, notices loss,
//! releases in the background and tells about it. One task for each [`Locks`](crate::Locks), however many locks.

mod contain;
mod desk;
mod held;
mod keeper;
mod lane;
mod lease;
mod lines;
mod local_queue;
mod lone;
mod neighbours;
mod pending;
mod release;
mod renewal;
mod schedule;
mod session;
mod telemetry;
mod verbs;
mod waiters;
mod wakeups;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub(crate) use self::contain::contained;
use self::desk::{Desk, Mail};
pub(crate) use self::held::Held;
use self::lane::{AcquireVerb, Lane, ReleaseVerb};
use self::lines::Lines;
use self::neighbours::Neighbours;
pub(crate) use self::release::ReleaseFailure;
use self::schedule::Schedule;
use self::wakeups::Wakeups;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::resource::{Kind, LockIds, Resource};
use crate::store::{Backend, Capabilities, Inbox, LeaseStore, LossReason};

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// One attempt.
    Once,
    /// Until this moment.
    Until(Moment),
    /// For ever.
    Forever,
}

impl Wait {
    pub(crate) fn over(self, now: Moment) -> bool {
        matches!(self, Wait::Until(limit) if now >= limit)
    }

    fn limit(self) -> Moment {
        match self {
            Wait::Until(limit) => limit,
            Wait::Once | Wait::Forever => Moment::NEVER,
        }
    }
}

/// What a user asks of the engine.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) resource: Resource,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
    /// Not past anybody who registered before, where the server itself queues.
    pub(crate) no_overtaking: bool,
    pub(crate) options: Arc<Options>,
}

/// What the engine's task, the lanes and the guards share. It keeps nothing alive that keeps it alive.
pub(crate) struct Shared {
    pub(crate) backend: Backend,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store_name: Arc<str>,
    ids: LockIds,
    lines: Arc<Lines>,
    desk: Arc<Desk>,
    schedule: Schedule,
    closing: CancellationToken,
    lease: Option<LeaseSide>,
}

/// What only lease stores need.
struct LeaseSide {
    store: Arc<dyn LeaseStore>,
    acquire: Arc<Lane<AcquireVerb>>,
    release: Arc<Lane<ReleaseVerb>>,
    wakeups: Arc<Wakeups>,
    /// Turns to extend a batch.
    renewing: Semaphore,
    neighbours: Arc<Neighbours>,
}

impl Shared {
    /// Adds to an error what the engine knows: what was being done, about what, and where.
    fn explain(&self, error: Error, doing: &'static str, resource: &Resource) -> Error {
        error.doing(doing).about(resource).on(Arc::clone(&self.store_name))
    }

    fn stopped(&self) -> Error {
        if self.desk.is_dead() {
            Error::new(ErrorKind::ShutDown, "the runtime that these locks were connected on is gone")
                .advise("connect again on the runtime that is in use")
        } else {
            Error::new(ErrorKind::ShutDown, "shutdown was called").advise("connect again to take locks")
        }
        .with_retry(false)
    }

    /// Blocks the thread, without a runtime, until the engine's task has finished everything and ended, this long at most.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        self.desk.wait_for_end(limit);
    }

    /// Puts a hold on the schedule, and wakes the task if it would otherwise sleep beyond that.
    fn watch(&self, due: Moment, held: &Arc<Held>) {
        if self.schedule.insert(due, held) || self.closing.is_cancelled() {
            self.desk.nudge();
            // After the insertion: either the task that ends finds it on the schedule, or we find that it has ended.
            if self.desk.is_dead() {
                self.lose_all();
            }
        }
    }

    /// Turns lost what nothing renews or releases any more.
    fn lose_all(&self) {
        for held in self.schedule.take_all() {
            held.lose(LossReason::RuntimeGone);
        }
    }

    /// The engine's task ends: by itself, with its runtime or by a panic. Guards are lost and waiters get an error.
    fn end(&self) {
        // First, so that the errors and losses below say why.
        self.desk.die();
        self.closing.cancel();
        self.lose_all();
        self.desk.empty();
    }
}

/// A running engine. Dropping the last one lets the task finish what is under way and end.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl Engine {
    /// Starts the engine's task on the current runtime.
    pub(crate) fn start(
        backend: Backend,
        clock: Arc<dyn Clock>,
        label: &str,
        patience: Duration,
    ) -> Result<Arc<Self>> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "there is no Tokio runtime here")
                .doing("start the lock engine")
                .advise("connect inside a runtime, or use the blocking API")
        })?;
        backend.store().use_clock(Arc::clone(&clock));
        let capabilities = backend.capabilities();
        let ids = LockIds::new(label);
        let desk = Arc::new(Desk::default());
        let lease = match &backend {
            Backend::Session(_) => None,
            Backend::Lease(store) => Some(LeaseSide {
                store: Arc::clone(store),
                acquire: Lane::new(Arc::clone(store), Arc::clone(&desk), &capabilities, patience),
                release: Lane::new(Arc::clone(store), Arc::clone(&desk), &capabilities, patience),
                wakeups: Wakeups::new(Inbox::new(ids.prefix())),
                renewing: Semaphore::new(renewal::AT_ONCE),
                neighbours: Arc::default(),
            }),
        };
        let store_name = backend.store().describe().into();
        let shared = Arc::new(Shared {
            backend,
            capabilities,
            clock,
            store_name,
            ids,
            lines: Arc::new(Lines::default()),
            desk,
            schedule: Schedule::default(),
            closing: CancellationToken::new(),
            lease,
        });
        runtime.spawn(keeper::keep(keeper::Gone(Arc::clone(&shared))));
        Ok(Arc::new(Engine { shared }))
    }

    /// Takes what is asked for. `Ok(None)`: somebody else had it until the wait was over.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing held and nothing waiting in the store.
    pub(crate) async fn acquire(&self, ask: &Ask, wait: Wait) -> Result<Option<Arc<Held>>> {
        let shared = &self.shared;
        if shared.closing.is_cancelled() || shared.desk.is_dead() {
            return Err(shared.explain(shared.stopped(), "acquire", &ask.resource));
        }
        let started = shared.clock.now();
        let span = telemetry::acquire_span(&ask.resource, &shared.store_name);
        let outcome = match &shared.lease {
            Some(side) => lease::acquire(shared, side, ask, wait).instrument(span).await,
            None => session::acquire(shared, ask, wait).instrument(span).await,
        };
        match outcome {
            Ok(Some(held)) => {
                telemetry::acquired(&held.lease, held.granted_at.since(started));
                Ok(Some(held))
            }
            Ok(None) => {
                if wait != Wait::Once {
                    telemetry::timed_out(&ask.resource);
                }
                Ok(None)
            }
            Err(error) => Err(shared.explain(error, "acquire", &ask.resource)),
        }
    }

    /// Gives back, and tells how it ended.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the engine's task.
    pub(crate) async fn release(&self, held: &Arc<Held>) -> Result<(), ReleaseFailure> {
        let span = telemetry::release_span(&held.lease, &self.shared.store_name);
        release::release(&self.shared, held).instrument(span).await
    }

    /// Leaves the release to the engine's task. Works without a runtime.
    pub(crate) fn release_later(&self, held: Arc<Held>) {
        self.shared.desk.post(Mail::Release(held));
    }

    /// Leaves work to the engine's task, which drives it to its end. Works without a runtime.
    pub(crate) fn leave(&self, work: BoxFuture<'static, ()>) {
        self.shared.desk.post(Mail::Work(work));
    }

    /// The same at once, also if it was to be held for a least time: nobody had it for himself.
    pub(crate) fn undo(&self, held: Arc<Held>) {
        release::undo(&self.shared, held);
    }

    /// Undoes one hold when another is lost, unless `over` comes first.
    pub(crate) fn undo_on_loss(&self, lock: &Held, other: &Arc<Held>, over: CancellationToken) {
        let (lost, other) = (lock.signal().clone(), Arc::clone(other));
        let shared = Arc::clone(&self.shared);
        self.shared.desk.post(Mail::Background(Box::pin(async move {
            tokio::select! {
                () = lost.cancelled() => release::undo(&shared, other),
                () = over.cancelled() => {}
            }
        })));
    }

    /// Ends all waiting, turns what is held lost, releases it, and waits until the store was told of everything.
    pub(crate) async fn shutdown(&self) -> Result<()> {
        self.shared.closing.cancel();
        if self.shared.desk.is_dead() {
            return Err(self.shared.stopped());
        }
        let (done, told) = oneshot::channel();
        self.shared.desk.post(Mail::ShutDown(done));
        told.await.unwrap_or_else(|_| Err(self.shared.stopped()))
    }

    /// Refuses what the store cannot do, before anything is sent.
    pub(crate) fn require(&self, kind: Kind) -> Result<()> {
        let shared = &self.shared;
        if shared.capabilities.has(kind) {
            return Ok(());
        }
        let what = match kind {
            Kind::RwLock => "reader-writer locks",
            Kind::Semaphore => "semaphores",
            Kind::Mutex => "mutexes",
            Kind::FairQueue => "fair mutexes",
        };
        Err(shared.capabilities.unsupported(what).doing("acquire").on(Arc::clone(&shared.store_name)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.desk.close();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("store", &self.shared.store_name).finish_non_exhaustive()
    }
}
