//! One session on the server, kept alive by our own heartbeats, and the holds that live with it.
//!
//! The driver keeps a session alive too, but does not tell when the server last heard of us, and its clock stops while the
//! machine is suspended. So a guard needs a deadline of our own, and three facts about the server decide how it is counted.
//!
//! * The leader ends a session that it has not heard of for the time-out. A follower tells it only twice a tick who was
//!   active, so the leader may be up to half a tick behind; and a session lasts at least two ticks, so that is at most a
//!   quarter of the time-out.
//! * A follower that is cut off from the leader, and a leader that was replaced and does not know it, still answer pings, reads
//!   and `sync`. They cannot commit. So a heartbeat is a transaction: a check of the root, which changes nothing.
//! * A new leader counts every session from the moment of its election, which is after every commit before it.
//!
//! So when a heartbeat is committed, the leader has heard of us at the earlier heartbeat that was sent a quarter of the
//! time-out before, or later. The deadline is counted from the sending of that one.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use distlock_core::store::support::reconnect::Connection;
use distlock_core::store::{LossReason, Session, SessionHold};
use distlock_core::{CancellationToken, Clock, Error, FencingToken, LockId, Moment, Result};
use zookeeper_client::{Client, Error as DriverError, StateWatcher};

use crate::contender::Contender;
use crate::error::{Failure, driver_error, session_ended};

/// Heartbeats within one time-out.
const HEARTBEATS: u32 = 8;

/// The first pause before a failed request is repeated; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// A session and its holds.
pub(crate) struct KeptSession {
    pub(crate) client: Client,
    /// The time-out that the server granted.
    pub(crate) timeout: Duration,
    clock: Arc<dyn Clock>,
    ended: CancellationToken,
    attempts: AtomicU64,
    sends_heartbeats: AtomicBool,
    /// The application's own: we cannot close it.
    is_given: bool,
    state: Mutex<State>,
}

struct State {
    /// Sent heartbeats that were committed. The first is a quarter of the time-out older than the last, or more.
    heartbeats: VecDeque<Moment>,
    deadline: Moment,
    holds: HashMap<LockId, Hold>,
}

struct Hold {
    life: Session,
    contender: Contender,
}

impl State {
    /// The hold of this attempt of a claim.
    fn hold(&self, lock_id: &LockId, attempt: u64) -> Option<&Hold> {
        self.holds.get(lock_id).filter(|hold| hold.contender.attempt() == attempt)
    }
}

impl KeptSession {
    /// Takes over a connected client: sends a heartbeat, and goes on with it.
    ///
    /// # Errors
    /// If it is not committed.
    pub(crate) async fn keep(client: Client, clock: Arc<dyn Clock>, is_given: bool) -> Result<Self> {
        let timeout = client.session_timeout();
        let sent = clock.now();
        answered(heartbeat(&client).await).map_err(|error| driver_error(&error))?;
        // Before that the driver kept it alive: it sends something at least five times within the time-out.
        let heartbeats = VecDeque::from([sent.before(timeout / 2), sent]);
        let deadline = deadline(&heartbeats, timeout);
        let state = Mutex::new(State { heartbeats, deadline, holds: HashMap::new() });
        Ok(KeptSession {
            client,
            timeout,
            clock,
            ended: CancellationToken::new(),
            attempts: AtomicU64::new(0),
            sends_heartbeats: AtomicBool::new(false),
            is_given,
            state,
        })
    }

