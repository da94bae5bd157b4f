//! The reply to one command that a task waits for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use redis::{RedisResult, Value};

/// Shared by the connection, which delivers the reply, and the task.
#[derive(Debug, Default)]
pub(super) struct PendingReply {
    state: Mutex<State>,
    /// Its task may poll for it.
    may_poll: AtomicBool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    New,
    /// The task sleeps.
    Waiting(Waker),
    Replied(RedisResult<Value>),
    /// The task has taken the reply, or has left.
    Done,
}

impl PendingReply {
    pub(super) fn new(may_poll: bool) -> Self {
        PendingReply { may_poll: AtomicBool::new(may_poll), state: Mutex::default() }
    }

    pub(super) fn may_poll(&self) -> bool {
        self.may_poll.load(Ordering::Relaxed)
    }

    pub(super) fn polls_no_more(&self) {
        self.may_poll.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the reply.
    pub(super) fn reply(&self, value: RedisResult<Value>) {
        let mut state = self.lock();
        if matches!(*state, State::Done) {
            return;
        }
        let before = std::mem::replace(&mut *state, State::Replied(value));
        drop(state);
        if let State::Waiting(waker) = before {
            waker.wake();
        }
    }

    pub(super) fn has_reply(&self) -> bool {
        matches!(*self.lock(), State::Replied(_))
    }

    /// Takes the reply, or registers the task that is woken by it.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<RedisResult<Value>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Done) {
            State::Replied(reply) => Poll::Ready(reply),
            State::Waiting(waker) if waker.will_wake(context.waker()) => {
                *state = State::Waiting(waker);
                Poll::Pending
            }
            _ => {
                *state = State::Waiting(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Wakes the task although there is no reply. False if it has left, or has its reply.
    pub(super) fn wake(&self) -> bool {
        match &*self.lock() {
            // It has just made the request, and looks for its turn next.
            State::New => true,
            State::Waiting(waker) => {
                waker.wake_by_ref();
                true
            }
            State::Replied(_) | State::Done => false,
        }
    }

    /// No task waits any more.
    pub(super) fn close(&self) {
        *self.lock() = State::Done;
    }
}
