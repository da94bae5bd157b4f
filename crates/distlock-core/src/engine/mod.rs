//! The engine: the part that is the same for every store. It waits, batches, renews, detects loss, releases in the
//! background and reports metrics. Each [`Locks`](crate::Locks) has one background task, however many locks it holds.
//!
//! An acquisition passes through `acquire_lease` or `acquire_session`, the local wait queue (`local_wait`,
//! `local_queue`), the batcher (`batcher`, `request`) and `store_call` or `session_batches`.

mod acquire_lease;
mod acquire_session;
mod answer;
mod background;
mod batcher;
mod command_channel;
mod held;
mod local_queue;
mod local_wait;
mod local_wakeups;
mod manual_renewal;
mod own_holds;
mod pending;
mod pending_releases;
mod release;
mod renewal;
mod request;
mod schedule;
mod self_wake;
mod session_batches;
mod sides;
mod store_call;
mod telemetry;
mod wait;
mod wakeups;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::background::EndGuard;
use self::command_channel::{Command, CommandChannel};
pub(crate) use self::held::Held;
use self::local_queue::LocalQueues;
pub(crate) use self::manual_renewal::RenewFailure;
use self::own_holds::OwnHolds;
use self::pending_releases::PendingReleases;
pub(crate) use self::release::ReleaseFailure;
use self::schedule::Schedule;
use self::sides::{LeaseSide, SessionSide};
pub(crate) use self::store_call::contained;
use self::telemetry::WaitGauge;
pub(crate) use self::wait::Wait;
use self::wakeups::Wakeups;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::resource::{Kind, LockIds, Resource};
use crate::store::{Backend, Capabilities, Claim, Inbox, Lease, LossReason};

/// How many waiters of a process may look up the holders of locks at once, for the message of a time-out. The others go
/// without: a batch of time-outs must not be a batch of requests.
const HOLDER_LOOKUPS: usize = 8;

/// How long a single attempt waits for the releases of its own process that are in flight, before it asks the store.
const RELEASE_PATIENCE: Duration = Duration::from_millis(500);

/// The state that the background task, the batchers and the guards share. It is in no reference cycle.
pub(crate) struct Shared {
    pub(crate) backend: Backend,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store_name: Arc<str>,
    ids: Arc<LockIds>,
    queues: Arc<LocalQueues>,
    own_holds: Arc<OwnHolds>,
    commands: Arc<CommandChannel>,
    schedule: Schedule,
    releases: Arc<PendingReleases>,
    closing: CancellationToken,
    /// How many calls of the store run in the tasks of their callers.
    callers_calls: std::sync::atomic::AtomicUsize,
    lease: Option<LeaseSide>,
    session: Option<SessionSide>,
    /// Permits to look up the holders of a lock for the message of a time-out.
    pub(crate) holder_lookups: Semaphore,
}

impl Shared {
    /// Adds the operation, the resource and the store to an error.
    fn explain(&self, error: Error, doing: &'static str, resource: &Resource) -> Error {
        error.doing(doing).about(resource).on(Arc::clone(&self.store_name))
    }

    fn stopped(&self) -> Error {
        if self.commands.is_dead() {
            Error::new(ErrorKind::ShutDown, "the runtime that these locks were connected on has ended")
                .advise("connect again on the runtime that is in use")
        } else {
            Error::new(ErrorKind::ShutDown, "shutdown was called").advise("connect again to acquire locks")
        }
        .with_retry(false)
    }

    /// Blocks the thread, without a runtime, until the background task has ended, or until `limit` has passed.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        self.commands.wait_for_end(limit);
    }

    /// Puts a hold on the schedule, and wakes the background task if it would sleep past `due`.
    fn watch(&self, due: Moment, held: &Arc<Held>) {
        self.after_insertion(self.schedule.insert(due, held));
    }

    /// The same for holds that are off the schedule. Those that are not held any more stay off.
    fn watch_held(&self, due: Moment, holds: &mut Vec<Arc<Held>>) {
        self.after_insertion(self.schedule.insert_held(due, holds));
    }

    /// `sooner`: the background task would sleep for too long.
    fn after_insertion(&self, sooner: bool) {
        if sooner || self.closing.is_cancelled() {
            self.commands.wake();
            // After the insertion: either the ending task finds the hold on the schedule, or we see that it has ended.
            if self.commands.is_dead() {
                self.lose_all();
            }
        }
    }

    /// Lets the background task remove what the store has under the lock id of a lease.
    fn forget_later(&self, lease: Lease) {
        let pending = self.releases.begin(&lease.resource);
        self.commands.send(Command::Forget(lease, Some(pending)));
    }

    /// Marks all scheduled holds as lost, since nothing renews or releases them any more.
    fn lose_all(&self) {
        for held in self.schedule.take_all() {
            held.lose(LossReason::RuntimeGone);
        }
    }

    /// Ends the engine when its background task ends, with its runtime or by a panic. Guards are lost and waiters get an
    /// error.
    fn end(&self) {
        // First, so that the errors and losses below have the right reason.
        self.commands.mark_dead();
        self.closing.cancel();
        self.lose_all();
        self.commands.drain();
    }
}

