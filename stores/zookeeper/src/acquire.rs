//! One acquisition on one session: enqueue, wait for the predecessor, and hold.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::support::errors::capacity_mismatch;
use distlock_core::store::{Claim, SessionHold};
use distlock_core::{CancellationToken, ErrorKind, FencingToken, Kind, LockId, Result};
use futures_util::FutureExt;
use zookeeper_client::{Error as DriverError, EventType, OneshotWatcher};

use crate::config::Access;
use crate::contender::{Contender, Enqueued};
use crate::error::{Failure, driver_error};
use crate::queue::{Entry, Position, Queue};
use crate::session::KeptSession;

/// A hold that did not wait is watched from this age on. Most holds are shorter, and save the request; a forced release before
/// that is noticed then.
const WATCHED_FROM: Duration = Duration::from_millis(20);

/// How an attempt ended.
pub(crate) enum Outcome {
    Granted(SessionHold),
    /// Withdrawn, and nothing is left of it.
    Withdrawn,
    /// The session ended while it waited, or another client deleted its node: its place in the queue is gone.
    PlaceLost,
}

/// The event of a watch; `None` if the driver's task is gone.
type WatchEvent = Pin<Box<dyn Future<Output = Option<EventType>> + Send>>;

fn event(watcher: OneshotWatcher) -> WatchEvent {
    // The driver panics if its task was dropped together with its runtime.
    let changed = AssertUnwindSafe(watcher.changed()).catch_unwind();
    Box::pin(async move { changed.await.ok().map(|event| event.event_type) })
}

/// What woke a waiter.
enum Wakeup {
    Event(Option<EventType>),
    OwnNodeDeleted,
    Withdrawn,
    SessionEnded,
}

/// Whether a claim would be granted now, by the word of the leader: an attempt that must not wait leaves no node behind that
/// others would queue after.
pub(crate) async fn is_free(session: &KeptSession, parent: &str, claim: &Claim) -> Result<bool> {
    let both = || async {
        let synced = session.client.sync(parent);
        let listed = session.client.list_children(parent);
        synced.await?;
        listed.await
    };
    let mut checks = 0;
    loop {
        let children = match session.repeat(both).await {
            Err(DriverError::NoNode) => return Ok(true),
            children => children.map_err(|error| driver_error(&error))?,
        };
        match queue_of(claim, &children).position_of_new(claim.weight, claim.capacity) {
            Position::Mismatch(theirs) => wait_for_refused(&mut checks, claim, theirs).await?,
            position => return Ok(matches!(position, Position::Granted { .. })),
        }
    }
}

/// How often a claim finds another capacity before it is refused: the other claim may be one that is refused itself.
const CAPACITY_CHECKS: u32 = 4;
const CAPACITY_CHECK_PAUSE: Duration = Duration::from_millis(20);

/// Waits for a claim of another capacity to leave.
///
/// # Errors
/// If it is there for long.
async fn wait_for_refused(checks: &mut u32, claim: &Claim, theirs: u32) -> Result<()> {
    *checks += 1;
    if *checks >= CAPACITY_CHECKS {
        return Err(capacity_mismatch(&claim.resource, theirs, claim.capacity));
    }
    tokio::time::sleep(CAPACITY_CHECK_PAUSE).await;
    Ok(())
}

fn queue_of(claim: &Claim, children: &[String]) -> Queue {
    Queue::parse(claim.resource.kind(), children).with_any_capacity(claim.resizes)
}

/// Acquires on this session.
///
/// # Errors
/// If the server refuses, or the session ends before the claim is in the queue.
pub(crate) async fn attempt(
    session: &Arc<KeptSession>,
    parent: &str,
    access: Access,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Outcome> {
    let Enqueued { contender, token, children } = Contender::enqueue(session, parent, claim, access).await?;
    let queue = queue_of(claim, &children);
    let mut wait = Wait { session, claim, contender, queue, own_watch: None, signalled: None };
    match wait.until_granted(withdraw).await {
        Ok(Waited::Granted { followed }) => wait.hold(token, followed),
        Ok(Waited::Withdrawn) => {
            // In a task of its own: it goes on if this future is dropped.
            let removal = tokio::spawn(wait.contender.remove(Arc::clone(session)));
            match removal.await {
                Ok(Err(_)) if session.has_ended() => Ok(Outcome::PlaceLost),
                Ok(removed) => removed.map(|()| Outcome::Withdrawn),
                Err(_) => Ok(Outcome::PlaceLost),
            }
        }
        Ok(Waited::PlaceLost) => {
            // The node may still be there: its watch tells of a write by another program too.
            tokio::spawn(wait.contender.remove(Arc::clone(session)));
            Ok(Outcome::PlaceLost)
        }
        Err(error) => {
            let removal = tokio::spawn(wait.contender.remove(Arc::clone(session)));
            if error.kind() == ErrorKind::Mismatch {
                // Its node would refuse the next claims.
                let _ = removal.await;
            }
            Err(error)
        }
    }
}

enum Waited {
    Granted { followed: bool },
    Withdrawn,
    PlaceLost,
}

struct Wait<'a> {
    session: &'a Arc<KeptSession>,
    claim: &'a Claim,
    contender: Contender,
    queue: Queue,
    /// Tells when our own node is deleted. Armed before the first wait, so that a waiter whose node was deleted is never
    /// granted because its predecessor went too.
    own_watch: Option<WatchEvent>,
    /// A predecessor that announced its grant, and the version of its node then.
    signalled: Option<(String, i32)>,
}

