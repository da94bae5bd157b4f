//! Wake-ups: one subscription for the process, open only while a waiter or a holder needs it. A wake-up is a hint, so a
//! lost one costs time and never liveness.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::Notify;
use tracing::Instrument;

use super::command_channel::{Command, CommandChannel};
use super::held::Held;
use super::store_call::contained;
use super::telemetry;
use crate::resource::LockId;
use crate::store::{Inbox, LeaseStore, PushedGrant, Wake};

/// How long the subscription stays open after the last waiter left.
const LINGER: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// Delivers wake-ups and pushed grants to one waiter.
#[derive(Debug, Default)]
pub(crate) struct WakeSignal {
    notify: Notify,
    grant: Mutex<Option<PushedGrant>>,
}

impl WakeSignal {
    fn wake(&self, grant: Option<PushedGrant>) {
        if grant.is_some() {
            *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = grant;
        }
        self.notify.notify_one();
    }

    /// Resolves when a wake-up arrived since the last call.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn take_grant(&self) -> Option<PushedGrant> {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Debug)]
pub(crate) struct Wakeups {
    inbox: Inbox,
    store: Arc<str>,
    live: AtomicBool,
    state: Mutex<Subscribers>,
    idle: Notify,
}

#[derive(Debug, Default)]
struct Subscribers {
    waiters: HashMap<LockId, Arc<WakeSignal>>,
    /// Holders that want to learn of a forced release.
    holders: HashMap<LockId, Weak<Held>>,
    open: bool,
}

impl Subscribers {
    fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.holders.is_empty()
    }
}

impl Wakeups {
    pub(crate) fn new(inbox: Inbox, store: Arc<str>) -> Arc<Self> {
        Arc::new(Wakeups {
            inbox,
            store,
            live: AtomicBool::new(false),
            state: Mutex::default(),
            idle: Notify::new(),
        })
    }

    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Whether the subscription is established, as far as we know.
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Subscribers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waiter for as long as the result lives.
    pub(crate) fn register(self: &Arc<Self>, lock_id: &LockId) -> WaiterRegistration {
        let signal = Arc::new(WakeSignal::default());
        self.lock().waiters.insert(lock_id.clone(), Arc::clone(&signal));
        WaiterRegistration { wakeups: Arc::clone(self), lock_id: lock_id.clone(), signal }
    }

    /// Registers a holder for news of a forced release, for as long as the result lives.
    pub(crate) fn register_holder(self: &Arc<Self>, held: &Arc<Held>) -> HolderRegistration {
        let lock_id = held.lock_id();
        self.lock().holders.insert(lock_id.clone(), Arc::downgrade(held));
        HolderRegistration { wakeups: Arc::clone(self), lock_id }
    }

    fn remove(&self, remove: impl FnOnce(&mut Subscribers)) {
        let mut subscribers = self.lock();
        remove(&mut subscribers);
        if subscribers.is_empty() {
            self.idle.notify_one();
        }
    }

    /// Opens the subscription unless it is open. Once it is live, every waiter is woken: a wake-up for an earlier attempt
    /// may have been sent before the subscription existed.
    pub(crate) fn open(self: &Arc<Self>, store: &Arc<dyn LeaseStore>, commands: &Arc<CommandChannel>) {
        {
            let mut subscribers = self.lock();
            if subscribers.open {
                return;
            }
            subscribers.open = true;
        }
        let listener = Arc::clone(self).listen(Arc::clone(store), Arc::clone(commands));
        let span = telemetry::listen_span(&self.store);
        commands.send(Command::Background(Box::pin(listener.instrument(span))));
    }

    fn dispatch(&self, wake: Wake, commands: &CommandChannel) {
        match wake {
            Wake::Retry { lock_id } => self.wake_waiter(&lock_id, None),
            // Without a waiter of this lock id the grant is ignored: the waiter withdrew, and its release, which is in
            // flight, takes the grant back.
            Wake::Granted { lock_id, grant } => self.wake_waiter(&lock_id, Some(grant)),
            Wake::Broken { lock_id } => {
                let held = self.lock().holders.get(&lock_id).and_then(Weak::upgrade);
                if let Some(held) = held {
                    held.announce_break();
                    commands.send(Command::Renew(held));
                }
            }
            Wake::Missed => self.wake_all(),
        }
    }

