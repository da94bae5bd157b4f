//! Stores whose holds live with a connection, a process or a server-side session.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::{Batch, Claim, Lease, Store};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, Resource};

/// Why a guard is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease could not be renewed before its local deadline, or automatic renewal is off and it ended.
    Expired {
        /// The last error of a renewal, if there was one.
        last_error: Option<String>,
    },
    /// It was held for the longest time allowed ([`Options::max_hold`](crate::Options::max_hold)), and not renewed after that.
    MaxHold,
    /// The store said that the record is not ours any more: it expired there, was broken by an operator, or
    /// the store lost it.
    NotYours,
    /// The session or connection that the hold lived with ended.
    SessionEnded(Cow<'static, str>),
    /// `shutdown` was called while the guard was held.
    ShutDown,
    /// The runtime that the locks were connected on ended, and with it the task that renews and releases.
    RuntimeGone,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::Expired { last_error: None } => f.write_str("its lease ended without a renewal"),
            LossReason::Expired { last_error: Some(error) } => {
                write!(f, "its lease could not be renewed in time: {error}")
            }
            LossReason::MaxHold => f.write_str("it was held for the longest time allowed"),
            LossReason::NotYours => {
                f.write_str("the store says that it is not ours any more (expired, broken or lost there)")
            }
            LossReason::SessionEnded(why) => write!(f, "its session ended: {why}"),
            LossReason::ShutDown => f.write_str("shutdown was called while it was held"),
            LossReason::RuntimeGone => {
                f.write_str("the runtime that the locks were connected on ended, and nothing renews the lock")
            }
        }
    }
}

/// The life of a session, shared by the store that feeds it and by every guard that depends on it.
///
/// A session without a deadline lives until the store says that it ended. One with a deadline is dead for us as
/// soon as the clock passes it: before the server gives its locks away, and without any timer having to run.
#[derive(Clone, Debug)]
pub struct Session(Arc<Life>);

/// On some stores every hold has a session of its own, so its size matters.
#[derive(Debug)]
struct Life {
    deadline: AtomicU64,
    ended: OnceLock<Box<LossReason>>,
    listeners: Mutex<Listeners>,
}

/// What to tell when the session ends. Read only under the lock: ending the session sets the reason first and takes the
/// listeners then, so a listener that binds in between sees the reason.
#[derive(Debug, Default)]
struct Listeners {
    /// The only one needs no vector.
    first: Option<Weak<dyn Dependent>>,
    more: Option<Box<MoreListeners>>,
}

#[derive(Debug, Default)]
struct MoreListeners {
    /// Made when a task waits for the end.
    signal: Option<CancellationToken>,
    dependents: Vec<Weak<dyn Dependent>>,
}

impl Listeners {
    fn add(&mut self, dependent: Weak<dyn Dependent>) {
        if self.first.as_ref().is_none_or(|first| first.strong_count() == 0) {
            self.first = Some(dependent);
            return;
        }
        let dependents = &mut self.more.get_or_insert_default().dependents;
        if dependents.len() == dependents.capacity() {
            // Before it grows: a session that lives long sees many come and go.
            dependents.retain(|other| other.strong_count() > 0);
            let room = dependents.len().max(1);
            dependents.reserve_exact(room);
        }
        dependents.push(dependent);
    }
}

/// What lives with a session and is told of its end: no task for each.
pub(crate) trait Dependent: fmt::Debug + Send + Sync {
    fn session_ended(&self, reason: &LossReason);
}

impl Session {
    /// A session that lives until it is ended.
    #[must_use]
    pub fn new() -> Self {
        Session::until(Moment::NEVER)
    }

    /// A session that is dead after this moment unless it is kept longer. The moment is on the engine's clock:
    /// the sending of the last heartbeat that was answered, plus the server's time-out, less a margin.
    #[must_use]
    pub fn until(deadline: Moment) -> Self {
        Session(Arc::new(Life {
            deadline: AtomicU64::new(deadline.as_nanos()),
            ended: OnceLock::new(),
            listeners: Mutex::default(),
        }))
    }

