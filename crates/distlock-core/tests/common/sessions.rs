//! A small session store in memory. Its server can end sessions, hang and panic on command.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::store::{
    Backend, Batch, Capabilities, Claim, Fairness, Finding, Holder, Lease, Query, Record, Session,
    SessionHold, SessionStore, Store,
};
use distlock_core::{
    CancellationToken, Error, ErrorKind, FencingToken, LockId, Locks, LossReason, Moment, Resource, Result,
    VirtualClock,
};
use tokio::sync::Notify;

use super::{MS, options};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Acquire,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    Before,
    After,
}

#[derive(Clone, Debug, Default)]
pub struct SessionServer(Arc<ServerState>);

#[derive(Debug, Default)]
struct ServerState {
    held: Mutex<HashMap<Resource, (LockId, Session)>>,
    freed: Notify,
    token: Mutex<u64>,
    /// The deadline of new sessions, if any.
    deadline: Mutex<Option<Moment>>,
    /// The session of all new holds, if they share one.
    shared_session: Mutex<Option<Session>>,
    refuse_release: Mutex<bool>,
    hangs: AtomicBool,
    in_callers_task: AtomicBool,
    batches: AtomicBool,
    acquisitions: AtomicUsize,
    waits: AtomicUsize,
    /// The size of each batch of attempts, and of each batch of releases.
    batch_sizes: Mutex<HashMap<Call, Vec<usize>>>,
    /// How much longer attempts take than they do otherwise.
    delay: Mutex<Duration>,
    /// How many of the next calls panic, before or after they are applied.
    panics: Mutex<HashMap<(Call, When), usize>>,
}

impl SessionServer {
    /// New sessions end at this moment unless a heartbeat keeps them.
    pub fn set_deadline(&self, deadline: Moment) {
        *self.0.deadline.lock().unwrap() = Some(deadline);
    }

    /// All new holds share this session.
    pub fn share_session(&self, session: &Session) {
        *self.0.shared_session.lock().unwrap() = Some(session.clone());
    }

    pub fn refuse_release(&self, refuse: bool) {
        *self.0.refuse_release.lock().unwrap() = refuse;
    }

    /// Sets whether calls hang.
    pub fn set_hanging(&self, hangs: bool) {
        self.0.hangs.store(hangs, Ordering::SeqCst);
    }

    /// A server whose calls run in the task of the caller.
    pub fn in_callers_task() -> Self {
        let server = SessionServer::default();
        server.0.in_callers_task.store(true, Ordering::SeqCst);
        server
    }

    /// A server that takes attempts and releases in batches.
    pub fn batching() -> Self {
        let server = SessionServer::default();
        server.0.batches.store(true, Ordering::SeqCst);
        server
    }

    /// The sizes of the batches so far.
    pub fn batch_sizes(&self, call: Call) -> Vec<usize> {
        self.0.batch_sizes.lock().unwrap().get(&call).cloned().unwrap_or_default()
    }

    /// How many claims waited after an attempt of theirs.
    pub fn waits(&self) -> usize {
        self.0.waits.load(Ordering::SeqCst)
    }

    /// Attempts in batches are answered after this long from now on.
    pub fn delay_attempts(&self, delay: Duration) {
        *self.0.delay.lock().unwrap() = delay;
    }

    /// How many acquisitions the server has received.
    pub fn acquisitions(&self) -> usize {
        self.0.acquisitions.load(Ordering::SeqCst)
    }

    /// Lets the next `times` calls panic.
    pub fn panic_next(&self, call: Call, when: When, times: usize) {
        self.0.panics.lock().unwrap().insert((call, when), times);
    }

    fn maybe_panic(&self, call: Call, when: When) {
        let mut panics = self.0.panics.lock().unwrap();
        if let Some(left) = panics.get_mut(&(call, when)).filter(|left| **left > 0) {
            *left -= 1;
            drop(panics);
            std::panic::resume_unwind(Box::new("a planned panic"));
        }
    }

