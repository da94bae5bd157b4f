//! The two records as plain data: the atomic steps of every lease store, without a server. Every method takes the store's
//! `now`, and adds the messages to send to `wakes`.

mod lock;
mod pool;

pub(super) use lock::LockRecord;
pub(super) use pool::PoolRecord;

use std::time::Duration;

use crate::clock::Moment;
use crate::resource::{FencingToken, LockId};
use crate::store::{Inbox, Wake};

/// Messages to send after a step, each with its address.
pub(super) type Wakes = Vec<(Inbox, Wake)>;

/// One holder.
#[derive(Clone, Debug)]
pub(super) struct HoldEntry {
    pub(super) lock_id: LockId,
    pub(super) weight: u32,
    pub(super) token: FencingToken,
    pub(super) acquired_at: Moment,
    pub(super) expires_at: Moment,
    /// The inbox of the claim, if it had one. A release does not report a wake-up of its own process as a handoff.
    pub(super) inbox: Option<Inbox>,
}

impl HoldEntry {
    fn is_live(&self, now: Moment) -> bool {
        self.expires_at > now
    }

    /// Moves the expiry forward, never back: a request that is applied late must not shorten the hold.
    fn renew_until(&mut self, expires_at: Moment) {
        self.expires_at = self.expires_at.max(expires_at);
    }

    fn left(&self, now: Moment) -> Duration {
        self.expires_at.since(now)
    }
}

/// What a record keeps until it is purged: the last token, and when the record was last used.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenHistory {
    last: Option<FencingToken>,
    touched: Moment,
}

impl TokenHistory {
    fn new(now: Moment) -> Self {
        TokenHistory { last: None, touched: now }
    }

    pub(super) fn next_token(&mut self, now: Moment) -> FencingToken {
        let token = FencingToken::after(self.last, milliseconds(now));
        self.last = Some(token);
        token
    }

    pub(super) fn raise(&mut self, token: FencingToken) {
        self.last = self.last.max(Some(token));
    }

    fn touch(&mut self, moment: Moment) {
        self.touched = self.touched.max(moment);
    }

    /// Whether the record may be purged: it was unused for the whole retention time, and the clock term alone gives higher
    /// tokens. A name that was granted more than once a millisecond has a token ahead of the clock, and must stay until
    /// the clock has passed it.
    fn is_spent(&self, now: Moment, retention: Duration) -> bool {
        self.touched.after(retention) <= now && self.last.is_none_or(|token| token.get() < milliseconds(now))
    }
}

fn milliseconds(now: Moment) -> u64 {
    now.as_nanos() / 1_000_000
}