    /// Moves the deadline: a heartbeat was answered. Does nothing for a session that ended.
    pub fn keep_until(&self, deadline: Moment) {
        self.0.deadline.fetch_max(deadline.as_nanos(), Ordering::SeqCst);
    }

    /// Ends the session: every guard that depends on it is lost now. The first reason stays.
    pub fn end(&self, reason: LossReason) {
        let reason = self.0.ended.get_or_init(|| Box::new(reason));
        let Listeners { first, more } = std::mem::take(&mut *self.listeners());
        let MoreListeners { signal, dependents } = more.map(|more| *more).unwrap_or_default();
        if let Some(signal) = signal {
            signal.cancel();
        }
        for dependent in first.iter().chain(&dependents).filter_map(Weak::upgrade) {
            dependent.session_ended(reason);
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells this one when the session ends; at once if it has.
    pub(crate) fn bind(&self, dependent: Weak<dyn Dependent>) {
        let mut listeners = self.listeners();
        if let Some(reason) = self.ended() {
            drop(listeners);
            if let Some(dependent) = dependent.upgrade() {
                dependent.session_ended(reason);
            }
            return;
        }
        listeners.add(dependent);
    }

    /// Why it ended, if the store said so.
    #[must_use]
    pub fn ended(&self) -> Option<&LossReason> {
        self.0.ended.get().map(|reason| &**reason)
    }

    /// After this moment it is dead without further word.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        Moment::from_nanos(self.0.deadline.load(Ordering::SeqCst))
    }

    /// Resolves when the store ends the session; not when its deadline passes.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_for_end(&self) {
        let signal = {
            let mut listeners = self.listeners();
            if self.ended().is_some() {
                return;
            }
            listeners.more.get_or_insert_default().signal.get_or_insert_default().clone()
        };
        signal.cancelled().await;
    }
}

impl Default for Session {
    fn default() -> Self {
        Session::new()
    }
}

/// What a session store grants.
#[derive(Clone, Debug)]
pub struct SessionHold {
    /// Higher than the token of every earlier grant of the resource.
    pub token: FencingToken,
    /// What the hold lives with. Many holds may share one.
    pub session: Session,
}

/// A store whose server does the waiting: a blocking lock, a watch on the predecessor, a kernel lock.
#[async_trait]
pub trait SessionStore: Store {
    /// Takes what the claim asks for, waiting in the server's own way until it is granted or `withdraw` is
    /// cancelled. At least one attempt is made: with `withdraw` cancelled from the start it is exactly one.
    /// `Ok(None)`: not granted, and nothing of the claim is left. While one call waits, an engine may make an attempt for
    /// the same resource under another lock id, to learn whether it is held: `Ok(None)` is the server's word, never a guess.
    ///
    /// The engine drives this future to its end in a place of its own, also when the user drops theirs: it then
    /// cancels `withdraw` and releases what may come of it. If the runtime itself goes away, the future is
    /// dropped and must leave no more than the death of the process would.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses; nothing of the claim may be left then.
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>>;

    /// Whether the engine may drive [`acquire`](SessionStore::acquire) of this resource in the task of the caller, which saves two
    /// changes of task, and make the first poll of [`release`](SessionStore::release) there. If the caller is dropped, the
    /// background task continues the same future, so the promises of `acquire` stay.
    ///
    /// A caller may stop polling for any time without dropping its future. So this is only for a store whose calls, between two
    /// polls, keep nothing that another call waits for: no lock, no connection. They must not spawn tasks either: the runtime of
    /// the caller may end before that of the engine.
    fn runs_in_callers_task(&self, resource: &Resource) -> bool {
        let _ = resource;
        false
    }

    /// Releases what was granted under this lock id. Releasing what is not held is no error.
    ///
    /// # Errors
    /// If the store could not be told; it must then end the session instead, so that nothing stays held.
    async fn release(&self, lease: &Lease) -> Result<()>;

    /// Whether a claim for this resource is first tried by [`try_acquire`](SessionStore::try_acquire), together with the claims of
    /// other tasks. The engine asks before each attempt.
    fn batches(&self, resource: &Resource) -> bool {
        let _ = resource;
        false
    }

