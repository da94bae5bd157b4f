//! The life of a session as guards see it: its deadline on the engine's clock, and the holds that end with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::store::{LossReason, Session};
use distlock_core::{Clock, LockId, Moment};

/// Shared by a session, its heartbeat and its guards.
#[derive(Debug)]
pub(super) struct SessionLife(Mutex<LifeState>);

#[derive(Debug)]
struct LifeState {
    clock: Arc<dyn Clock>,
    /// For holds that end only with the session.
    session: Session,
    /// For holds that can also end alone.
    holds: HashMap<LockId, Session>,
}

/// When a message to the server was sent, and on which clock.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    clock: Arc<dyn Clock>,
    at: Moment,
}

impl Sent {
    pub(super) fn now(clock: Arc<dyn Clock>) -> Self {
        let at = clock.now();
        Sent { clock, at }
    }

    /// Until when a session surely lives that answered this message: less a margin for clocks that run at different speeds.
    fn deadline(&self, timeout: Duration) -> Moment {
        self.at.after(timeout.saturating_sub(timeout / 50 + Duration::from_millis(2)))
    }
}

impl SessionLife {
    /// The life of a session that answered this message.
    pub(super) fn new(sent: &Sent, timeout: Duration) -> Self {
        SessionLife(Mutex::new(LifeState {
            clock: Arc::clone(&sent.clock),
            session: Session::until(sent.deadline(timeout)),
            holds: HashMap::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, LifeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a guard depends on that ends only with the session.
    pub(super) fn session(&self) -> Session {
        self.state().session.clone()
    }

    /// Whether it ended, or its deadline passed.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state();
        state.session.ended().is_some() || state.clock.now() >= state.session.deadline()
    }

    /// Notes that a message is about to be sent.
    pub(super) fn sent(&self) -> Sent {
        Sent::now(Arc::clone(&self.state().clock))
    }

    /// How long ago the message was sent. For ever, if the clock has changed since.
    pub(super) fn age(&self, sent: &Sent) -> Duration {
        let state = self.state();
        match Arc::ptr_eq(&state.clock, &sent.clock) {
            true => state.clock.now().since(sent.at),
            false => Duration::MAX,
        }
    }

    /// The server answered the message: the deadline moves. An answer to a message of another clock does not count.
    pub(super) fn answered(&self, sent: &Sent, timeout: Duration) {
        let state = self.state();
        if !Arc::ptr_eq(&state.clock, &sent.clock) {
            return;
        }
        let deadline = sent.deadline(timeout);
        state.session.keep_until(deadline);
        for hold in state.holds.values() {
            hold.keep_until(deadline);
        }
    }

    /// A hold that ends with the session, or alone.
    pub(super) fn add_hold(&self, id: &LockId) -> Session {
        let mut state = self.state();
        let hold = Session::until(state.session.deadline());
        state.holds.insert(id.clone(), hold.clone());
        let ended = state.session.ended().cloned();
        drop(state);
        if let Some(reason) = ended {
            hold.end(reason);
        }
        hold
    }

    pub(super) fn remove_hold(&self, id: &LockId) -> Option<Session> {
        self.state().holds.remove(id)
    }

    /// Ends the session and all its holds. The first reason stays.
    pub(super) fn end(&self, reason: &LossReason) {
        let (session, holds) = {
            let mut state = self.state();
            (state.session.clone(), std::mem::take(&mut state.holds))
        };
        // Without the mutex: each of them calls its guards.
        session.end(reason.clone());
        for hold in holds.into_values() {
            hold.end(reason.clone());
        }
    }

    /// Measures on another clock from now on. To be called before the session holds anything: moments of two clocks cannot be
    /// compared, so guards keep the clock that they were made with.
    pub(super) fn use_clock(&self, clock: &Arc<dyn Clock>) {
        let mut state = self.state();
        if Arc::ptr_eq(&state.clock, clock) {
            return;
        }
        // In this order: if this thread stalls in between, the deadline is early and not late.
        let now = clock.now();
        let left = state.session.deadline().since(state.clock.now());
        let session = Session::until(now.after(left));
        if let Some(reason) = state.session.ended() {
            session.end(reason.clone());
        }
        state.session = session;
        state.clock = Arc::clone(clock);
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::{BootClock, VirtualClock};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn reason() -> LossReason {
        LossReason::SessionEnded("test".into())
    }

    #[tokio::test]
    async fn a_session_is_over_when_the_injected_clock_passes_its_deadline() {
        let clock = VirtualClock::new();
        let injected: Arc<dyn Clock> = Arc::new(clock.clone());
        let life = SessionLife::new(&Sent::now(Arc::new(BootClock)), TIMEOUT);
        life.use_clock(&injected);
        let left = life.session().deadline().since(clock.now());
        assert!(left > TIMEOUT / 2 && left < TIMEOUT, "{left:?} left after the change of the clock");
        assert!(!life.is_over());
        clock.jump(TIMEOUT);
        assert!(life.is_over());
        let sent = life.sent();
        life.answered(&sent, TIMEOUT);
        assert!(!life.is_over());
    }

    #[tokio::test]
    async fn an_answer_to_a_message_of_the_clock_before_does_not_move_the_deadline() {
        let clock = VirtualClock::new();
        let life = SessionLife::new(&Sent::now(Arc::new(BootClock)), TIMEOUT);
        let sent = life.sent();
        let injected: Arc<dyn Clock> = Arc::new(clock.clone());
        life.use_clock(&injected);
        let before = life.session().deadline();
        life.answered(&sent, 1000 * TIMEOUT);
        assert_eq!(life.session().deadline(), before);
    }

    #[test]
    fn the_end_reaches_every_hold_also_one_that_is_added_late() {
        let life = SessionLife::new(&Sent::now(Arc::new(BootClock)), TIMEOUT);
        let (kept, removed) = (LockId::from_stored("kept"), LockId::from_stored("removed"));
        let (kept, alone) = (life.add_hold(&kept), life.add_hold(&removed));
        assert!(life.remove_hold(&removed).is_some());
        life.end(&reason());
        assert_eq!((kept.ended(), alone.ended()), (Some(&reason()), None));
        assert_eq!(life.session().ended(), Some(&reason()));
        assert_eq!(life.add_hold(&removed).ended(), Some(&reason()));
        assert!(life.is_over());
    }
}