/// A running engine. When it is dropped, the background task completes what is in flight and ends.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl Engine {
    /// Starts the background task on the current runtime.
    pub(crate) fn start(
        backend: Backend,
        clock: Arc<dyn Clock>,
        label: &str,
        request_timeout: Duration,
    ) -> Result<Arc<Self>> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "there is no Tokio runtime here")
                .doing("start the lock engine")
                .advise("connect inside a runtime, or use the blocking API")
        })?;
        backend.store().use_clock(Arc::clone(&clock));
        let capabilities = backend.capabilities();
        let ids = Arc::new(LockIds::new(label));
        let queues = Arc::new(LocalQueues::default());
        let store_name: Arc<str> = backend.store().describe().into();
        telemetry::describe();
        let commands = Arc::new(CommandChannel::default());
        let (lease, session) = match &backend {
            Backend::Session(store) => {
                (None, Some(SessionSide::new(store, &commands, &capabilities, request_timeout)))
            }
            Backend::Lease(store) => {
                let wakeups = Wakeups::new(Inbox::new(ids.prefix()), Arc::clone(&store_name));
                (Some(LeaseSide::new(store, &commands, &capabilities, request_timeout, wakeups)), None)
            }
        };
        let shared = Arc::new(Shared {
            backend,
            capabilities,
            clock,
            own_holds: Arc::new(OwnHolds::new(
                Arc::clone(&store_name),
                Arc::clone(&ids),
                Arc::clone(&queues),
            )),
            store_name,
            ids,
            queues,
            commands,
            schedule: Schedule::default(),
            releases: Arc::default(),
            closing: CancellationToken::new(),
            callers_calls: Default::default(),
            lease,
            session,
            holder_lookups: Semaphore::new(HOLDER_LOOKUPS),
        });
        runtime.spawn(self_wake::drive(background::run(EndGuard(Arc::clone(&shared)))));
        Ok(Arc::new(Engine { shared }))
    }

    /// A claim under a lock id of its own, for one attempt to acquire the whole of a resource of capacity 1.
    pub(crate) fn claim(&self, resource: Resource, options: &Options) -> Claim {
        // The first lease covers the minimum hold time, so that it survives this process. Renewals never shorten it.
        let expiry = options.get_expiry().max(options.get_hold_at_least());
        Claim::new(resource, self.shared.ids.next(), expiry).with_cadence(options.get_extension_cadence())
    }

    /// Acquires. `Ok(None)`: it was held by another client until the wait was over. `started`: since when the user waits.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing held and nothing waiting in the store.
    pub(crate) async fn acquire(
        &self,
        claim: &mut Claim,
        options: &Arc<Options>,
        wait: Wait,
        started: Moment,
    ) -> Result<Option<Arc<Held>>> {
        let shared = &self.shared;
        self.check_running("acquire").map_err(|error| error.about(&claim.resource))?;
        let span = telemetry::acquire_span(&claim.resource, &shared.store_name);
        if wait == Wait::Once && !shared.releases.is_empty() {
            let patience = (options.get_request_timeout() / 2).min(RELEASE_PATIENCE);
            let _ = Box::pin(tokio::time::timeout(patience, shared.releases.settled(&claim.resource))).await;
        }
        match span.is_disabled() {
            true => self.acquire_in_span(claim, options, wait, started).await,
            false => Box::pin(self.acquire_in_span(claim, options, wait, started).instrument(span)).await,
        }
    }

    async fn acquire_in_span(
        &self,
        claim: &mut Claim,
        options: &Arc<Options>,
        wait: Wait,
        started: Moment,
    ) -> Result<Option<Arc<Held>>> {
        let shared = &self.shared;
        let resource = claim.resource.clone();
        let gauge = WaitGauge::new(&resource, &shared.store_name);
        let outcome = match &shared.lease {
            Some(side) => acquire_lease::acquire(shared, side, claim, options, wait, &gauge).await,
            // Boxed: it is larger than everything around it.
            None => Box::pin(acquire_session::acquire(shared, claim, options, wait, &gauge)).await,
        };
        drop(gauge);
        match outcome {
            Ok(Some(held)) => {
                telemetry::acquired(&held, held.granted_at.since(started), &shared.store_name);
                Ok(Some(held))
            }
            Ok(None) => {
                if wait != Wait::Once {
                    telemetry::timed_out(&resource, &shared.store_name);
                }
                Ok(None)
            }
            Err(error) => Err(shared.explain(error, "acquire", &resource)),
        }
    }

    /// Returns an error if the engine was shut down, or its runtime has ended.
    pub(crate) fn check_running(&self, doing: &'static str) -> Result<()> {
        let shared = &self.shared;
        if shared.closing.is_cancelled() || shared.commands.is_dead() {
            return Err(shared.stopped().doing(doing).on(Arc::clone(&shared.store_name)));
        }
        Ok(())
    }

    /// Releases a hold and waits for the store's answer.
    ///
    /// # Cancel safety
    /// Guards own the hold while they await this: dropping the future drops the guard, which leaves the release to the
    /// background task.
    pub(crate) async fn release(&self, held: &Arc<Held>) -> Result<(), ReleaseFailure> {
        let span = telemetry::release_span(held, &self.shared.store_name);
        release::release(&self.shared, held).instrument(span).await
    }

    /// Renews a hold because its user asks for it.
    ///
    /// # Cancel safety
    /// The request goes on in the background, and its answer counts.
    pub(crate) async fn renew(&self, held: &Arc<Held>) -> Result<(), RenewFailure> {
        let span = telemetry::renew_span(1, &self.shared.store_name);
        manual_renewal::renew(&self.shared, held).instrument(span).await
    }

    /// Lets the background task release a hold. Works without a runtime.
    pub(crate) fn release_later(&self, held: Arc<Held>) {
        release::later(&self.shared, held);
    }

    /// Lets the background task drive a future to completion. Works without a runtime.
    pub(crate) fn leave(&self, work: BoxFuture<'static, ()>) {
        self.shared.commands.send(Command::Work(work));
    }

    /// Releases at once a hold that was never given to a user: its minimum hold time does not apply.
    pub(crate) fn undo(&self, held: Arc<Held>) {
        release::undo(&self.shared, held);
    }

    /// Releases `other` when `lock` is lost, unless `over` is cancelled first.
    pub(crate) fn undo_on_loss(&self, lock: &Held, other: &Arc<Held>, over: CancellationToken) {
        let (lost, other) = (lock.signal().clone(), Arc::clone(other));
        let shared = Arc::clone(&self.shared);
        self.shared.commands.send(Command::Background(Box::pin(async move {
            tokio::select! {
                biased;
                () = lost.cancelled() => release::undo(&shared, other),
                () = over.cancelled() => {}
            }
        })));
    }

    /// Cancels `signal` when the first of the holds is lost, or the engine ends, unless `over` is cancelled first.
    pub(crate) fn cancel_on_loss<'a>(
        &self,
        holds: impl Iterator<Item = &'a Arc<Held>>,
        signal: CancellationToken,
        over: CancellationToken,
    ) {
        let losses: Vec<CancellationToken> = holds.map(|held| held.signal().clone()).collect();
        if losses.is_empty() {
            return;
        }
        // Also when it is dropped unfinished: then the engine has ended, and the locks are lost.
        let cancel = signal.drop_guard();
        self.shared.commands.send(Command::Background(Box::pin(async move {
            let first =
                futures_util::future::select_all(losses.iter().map(|lost| Box::pin(lost.cancelled())));
            tokio::select! {
                biased;
                _ = first => drop(cancel),
                () = over.cancelled() => {
                    cancel.disarm();
                }
            }
        })));
    }

    /// Ends all waiting, marks all holds as lost, releases them, and waits until the store has confirmed.
    pub(crate) async fn shutdown(&self) -> Result<()> {
        self.shared.closing.cancel();
        if self.shared.commands.is_dead() {
            return Err(self.shared.stopped());
        }
        let (done, drained) = oneshot::channel();
        self.shared.commands.send(Command::ShutDown(done));
        drained.await.unwrap_or_else(|_| Err(self.shared.stopped()))
    }

    /// Returns an error if the store does not support this kind of lock.
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
        self.shared.commands.close();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("store", &self.shared.store_name).finish_non_exhaustive()
    }
}
