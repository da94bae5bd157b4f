//! Attempts and releases that a session store takes in batches.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::Shared;
use super::command_channel::{Command, CommandChannel};
use super::pending_releases::PendingRelease;
use super::request::Submission;
use super::sides::SessionSide;
use super::store_call::{AcquireOperation, StoreOperation, contained, no_answer};
use crate::error::Result;
use crate::resource::FencingToken;
use crate::store::{Batch, Claim, Lease, SessionHold, SessionStore};

/// Longer than a session lives that does not answer: its store ends it, and with it the call.
const LONGEST_CALL: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct SessionAttemptOperation;

/// A claim to try once.
#[derive(Clone, Debug)]
pub(super) struct SessionAttempt {
    claim: Claim,
    /// Set by a caller that left: the claim counts as a pending release until the store has answered and what it granted is
    /// released.
    abandoned: Arc<Mutex<Option<PendingRelease>>>,
}

impl SessionAttempt {
    fn take_pending(&self) -> Option<PendingRelease> {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl StoreOperation for SessionAttemptOperation {
    type Store = dyn SessionStore;
    type Item = SessionAttempt;
    type Outcome = Option<SessionHold>;
    const DOING: &'static str = AcquireOperation::DOING;
    /// A session that holds a lock is granted it again.
    const REPEATABLE: bool = false;

    fn call(
        store: Arc<dyn SessionStore>,
        items: Vec<SessionAttempt>,
    ) -> BoxFuture<'static, Batch<Option<SessionHold>>> {
        Box::pin(async move {
            let claims: Vec<Claim> = items.into_iter().map(|item| item.claim).collect();
            contained(&*store, Self::DOING, async { store.try_acquire(&claims).await }).await
        })
    }

    fn call_one(
        store: Arc<dyn SessionStore>,
        item: SessionAttempt,
    ) -> BoxFuture<'static, Batch<Option<SessionHold>>> {
        Box::pin(async move {
            let claims = std::slice::from_ref(&item.claim);
            contained(&*store, Self::DOING, async { store.try_acquire(claims).await }).await
        })
    }

    fn lifetime(_: &SessionAttempt) -> Duration {
        LONGEST_CALL
    }

    fn orphaned(commands: &CommandChannel, item: SessionAttempt, answer: Result<Option<SessionHold>>) {
        let may_be_held = match answer {
            Ok(hold) => hold.is_some(),
            // Still in flight: it is undone when its answer arrives. Until then the store knows no hold of this lock id.
            Err(error) => error.is_outcome_unknown() && !error.is_request_in_flight(),
        };
        if may_be_held {
            let pending = item.take_pending();
            commands.send(Command::Forget(Lease::of(&item.claim, FencingToken::new(0)), pending));
        }
    }
}

#[derive(Debug)]
pub(super) struct SessionReleaseOperation;

impl StoreOperation for SessionReleaseOperation {
    type Store = dyn SessionStore;
    type Item = Lease;
    type Outcome = ();
    const DOING: &'static str = "release";
    /// Releasing what is not held is no error, but a store that failed may have ended the session.
    const REPEATABLE: bool = false;

    fn call(store: Arc<dyn SessionStore>, items: Vec<Lease>) -> BoxFuture<'static, Batch<()>> {
        Box::pin(
            async move { contained(&*store, Self::DOING, async { store.release_batch(&items).await }).await },
        )
    }

    fn call_one(store: Arc<dyn SessionStore>, item: Lease) -> BoxFuture<'static, Batch<()>> {
        Box::pin(async move {
            let items = std::slice::from_ref(&item);
            contained(&*store, Self::DOING, async { store.release_batch(items).await }).await
        })
    }

    fn lifetime(_: &Lease) -> Duration {
        LONGEST_CALL
    }

    /// Nothing to undo: see [`ReleaseOperation`](super::store_call::ReleaseOperation).
    fn orphaned(_: &CommandChannel, _: Lease, _: Result<()>) {}
}

/// Makes one attempt, in a batch with those of other tasks. `None`: contended.
///
/// # Cancel safety
/// Dropping the future releases what the attempt is granted.
pub(super) async fn attempt(
    shared: &Arc<Shared>,
    side: &SessionSide,
    claim: &Claim,
    request_timeout: Duration,
) -> Result<Option<SessionHold>> {
    let item = SessionAttempt { claim: claim.clone(), abandoned: Arc::default() };
    let pending =
        PendingAttempt { shared, submission: side.attempt.submit(item.clone()), item, answered: false };
    tokio::select! {
        biased;
        answer = tokio::time::timeout(request_timeout, pending) => {
            answer.unwrap_or_else(|_| Err(no_answer::<SessionAttemptOperation>(request_timeout)))
        }
        () = shared.closing.cancelled() => Err(shared.stopped()),
    }
}

/// An attempt whose caller waits for the answer.
struct PendingAttempt<'a> {
    shared: &'a Shared,
    item: SessionAttempt,
    submission: Submission<SessionAttemptOperation>,
    answered: bool,
}

impl Future for PendingAttempt<'_> {
    type Output = Result<Option<SessionHold>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.submission).poll(context));
        self.answered = true;
        Poll::Ready(answer)
    }
}

impl Drop for PendingAttempt<'_> {
    /// Before the submission is dropped, which may send the release.
    fn drop(&mut self) {
        if !self.answered {
            let pending = self.shared.releases.begin(&self.item.claim.resource);
            *self.item.abandoned.lock().unwrap_or_else(PoisonError::into_inner) = Some(pending);
            if let Some(answer) = self.submission.take_unread() {
                SessionAttemptOperation::orphaned(&self.shared.commands, self.item.clone(), answer);
            }
        }
    }
}
