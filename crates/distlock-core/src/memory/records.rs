//! The two records as plain data: what every lease store must do in one atomic step, written down once without
//! any server in the way. Every method takes the store's `now`, and leaves the messages to send in `wakes`.

mod lock;
mod pool;

pub(super) use lock::LockRecord;
pub(super) use pool::PoolRecord;

use std::time::Duration;

use crate::clock::Moment;
use crate::resource::{FencingToken, LockId};
use crate::store::{Inbox, Wake};

/// Messages that a step leaves behind, each with its address.
pub(super) type Wakes = Vec<(Inbox, Wake)>;

/// One who holds.
#[derive(Clone, Debug)]
pub(super) struct HoldEntry {
    pub(super) lock_id: LockId,
    pub(super) weight: u32,
    pub(super) token: FencingToken,
    pub(super) acquired_at: Moment,
    pub(super) expires_at: Moment,
    /// Where the claim said it can be woken, if it did: a release does not count a wake-up of the releaser's
    /// own process as a hand-over.
    pub(super) inbox: Option<Inbox>,
}

impl HoldEntry {
    fn is_live(&self, now: Moment) -> bool {
        self.expires_at > now
    }

    /// Moves the end of the hold, never back: a request that is applied late must not shorten it.
    fn extend(&mut self, expires_at: Moment) {
        self.expires_at = self.expires_at.max(expires_at);
    }

    fn left(&self, now: Moment) -> Duration {
        self.expires_at.since(now)
    }
}

/// What a record remembers for ever, or until it is purged: the last token and when it was last of use.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenHistory {
    last: Option<FencingToken>,
    touched: Moment,
}

impl TokenHistory {
    fn new(now: Moment) -> Self {
        TokenHistory { last: None, touched: now }
    }

    fn next_token(&mut self, now: Moment) -> FencingToken {
        let token = FencingToken::after(self.last, milliseconds(now));
        self.last = Some(token);
        token
    }

    fn raise(&mut self, token: FencingToken) {
        self.last = self.last.max(Some(token));
    }

    fn touch(&mut self, moment: Moment) {
        self.touched = self.touched.max(moment);
    }

    /// Whether the record may be forgotten: unused for the whole retention time, and the clock term alone
    /// gives higher tokens already. A name that was granted more than once a millisecond has a token ahead of
    /// the clock, and must stay until the clock has passed it.
    fn is_spent(&self, now: Moment, retention: Duration) -> bool {
        self.touched.after(retention) <= now && self.last.is_none_or(|token| token.get() < milliseconds(now))
    }
}

fn milliseconds(now: Moment) -> u64 {
    now.as_nanos() / 1_000_000
}