    fn wake_waiter(&self, lock_id: &LockId, grant: Option<PushedGrant>) {
        if let Some(signal) = self.lock().waiters.get(lock_id) {
            signal.wake(grant);
        }
    }

    /// Wakes all waiters in the order in which they came: lock ids are numbered.
    fn wake_all(&self) {
        let subscribers = self.lock();
        let mut waiters: Vec<_> = subscribers.waiters.iter().collect();
        waiters.sort_unstable_by_key(|(lock_id, _)| (lock_id.as_str().len(), *lock_id));
        for (_, signal) in waiters {
            signal.wake(None);
        }
    }

    /// Closes the subscription if it has no subscribers.
    fn close_if_idle(&self) -> bool {
        let mut subscribers = self.lock();
        if subscribers.is_empty() {
            subscribers.open = false;
            self.live.store(false, Ordering::SeqCst);
            return true;
        }
        false
    }

    /// Resolves some time after the last subscriber left.
    async fn idle_for_long(&self) {
        loop {
            let idle = self.idle.notified();
            if self.lock().is_empty() {
                return tokio::time::sleep(LINGER).await;
            }
            idle.await;
        }
    }

    async fn listen(self: Arc<Self>, store: Arc<dyn LeaseStore>, commands: Arc<CommandChannel>) {
        let mut guard = ListenerGuard(Some(Arc::clone(&self)));
        let mut retry = FIRST_RETRY;
        loop {
            match contained(&*store, "subscribe", async { store.subscribe(&self.inbox).await }).await {
                Ok(mut stream) => {
                    retry = FIRST_RETRY;
                    self.live.store(true, Ordering::SeqCst);
                    self.wake_all();
                    loop {
                        tokio::select! {
                            biased;
                            wake = contained(&*store, "listen", async { Ok(stream.next().await) }) => match wake {
                                Ok(Some(wake)) => self.dispatch(wake, &commands),
                                Ok(None) => break,
                                Err(error) => {
                                    telemetry::failed("listen", &error, &self.store);
                                    break;
                                }
                            },
                            () = self.idle_for_long() => if self.close_if_idle() {
                                guard.0 = None;
                                return;
                            },
                        }
                    }
                    // Waiters poll until the next subscription. Waking them lets them notice that.
                    self.live.store(false, Ordering::SeqCst);
                    self.wake_all();
                }
                Err(error) => telemetry::failed("subscribe", &error, &self.store),
            }
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(LAST_RETRY);
            if self.close_if_idle() {
                guard.0 = None;
                return;
            }
        }
    }
}

/// Marks the subscription as closed if the listener is dropped with its runtime. Disarmed when the listener closes by
/// itself, because another one may have been opened since.
struct ListenerGuard(Option<Arc<Wakeups>>);

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        if let Some(wakeups) = self.0.take() {
            wakeups.live.store(false, Ordering::SeqCst);
            wakeups.lock().open = false;
        }
    }
}

/// A registered waiter. Dropping it removes the registration.
pub(crate) struct WaiterRegistration {
    wakeups: Arc<Wakeups>,
    lock_id: LockId,
    signal: Arc<WakeSignal>,
}

impl WaiterRegistration {
    pub(crate) fn signal(&self) -> &WakeSignal {
        &self.signal
    }
}

impl Drop for WaiterRegistration {
    fn drop(&mut self) {
        self.wakeups.remove(|subscribers| drop(subscribers.waiters.remove(&self.lock_id)));
    }
}

/// A holder that is registered for a forced release. Dropping it removes the registration.
#[derive(Debug)]
pub(crate) struct HolderRegistration {
    wakeups: Arc<Wakeups>,
    lock_id: LockId,
}

impl Drop for HolderRegistration {
    fn drop(&mut self) {
        self.wakeups.remove(|subscribers| drop(subscribers.holders.remove(&self.lock_id)));
    }
}