    /// Tries each claim once, all in one request, without waiting. `Ok(None)` for a claim: contended, and nothing of it is left.
    /// The engine then calls [`wait`](SessionStore::wait) if its caller waits. Called only for claims that the store
    /// [batches](SessionStore::batches).
    ///
    /// The future is driven to its end, by the task of a caller or by the background task, whichever needs it first. So it must not
    /// spawn tasks: the runtime of the caller may end before that of the engine. If it is dropped, the runtime has ended.
    ///
    /// # Errors
    /// As for [`acquire`](SessionStore::acquire). A claim that fails alone gets an error of its own. After an error with an unknown
    /// outcome, a panic included, the engine [releases](SessionStore::release) the lock id.
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Option<SessionHold>> {
        let _ = claims;
        Err(Error::new(ErrorKind::Internal, "this store makes no attempts in batches"))
    }

    /// As [`acquire`](SessionStore::acquire), for a claim that [`try_acquire`](SessionStore::try_acquire) has just found contended:
    /// there is no need to try it once more before the wait.
    ///
    /// # Errors
    /// As for [`acquire`](SessionStore::acquire).
    async fn wait(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        self.acquire(claim, withdraw).await
    }

    /// Whether this lease is released by [`release_batch`](SessionStore::release_batch), together with those of other tasks.
    fn batches_release(&self, lease: &Lease) -> bool {
        let _ = lease;
        false
    }

    /// Releases all these leases in one request. What is said of [`try_acquire`](SessionStore::try_acquire) about tasks applies here
    /// too.
    ///
    /// # Errors
    /// As for [`release`](SessionStore::release).
    async fn release_batch(&self, leases: &[Lease]) -> Batch<()> {
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            answers.push(self.release(lease).await);
        }
        Ok(answers)
    }

    /// Ends what was granted under this lock id before its minimum hold time has passed: the lock stays held for the rest of
    /// it, by a record. Stores with [`minimum_hold`](crate::store::Capabilities::minimum_hold) implement it. One that says so and
    /// does not keeps the lock until its session ends: a release would be too early.
    ///
    /// # Errors
    /// As for [`release`](SessionStore::release).
    async fn leave(&self, lease: &Lease) -> Result<()> {
        let _ = lease;
        Err(self.capabilities().unsupported("minimum hold times"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::FutureExt;

    use super::*;

    #[derive(Debug, Default)]
    struct Told(AtomicUsize);

    impl Dependent for Told {
        fn session_ended(&self, _: &LossReason) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn bound(session: &Session) -> Arc<Told> {
        let told = Arc::new(Told::default());
        let weak: Weak<Told> = Arc::downgrade(&told);
        session.bind(weak);
        told
    }

    #[tokio::test]
    async fn everybody_is_told_once_also_who_comes_after_the_end() {
        let session = Session::new();
        let (first, second) = (bound(&session), bound(&session));
        drop(bound(&session));
        assert!(session.wait_for_end().now_or_never().is_none());
        session.end(LossReason::NotYours);
        session.end(LossReason::ShutDown);
        let late = bound(&session);
        for told in [first, second, late] {
            assert_eq!(told.0.load(Ordering::SeqCst), 1);
        }
        assert_eq!(session.ended(), Some(&LossReason::NotYours));
        assert!(session.wait_for_end().now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_waits_for_the_end_hears_of_it() {
        let session = Session::new();
        let waiter = tokio::spawn({
            let session = session.clone();
            async move { session.wait_for_end().await }
        });
        tokio::task::yield_now().await;
        session.end(LossReason::NotYours);
        waiter.await.unwrap();
    }

    #[test]
    fn a_session_that_outlives_its_locks_does_not_remember_them() {
        let session = Session::new();
        for _ in 0..100 {
            drop(bound(&session));
        }
        assert!(session.listeners().more.is_none(), "one at a time needs no vector");
        let kept = bound(&session);
        for _ in 0..10_000 {
            drop(bound(&session));
        }
        let remembered = session.listeners().more.as_ref().map_or(0, |more| more.dependents.capacity());
        assert!(remembered < 10, "{remembered}");
        session.end(LossReason::NotYours);
        assert_eq!(kept.0.load(Ordering::SeqCst), 1);
    }
}