    async fn maybe_hang(&self) {
        if self.0.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    pub fn is_free(&self) -> bool {
        self.0.held.lock().unwrap().is_empty()
    }

    pub fn end_all(&self) {
        for (_, (_, session)) in self.0.held.lock().unwrap().drain() {
            session.end(LossReason::SessionEnded("ended by the server".into()));
        }
        self.0.freed.notify_waiters();
    }

    pub fn locks(&self, clock: &VirtualClock) -> Locks {
        let builder = Locks::builder(Backend::session(self.clone())).clock(Arc::new(clock.clone()));
        builder.options(options()).build().unwrap()
    }

    async fn wait_for(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        loop {
            let freed = self.0.freed.notified();
            // A slow server: it decides on the grant before it answers.
            let granted = self.try_grant(claim);
            tokio::time::sleep(2 * MS).await;
            if granted.is_some() {
                self.maybe_panic(Call::Acquire, When::After);
                return Ok(granted);
            }
            if withdraw.is_cancelled() {
                return Ok(None);
            }
            tokio::select! {
                () = freed => {}
                () = withdraw.cancelled() => {}
            }
        }
    }

    fn try_grant(&self, claim: &Claim) -> Option<SessionHold> {
        let mut held = self.0.held.lock().unwrap();
        if held.contains_key(&claim.resource) {
            return None;
        }
        let shared = self.0.shared_session.lock().unwrap().clone();
        let session = shared.unwrap_or_else(|| match *self.0.deadline.lock().unwrap() {
            Some(deadline) => Session::until(deadline),
            None => Session::new(),
        });
        held.insert(claim.resource.clone(), (claim.lock_id.clone(), session.clone()));
        let mut token = self.0.token.lock().unwrap();
        *token += 1;
        Some(SessionHold { token: FencingToken::new(*token), session })
    }
}

#[async_trait]
impl Store for SessionServer {
    fn describe(&self) -> String {
        "test sessions".into()
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.semaphore = false;
        capabilities.rw_lock = false;
        capabilities.fairness = Fairness::None;
        capabilities.minimum_hold = false;
        capabilities.reasons = &[("semaphores", "this server has no counters")];
        capabilities
    }
    async fn inspect(&self, _: &Query) -> Result<Vec<Record>> {
        Ok(Vec::new())
    }
    async fn break_lock(&self, _: &Resource) -> Result<Vec<Holder>> {
        Ok(Vec::new())
    }
    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl SessionStore for SessionServer {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        self.0.acquisitions.fetch_add(1, Ordering::SeqCst);
        self.maybe_hang().await;
        self.maybe_panic(Call::Acquire, When::Before);
        self.wait_for(claim, withdraw).await
    }

    fn batches(&self, _: &Resource) -> bool {
        self.0.batches.load(Ordering::SeqCst)
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Option<SessionHold>> {
        self.0.batch_sizes.lock().unwrap().entry(Call::Acquire).or_default().push(claims.len());
        self.maybe_panic(Call::Acquire, When::Before);
        let answers = claims.iter().map(|claim| Ok(self.try_grant(claim))).collect();
        let delay = 2 * MS + *self.0.delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        Ok(answers)
    }

    async fn wait(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        self.0.waits.fetch_add(1, Ordering::SeqCst);
        self.wait_for(claim, withdraw).await
    }

    fn batches_release(&self, _: &Lease) -> bool {
        self.0.batches.load(Ordering::SeqCst)
    }

    async fn release_batch(&self, leases: &[Lease]) -> Batch<()> {
        self.0.batch_sizes.lock().unwrap().entry(Call::Release).or_default().push(leases.len());
        tokio::time::sleep(2 * MS).await;
        let mut held = self.0.held.lock().unwrap();
        for lease in leases {
            if held.get(&lease.resource).is_some_and(|(id, _)| *id == lease.lock_id) {
                held.remove(&lease.resource);
            }
        }
        drop(held);
        self.0.freed.notify_waiters();
        Ok(leases.iter().map(|_| Ok(())).collect())
    }

    fn runs_in_callers_task(&self, _: &Resource) -> bool {
        self.0.in_callers_task.load(Ordering::SeqCst)
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.maybe_hang().await;
        self.maybe_panic(Call::Release, When::Before);
        tokio::time::sleep(2 * MS).await;
        let mut held = self.0.held.lock().unwrap();
        if *self.0.refuse_release.lock().unwrap() {
            return Err(Error::new(ErrorKind::Unavailable, "the connection is closed"));
        }
        if held.get(&lease.resource).is_some_and(|(id, _)| *id == lease.lock_id) {
            held.remove(&lease.resource);
        }
        drop(held);
        self.0.freed.notify_waiters();
        self.maybe_panic(Call::Release, When::After);
        Ok(())
    }
}
