//! Wake-ups: one subscription for the process, open only while somebody waits, and never trusted alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::Notify;

use super::contain::contained;
use super::desk::{Desk, Mail};
use super::held::Held;
use super::telemetry;
use crate::resource::LockId;
use crate::store::{Inbox, LeaseStore, PushedGrant, Wake};

/// How long the subscription stays open after the last waiter left.
const LINGER: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// One waiter's letter box.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Notify,
    grant: Mutex<Option<PushedGrant>>,
}

impl Bell {
    fn ring(&self, grant: Option<PushedGrant>) {
        if grant.is_some() {
            *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = grant;
        }
        self.rung.notify_one();
    }

    /// Resolves when a wake-up came since the last time.
    pub(crate) async fn rung(&self) {
        self.rung.notified().await;
    }

    pub(crate) fn take_grant(&self) -> Option<PushedGrant> {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Debug)]
pub(crate) struct Wakeups {
    inbox: Inbox,
    live: AtomicBool,
    state: Mutex<State>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    bells: HashMap<LockId, Arc<Bell>>,
    /// Holders that want to hear of a forced release.
    holders: HashMap<LockId, Weak<Held>>,
    open: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.bells.is_empty() && self.holders.is_empty()
    }
}

impl Wakeups {
    pub(crate) fn new(inbox: Inbox) -> Arc<Self> {
        Arc::new(Wakeups {
            inbox,
            live: AtomicBool::new(false),
            state: Mutex::default(),
            emptied: Notify::new(),
        })
    }

    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Whether wake-ups arrive right now, as far as we know.
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hangs up a bell for a waiter; it is taken down when the result is dropped.
    pub(crate) fn enlist(self: &Arc<Self>, lock_id: &LockId) -> Enlisted {
        let bell = Arc::new(Bell::default());
        self.lock().bells.insert(lock_id.clone(), Arc::clone(&bell));
        Enlisted { wakeups: Arc::clone(self), lock_id: lock_id.clone(), bell }
    }

    /// Tells this holder when its lock is broken, as long as the result lives.
    pub(crate) fn listen_for_break(self: &Arc<Self>, held: &Arc<Held>) -> Listening {
        let lock_id = held.lease.lock_id.clone();
        self.lock().holders.insert(lock_id.clone(), Arc::downgrade(held));
        Listening { wakeups: Arc::clone(self), lock_id }
    }

    /// Opens the subscription unless it is open. When it is live, every bell rings: those who asked before must
    /// ask again, since their wake-up may have come too early.
    pub(crate) fn open(self: &Arc<Self>, store: &Arc<dyn LeaseStore>, desk: &Arc<Desk>) {
        {
            let mut state = self.lock();
            if state.open {
                return;
            }
            state.open = true;
        }
        let listener = Arc::clone(self).listen(Arc::clone(store), Arc::clone(desk));
        desk.post(Mail::Background(Box::pin(listener)));
    }

    fn dispatch(&self, wake: Wake, desk: &Desk) {
        match wake {
            Wake::Retry { lock_id } => {
                if let Some(bell) = self.lock().bells.get(&lock_id) {
                    bell.ring(None);
                }
            }
            Wake::Granted { lock_id, grant } => {
                // Nobody there: the waiter withdrew, and its release, on its way, takes the grant back.
                if let Some(bell) = self.lock().bells.get(&lock_id) {
                    bell.ring(Some(grant));
                }
            }
            Wake::Broken { lock_id } => {
                let held = self.lock().holders.get(&lock_id).and_then(Weak::upgrade);
                if let Some(held) = held {
                    held.announce_break();
                    desk.post(Mail::Renew(held));
                }
            }
            Wake::Missed => self.ring_all(),
        }
    }

    /// In the order in which they came: lock ids are numbered.
    fn ring_all(&self) {
        let state = self.lock();
        let mut bells: Vec<_> = state.bells.iter().collect();
        bells.sort_unstable_by_key(|(lock_id, _)| (lock_id.as_str().len(), *lock_id));
        for (_, bell) in bells {
            bell.ring(None);
        }
    }

    /// Closes for good if nobody has waited for a while.
    fn close_if_idle(&self) -> bool {
        let mut state = self.lock();
        if state.is_idle() {
            state.open = false;
            self.live.store(false, Ordering::SeqCst);
            return true;
        }
        false
    }

    async fn idle(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.lock().is_idle() {
                return tokio::time::sleep(LINGER).await;
            }
            emptied.await;
        }
    }

    async fn listen(self: Arc<Self>, store: Arc<dyn LeaseStore>, desk: Arc<Desk>) {
        let mut mark = LiveMark(Some(Arc::clone(&self)));
        let mut retry = FIRST_RETRY;
        loop {
            match contained(&*store, "subscribe", async { store.subscribe(&self.inbox).await }).await {
                Ok(mut stream) => {
                    retry = FIRST_RETRY;
                    self.live.store(true, Ordering::SeqCst);
                    self.ring_all();
                    loop {
                        tokio::select! {
                            biased;
                            wake = contained(&*store, "listen", async { Ok(stream.next().await) }) => match wake {
                                Ok(Some(wake)) => self.dispatch(wake, &desk),
                                Ok(None) => break,
                                Err(error) => {
                                    telemetry::failed("listen", &error);
                                    break;
                                }
                            },
                            () = self.idle() => if self.close_if_idle() {
                                mark.0 = None;
                                return;
                            },
                        }
                    }
                    // Between two subscriptions waiters poll; this rings them so that they notice.
                    self.live.store(false, Ordering::SeqCst);
                    self.ring_all();
                }
                Err(error) => telemetry::failed("subscribe", &error),
            }
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(LAST_RETRY);
            if self.close_if_idle() {
                mark.0 = None;
                return;
            }
        }
    }
}

/// If the listener is dropped with its runtime, nobody may believe that wake-ups arrive. Emptied where the
/// listener closed by itself: another one may have been opened since.
struct LiveMark(Option<Arc<Wakeups>>);

impl Drop for LiveMark {
    fn drop(&mut self) {
        if let Some(wakeups) = self.0.take() {
            wakeups.live.store(false, Ordering::SeqCst);
            wakeups.lock().open = false;
        }
    }
}

/// A bell that hangs as long as this lives.
pub(crate) struct Enlisted {
    wakeups: Arc<Wakeups>,
    lock_id: LockId,
    bell: Arc<Bell>,
}

impl Enlisted {
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        let mut state = self.wakeups.lock();
        state.bells.remove(&self.lock_id);
        if state.is_idle() {
            self.wakeups.emptied.notify_one();
        }
    }
}

/// A holder that listens for a forced release, as long as this lives.
#[derive(Debug)]
pub(crate) struct Listening {
    wakeups: Arc<Wakeups>,
    lock_id: LockId,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut state = self.wakeups.lock();
        state.holders.remove(&self.lock_id);
        if state.is_idle() {
            self.wakeups.emptied.notify_one();
        }
    }
}
