//! Accepting a grant: the answer to an attempt, or a message that another client's release pushed.

use std::sync::Arc;

use super::super::held::{Grant, Held, local_deadline};
use super::super::schedule::first_renewal_due;
use super::{Acquisition, AttemptOutcome, BusyAttempt, MAX_STALE_GRANTS, TICK};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::FencingToken;
use crate::store::PushedGrant;

impl Acquisition<'_> {
    /// Accepts a grant that the store made on release and pushed in a message that may be late. It counts only for the
    /// newest attempt: the answer to a later attempt is newer than a message about an earlier one. The store decided on
    /// that attempt after we sent it, and granted `after` later, which is a lower bound for the moment of the grant.
    pub(super) fn accept_pushed(&mut self, grant: PushedGrant) -> Result<Option<Arc<Held>>> {
        let newest = self.last_busy.filter(|busy| busy.number == self.attempts);
        let Some(BusyAttempt { sent, .. }) = newest.filter(|busy| busy.number == grant.attempt) else {
            return Ok(None);
        };
        let now = self.shared.clock.now();
        let deadline = local_deadline(sent.after(grant.after).min(now), grant.window);
        // With little time left, asking again is safer: the store recognises the lock id. A lease that is not renewed
        // must ask, since no renewal would prolong the window to its expiry; likewise one that is held for a minimum time.
        let needs_expiry = !self.options.extends() || !self.options.get_hold_at_least().is_zero();
        if (needs_expiry && grant.window < self.claim.expiry) || deadline.since(now) < grant.window / 2 {
            return Ok(None);
        }
        let AttemptOutcome::Acquired(held) = self.accept(grant.token, deadline)? else { return Ok(None) };
        Ok(Some(held))
    }

    pub(super) fn accept(&mut self, token: FencingToken, deadline: Moment) -> Result<AttemptOutcome> {
        let shared = self.shared;
        let now = shared.clock.now();
        if shared.closing.is_cancelled() {
            return Err(shared.stopped());
        }
        if now >= deadline {
            // The answer took longer than the lease. Asking again under the same lock id is safe.
            self.stale_grants += 1;
            if self.stale_grants > MAX_STALE_GRANTS {
                let expiry = self.claim.expiry;
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("answers take longer than the expiry of {expiry:?}"),
                )
                .advise("set a longer expiry, or find out why the store is slow"));
            }
            return Ok(AttemptOutcome::RetryAfter(TICK));
        }
        let held = Held::share(Grant {
            claim: self.claim,
            token,
            deadline,
            granted_at: now,
            options: Arc::clone(self.options),
            session: None,
            head: self.head.take(),
            own_holds: Arc::clone(&shared.own_holds),
        });
        self.may_be_stored = false;
        let due = match held.cadence() {
            Some(cadence) => first_renewal_due(now, cadence, deadline),
            None => deadline,
        };
        if shared.capabilities.push && held.options.notices_break() && held.cadence().is_some() {
            held.keep_registration(self.side.wakeups.register_holder(&held));
            self.side.wakeups.open(&self.side.store, &shared.commands);
        }
        shared.watch(due, &held);
        Ok(AttemptOutcome::Acquired(held))
    }
}