impl Wait<'_> {
    async fn until_granted(&mut self, withdraw: &CancellationToken) -> Result<Waited> {
        let mut capacity_checks = 0;
        loop {
            let position = self.queue.position(self.contender.node());
            match &position {
                Position::Granted { followed } => return Ok(Waited::Granted { followed: *followed }),
                Position::Mismatch(theirs) => {
                    wait_for_refused(&mut capacity_checks, self.claim, *theirs).await?;
                    self.refresh().await?;
                    continue;
                }
                Position::Gone => return Ok(Waited::PlaceLost),
                _ if withdraw.is_cancelled() => return Ok(Waited::Withdrawn),
                Position::After(_) | Position::Behind(_) | Position::First => {}
            }
            let Some(watch) = self.watch(&position).await? else { continue };
            if self.own_watch.is_none() {
                let path = self.contender.path();
                let Some(own) = watch_node(self.session, &path).await? else { return Ok(Waited::PlaceLost) };
                self.own_watch = Some(own);
            }
            match self.wait(watch, withdraw).await {
                Wakeup::Event(Some(EventType::NodeDeleted)) => {
                    if let Position::After(entry) = &position {
                        self.queue.remove(&entry.name);
                    }
                    self.refresh_if_blocked().await?;
                }
                Wakeup::Event(Some(EventType::NodeDataChanged | EventType::NodeChildrenChanged)) => {
                    self.refresh().await?;
                }
                Wakeup::Event(_) | Wakeup::SessionEnded | Wakeup::OwnNodeDeleted => {
                    return Ok(Waited::PlaceLost);
                }
                // A grant that arrived at the same moment still counts.
                Wakeup::Withdrawn => self.refresh().await?,
            }
        }
    }

    /// After the deletion of the entry that blocked us, a mutex and a reader-writer lock need no other look at the queue:
    /// nothing was added before us. A semaphore looks, to see who is behind it.
    async fn refresh_if_blocked(&mut self) -> Result<()> {
        let granted = matches!(self.queue.position(self.contender.node()), Position::Granted { .. });
        if granted && self.claim.resource.kind() != Kind::Semaphore {
            return Ok(());
        }
        self.refresh().await
    }

    async fn refresh(&mut self) -> Result<()> {
        let children = self.contender.list(self.session).await?;
        self.queue = queue_of(self.claim, &children);
        Ok(())
    }

    /// Watches what blocks us. `None`: it changed meanwhile, and the queue was read again.
    async fn watch(&mut self, position: &Position) -> Result<Option<WatchEvent>> {
        match position {
            Position::After(entry) => self.watch_entry(entry, false).await,
            Position::Behind(entry) => self.watch_entry(entry, true).await,
            _ => self.watch_children().await,
        }
    }

    /// Watches another node. `announces`: we wait for its grant too, which its holder announces by writing to it.
    async fn watch_entry(&mut self, entry: &Entry, announces: bool) -> Result<Option<WatchEvent>> {
        let (client, path) = (&self.session.client, self.contender.path_of(&entry.name));
        match self.session.repeat(|| client.get_and_watch_data(&path)).await {
            Ok((_, stat, watcher)) => {
                let seen = (entry.name.clone(), stat.version);
                if announces && stat.version > 0 && self.signalled.as_ref() != Some(&seen) {
                    self.signalled = Some(seen);
                    self.refresh().await?;
                    return Ok(None);
                }
                Ok(Some(event(watcher)))
            }
            Err(DriverError::NoNode) => {
                self.queue.remove(&entry.name);
                self.refresh_if_blocked().await?;
                Ok(None)
            }
            Err(error) => Err(driver_error(&error)),
        }
    }

    /// The first waiter of a semaphore watches the list: any holder may release what is missing. Only one waiter does.
    async fn watch_children(&mut self) -> Result<Option<WatchEvent>> {
        let (client, parent) = (&self.session.client, self.contender.parent());
        let (children, watcher) = match self.session.repeat(|| client.list_and_watch_children(parent)).await {
            Ok(listed) => listed,
            Err(error) => return Err(driver_error(&error)),
        };
        self.queue = queue_of(self.claim, &children);
        let is_first = self.queue.position(self.contender.node()) == Position::First;
        Ok(is_first.then(|| event(watcher)))
    }

    async fn wait(&mut self, watch: WatchEvent, withdraw: &CancellationToken) -> Wakeup {
        let Some(own) = &mut self.own_watch else { return Wakeup::OwnNodeDeleted };
        tokio::select! {
            biased;
            // First: if both nodes are gone, ours decides. Only an operator writes to it.
            _ = own => Wakeup::OwnNodeDeleted,
            () = self.session.wait_for_end() => Wakeup::SessionEnded,
            event = watch => Wakeup::Event(event),
            () = withdraw.cancelled() => Wakeup::Withdrawn,
        }
    }

    /// The grant, and what goes on behind it.
    fn hold(self, token: FencingToken, followed: bool) -> Result<Outcome> {
        let own = OwnNode { lock_id: self.claim.lock_id.clone(), attempt: self.contender.attempt() };
        let hold = match self.session.grant(&own.lock_id, self.contender, token) {
            Ok(hold) => hold,
            Err((contender, _)) => {
                tokio::spawn(contender.remove(Arc::clone(self.session)));
                return Ok(Outcome::PlaceLost);
            }
        };
        // The next waiter may wait for the announcement of our grant.
        let announce = followed && self.claim.resource.kind() == Kind::Semaphore && self.claim.capacity > 1;
        tokio::spawn(own.guard(Arc::clone(self.session), self.own_watch, announce));
        Ok(Outcome::Granted(hold))
    }
}

