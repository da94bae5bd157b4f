//! Wake-ups: what a store tells a process that waits or holds.

use std::time::Duration;

use crate::resource::{FencingToken, LockId};

/// How long a grant lasts that a release makes for the queue head: long enough for its message to arrive, short enough that a
/// dead waiter does not delay the next one.
pub const GRANT_WINDOW: Duration = Duration::from_secs(2);

/// A message to a process that waits. It is a hint: it may be lost, late, doubled or wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Wake {
    /// This waiter should ask again.
    #[non_exhaustive]
    Retry {
        /// Which waiter.
        lock_id: LockId,
    },
    /// A release made the store grant to this waiter.
    #[non_exhaustive]
    Granted {
        /// Which waiter.
        lock_id: LockId,
        /// What it was granted.
        grant: PushedGrant,
    },
    /// The lock of this holder was broken: the holder should renew now, to find out. A store sends it from
    /// `break_lock` to the inbox of each holder's lock id ([`LockId::inbox`]), if that has one.
    #[non_exhaustive]
    Broken {
        /// Which holder.
        lock_id: LockId,
    },
    /// Messages may have been lost (the connection was re-made): every waiter should ask again.
    Missed,
}

impl Wake {
    /// This waiter should ask again.
    #[must_use]
    pub fn retry(lock_id: LockId) -> Self {
        Wake::Retry { lock_id }
    }

    /// The store granted to this waiter.
    #[must_use]
    pub fn granted(lock_id: LockId, grant: PushedGrant) -> Self {
        Wake::Granted { lock_id, grant }
    }

    /// The lock of this holder was broken.
    #[must_use]
    pub fn broken(lock_id: LockId) -> Self {
        Wake::Broken { lock_id }
    }
}

/// A grant that a release made for the queue head, without a request of that waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushedGrant {
    /// The token.
    pub token: FencingToken,
    /// [`Waiting::attempt`](super::Waiting::attempt) of the attempt that the store answered last before this grant. The waiter accepts the
    /// grant only if that is the newest attempt it sent: any other grant may have ended already.
    pub attempt: u64,
    /// By the store's clock, the time from its decision on that attempt to the grant. With it the waiter, which knows
    /// when it sent the attempt, has a safe lower bound for the moment of the grant, however late the message comes.
    pub after: Duration,
    /// How long the grant lasts unless it is renewed: at most [`GRANT_WINDOW`].
    pub window: Duration,
}

impl PushedGrant {
    /// A grant with this token that lasts for the window. Until it is [told](PushedGrant::with_attempt) which attempt
    /// it answers, no waiter accepts it.
    #[must_use]
    pub fn new(token: FencingToken, window: Duration) -> Self {
        PushedGrant { token, attempt: 0, after: Duration::ZERO, window }
    }

    /// The same with another token.
    #[must_use]
    pub fn with_token(mut self, token: FencingToken) -> Self {
        self.token = token;
        self
    }

    /// Says which attempt it answers.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u64) -> Self {
        self.attempt = attempt;
        self
    }

    /// Says how long after the decision on that attempt it was made.
    #[must_use]
    pub fn with_after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// The same with another window.
    #[must_use]
    pub fn with_window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }
}