    /// Sends heartbeats until the session ends or is dropped, and calls `after_end` then: as long as anything refers to the
    /// session, the driver keeps it open on the server. A second call does nothing.
    pub(crate) fn start_heartbeats(self: &Arc<Self>, after_end: impl FnOnce(&Arc<Self>) + Send + 'static) {
        if self.sends_heartbeats.swap(true, Ordering::SeqCst) {
            return;
        }
        let watcher = self.client.state_watcher();
        let (session, ended) = (Arc::downgrade(self), self.ended.clone());
        let interval = self.timeout / HEARTBEATS;
        tokio::spawn(async move {
            send_heartbeats(session.clone(), ended, watcher, interval).await;
            if let Some(session) = session.upgrade() {
                after_end(&session);
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the session has ended.
    pub(crate) async fn wait_for_end(&self) {
        self.ended.cancelled().await;
    }

    pub(crate) fn ended_token(&self) -> CancellationToken {
        self.ended.clone()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Ends it: every hold is lost now. The server is told as soon as the last user has dropped the session.
    pub(crate) fn end(&self, why: &'static str) {
        let holds = {
            let mut state = self.state();
            self.ended.cancel();
            std::mem::take(&mut state.holds)
        };
        for hold in holds.into_values() {
            hold.life.end(LossReason::SessionEnded(why.into()));
            self.abandon(hold.contender);
        }
    }

    /// Removes a node of a session that ended for us and may live on at the server. Ours is closed, and its nodes go with it;
    /// the application's may stay open, and its nodes with it.
    pub(crate) fn abandon(&self, contender: Contender) {
        if let (true, Ok(runtime)) = (self.is_given, tokio::runtime::Handle::try_current()) {
            runtime.spawn(contender.abandon(self.client.clone()));
        }
    }

    /// The number of an attempt, unique within the session.
    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }

    /// The reply to a request, or [`DriverError::SessionExpired`] if the session ends first.
    pub(crate) async fn reply<T>(
        &self,
        request: impl Future<Output = Result<T, DriverError>>,
    ) -> Result<T, DriverError> {
        tokio::select! {
            biased;
            reply = request => reply,
            () = self.ended.cancelled() => Err(DriverError::SessionExpired),
        }
    }

    /// The reply to a request that may be repeated: after a broken connection it is sent again until the session ends.
    pub(crate) async fn repeat<T, F>(&self, request: impl Fn() -> F) -> Result<T, DriverError>
    where
        F: Future<Output = Result<T, DriverError>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.reply(request()).await {
                Err(error) if Failure::of(&error) == Failure::Unknown => {}
                other => return other,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Registers a grant. Fails if the session ended, or may have ended, meanwhile.
    pub(crate) fn grant(
        &self,
        lock_id: &LockId,
        contender: Contender,
        token: FencingToken,
    ) -> Result<SessionHold, (Contender, Error)> {
        let mut state = self.state();
        if self.has_ended() || self.clock.now() >= state.deadline {
            return Err((contender, session_ended()));
        }
        let life = Session::until(state.deadline);
        state.holds.insert(lock_id.clone(), Hold { life: life.clone(), contender });
        Ok(SessionHold { token, session: life })
    }

    /// Takes a hold out, for its release.
    pub(crate) fn take(&self, lock_id: &LockId) -> Option<Contender> {
        self.state().holds.remove(lock_id).map(|hold| hold.contender)
    }

    /// The node of a hold, for as long as it is held.
    pub(crate) fn path_of_hold(&self, lock_id: &LockId, attempt: u64) -> Option<String> {
        self.state().hold(lock_id, attempt).map(|hold| hold.contender.path())
    }

    /// The node of a hold was deleted by another client: the guard is lost. Does nothing after a release.
    pub(crate) fn deleted_by_another(&self, lock_id: &LockId, attempt: u64) {
        let hold = {
            let mut state = self.state();
            let is_this = state.hold(lock_id, attempt).is_some();
            is_this.then(|| state.holds.remove(lock_id)).flatten()
        };
        if let Some(hold) = hold {
            hold.life.end(LossReason::NotYours);
        }
    }

    /// A heartbeat that was sent at this moment was committed. False if that came too late: guards may have been reported
    /// as lost, and never become held again.
    fn extend(&self, sent: Moment) -> bool {
        let now = self.clock.now();
        let mut state = self.state();
        if now >= state.deadline {
            return false;
        }
        state.heartbeats.push_back(sent);
        let old_enough = sent.before(self.timeout / 4);
        while state.heartbeats.get(1).is_some_and(|second| *second <= old_enough) {
            state.heartbeats.pop_front();
        }
        state.deadline = state.deadline.max(deadline(&state.heartbeats, self.timeout));
        for hold in state.holds.values() {
            hold.life.keep_until(state.deadline);
        }
        true
    }

    fn time_left(&self) -> Duration {
        self.state().deadline.since(self.clock.now())
    }
}

impl Connection for KeptSession {
    fn is_usable(&self) -> bool {
        !self.has_ended() && !self.client.state().is_terminated()
    }
}

impl Drop for KeptSession {
    fn drop(&mut self) {
        self.end("its store was dropped");
    }
}

impl fmt::Debug for KeptSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("KeptSession")
            .field("id", &self.client.session_id())
            .field("timeout", &self.timeout)
            .field("ended", &self.has_ended())
            .field("holds", &state.holds.len())
            .finish_non_exhaustive()
    }
}

/// The first heartbeat of the list is the latest that the leader certainly knows of. One per cent is for clocks that run at
/// different speeds.
fn deadline(heartbeats: &VecDeque<Moment>, timeout: Duration) -> Moment {
    let margin = timeout / 100 + Duration::from_millis(2);
    let known = heartbeats.front().copied().unwrap_or(Moment::from_nanos(0));
    known.after(timeout.saturating_sub(margin))
}

/// A transaction that changes nothing.
async fn heartbeat(client: &Client) -> Result<(), DriverError> {
    client.new_check_writer("/", None)?.commit().await?;
    Ok(())
}

/// A failed check is an answer too: the server commits failed transactions like others. Not so if it did not look at them,
/// because it is overloaded or read-only.
fn answered(reply: Result<(), DriverError>) -> Result<(), DriverError> {
    match reply {
        Err(
            DriverError::NoAuth
            | DriverError::NoNode
            | DriverError::BadVersion
            | DriverError::RuntimeInconsistent,
        ) => Ok(()),
        other => other,
    }
}

/// Between heartbeats it keeps nothing alive.
async fn send_heartbeats(
    session: Weak<KeptSession>,
    ended: CancellationToken,
    mut watcher: StateWatcher,
    interval: Duration,
) {
    let mut next = interval;
    let mut pause = FIRST_PAUSE;
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = terminated(&mut watcher) => {
                if let Some(session) = session.upgrade() {
                    session.end("the server ended it");
                }
                return;
            }
            () = tokio::time::sleep(next) => {}
        }
        let Some(session) = session.upgrade() else { return };
        let (sent, left) = (session.clock.now(), session.time_left());
        let reply = tokio::time::timeout(left, session.reply(heartbeat(&session.client))).await;
        match reply.map(answered) {
            Ok(Ok(())) if session.extend(sent) => {
                next = interval.saturating_sub(session.clock.now().since(sent));
                pause = FIRST_PAUSE;
            }
            Ok(Err(error)) if Failure::of(&error) == Failure::SessionEnded => {
                return session.end("the server ended it");
            }
            Ok(Err(_)) if !session.time_left().is_zero() => {
                next = pause;
                pause = (pause * 2).min(interval);
            }
            _ => return session.end("its heartbeat was not answered in time"),
        }
    }
}

async fn terminated(watcher: &mut StateWatcher) {
    if watcher.peek_state().is_terminated() {
        return;
    }
    while !watcher.changed().await.is_terminated() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_counted_from_a_heartbeat_that_the_leader_certainly_knows_of() {
        let at = |ms: u64| Moment::from_origin(Duration::from_millis(ms));
        let timeout = Duration::from_millis(1000);
        let known = VecDeque::from([at(5000), at(5125), at(5250)]);
        assert_eq!(deadline(&known, timeout), at(5988));
        assert_eq!(deadline(&VecDeque::new(), timeout), at(988));
    }
}