/// Watches a node; `None` if it does not exist.
async fn watch_node(session: &KeptSession, path: &str) -> Result<Option<WatchEvent>> {
    match session.repeat(|| session.client.get_and_watch_data(path)).await {
        Ok((_, _, watcher)) => Ok(Some(event(watcher))),
        Err(DriverError::NoNode) => Ok(None),
        Err(error) => Err(driver_error(&error)),
    }
}

/// The node of a hold.
struct OwnNode {
    lock_id: LockId,
    attempt: u64,
}

impl OwnNode {
    /// Announces the grant, and ends the hold as soon as another client deletes its node.
    ///
    /// Its future lives as long as the hold, and a process may have many. So what is awaited for a short time only is boxed.
    async fn guard(self, mut session: Arc<KeptSession>, mut watch: Option<WatchEvent>, announce: bool) {
        if announce {
            Box::pin(self.announce(&session)).await;
        }
        if watch.is_none() {
            let (weak, ended) = (Arc::downgrade(&session), session.ended_token());
            drop(session);
            let is_grown = Box::pin(async move {
                tokio::select! {
                    () = tokio::time::sleep(WATCHED_FROM) => true,
                    () = ended.cancelled() => false,
                }
            });
            let Some(again) = is_grown.await.then(|| weak.upgrade()).flatten() else { return };
            session = again;
        }
        loop {
            let deleted = match watch.take() {
                None => match Box::pin(self.watch(&session)).await {
                    Some(Ok(Some(armed))) => {
                        watch = Some(armed);
                        continue;
                    }
                    Some(Ok(None)) => true,
                    Some(Err(_)) | None => return,
                },
                Some(armed) => {
                    // Between events nothing here keeps the session open.
                    let weak = Arc::downgrade(&session);
                    let ended = session.ended_token();
                    drop(session);
                    let event = tokio::select! {
                        event = armed => event,
                        () = ended.cancelled() => return,
                    };
                    let Some(again) = weak.upgrade() else { return };
                    session = again;
                    match event {
                        Some(EventType::NodeDeleted) => true,
                        Some(EventType::NodeDataChanged) => false,
                        _ => return,
                    }
                }
            };
            if deleted {
                return session.deleted_by_another(&self.lock_id, self.attempt);
            }
        }
    }

    async fn announce(&self, session: &KeptSession) {
        let Some(path) = session.path_of_hold(&self.lock_id, self.attempt) else { return };
        let write = || session.client.set_data(&path, self.lock_id.as_str().as_bytes(), None);
        if let Err(error) = session.repeat(write).await
            && Failure::of(&error) == Failure::Refused
            && error != DriverError::NoNode
        {
            // Its successor would wait until the release.
            tracing::warn!("a grant could not be announced on {path}: {error}");
        }
    }

    /// Watches the node. `None`: it is not held any more.
    async fn watch(&self, session: &KeptSession) -> Option<Result<Option<WatchEvent>>> {
        let path = session.path_of_hold(&self.lock_id, self.attempt)?;
        Some(watch_node(session, &path).await)
    }
}
