//! Fault injection: a store that fails on command, for tests of the engine, of the quorum and of stores.
//!
//! ```
//! use std::sync::Arc;
//! use distlock_core::faults::{Fault, FaultyStore, Verb};
//! use distlock_core::memory::MemoryStore;
//! use distlock_core::store::LeaseStore;
//!
//! # async fn example() {
//! let (store, faults) = FaultyStore::new(Arc::new(MemoryStore::new()));
//! faults.next(Verb::Release, 1, Fault::lost_reply());
//! assert!(store.release(&[]).await.unwrap_err().is_outcome_unknown());
//! assert!(store.release(&[]).await.is_ok());
//! # }
//! ```

mod hooks;

pub use hooks::{HookedStore, StoreHooks, WakeDelay, delay_wakes};

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;
use crate::store::{
    Attempt, Batch, Capabilities, Claim, Finding, Holder, Inbox, Lease, LeaseStore, Query, Record, Released,
    Renewal, Store, WakeStream,
};

/// A request to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// `try_acquire`.
    Acquire,
    /// `renew`.
    Renew,
    /// `release`.
    Release,
    /// `subscribe`.
    Subscribe,
    /// `inspect`, `break_lock` and `doctor`.
    Admin,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 5] = [Verb::Acquire, Verb::Renew, Verb::Release, Verb::Subscribe, Verb::Admin];
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pause {
    #[default]
    None,
    For(Duration),
    Forever,
}

impl Pause {
    async fn wait(self) {
        match self {
            Pause::None => {}
            Pause::For(duration) => tokio::time::sleep(duration).await,
            Pause::Forever => std::future::pending().await,
        }
    }
}

/// What happens to one call, in this order: a pause before it arrives, a failure, a pause before the reply, a lost reply.
/// The driver may panic before or after the store applies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    before: Pause,
    refused: bool,
    panics_before: bool,
    after: Pause,
    lost: bool,
    panics_after: bool,
}

impl Fault {
    /// Nothing happens: the call goes through.
    #[must_use]
    pub fn none() -> Self {
        Fault::default()
    }

    /// The call fails, and the store does not apply it.
    #[must_use]
    pub fn fail() -> Self {
        Fault { refused: true, ..Fault::default() }
    }

    /// The store applies the call, and its reply is lost: the outcome is unknown.
    #[must_use]
    pub fn lost_reply() -> Self {
        Fault { lost: true, ..Fault::default() }
    }

    /// The call never arrives and never returns.
    #[must_use]
    pub fn hang_before() -> Self {
        Fault { before: Pause::Forever, ..Fault::default() }
    }

    /// The store applies the call, which never returns.
    #[must_use]
    pub fn hang_after() -> Self {
        Fault { after: Pause::Forever, ..Fault::default() }
    }

    /// The driver panics before it sends anything.
    #[must_use]
    pub fn panic_before() -> Self {
        Fault { panics_before: true, ..Fault::default() }
    }

    /// The store applies the call, and the driver panics instead of returning.
    #[must_use]
    pub fn panic_after() -> Self {
        Fault { panics_after: true, ..Fault::default() }
    }

    /// In addition, takes this long to arrive.
    #[must_use]
    pub fn delay_before(mut self, delay: Duration) -> Self {
        self.before = Pause::For(delay);
        self
    }

    /// In addition, takes this long to return.
    #[must_use]
    pub fn delay_after(mut self, delay: Duration) -> Self {
        self.after = Pause::For(delay);
        self
    }
}

#[derive(Debug)]
struct Script {
    inner: Arc<dyn LeaseStore>,
    down: bool,
    next: HashMap<Verb, VecDeque<Fault>>,
    always: HashMap<Verb, Fault>,
    /// Ends the open streams of wake-ups when the store goes down or is replaced.
    streams: CancellationToken,
    /// Makes the open streams of wake-ups panic.
    stream_panics: CancellationToken,
}

/// Controls the faults of a [`FaultyStore`]. Clones control the same store.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Mutex<Script>>);

impl Faults {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans a fault for the next `calls` calls of a verb, after those planned before.
    pub fn next(&self, verb: Verb, calls: usize, fault: Fault) {
        self.script().next.entry(verb).or_default().extend(std::iter::repeat_n(fault, calls));
    }

    /// Plans a fault for every call of a verb, until changed, except for those that [`next`](Faults::next) plans.
    pub fn always(&self, verb: Verb, fault: Fault) {
        self.script().always.insert(verb, fault);
    }

    /// The same for all verbs.
    pub fn always_all(&self, fault: Fault) {
        self.script().always = Verb::ALL.map(|verb| (verb, fault)).into();
    }

    /// Takes the store down, or up again with its records. While it is down every call fails, calls in flight included, and
    /// streams of wake-ups end.
    pub fn set_down(&self, down: bool) {
        let mut script = self.script();
        script.down = down;
        if down {
            std::mem::take(&mut script.streams).cancel();
        }
    }

    /// Replaces the wrapped store: a server that restarted without its data. Calls in flight arrive at the new one; streams
    /// of wake-ups end.
    pub fn replace(&self, store: Arc<dyn LeaseStore>) {
        let mut script = self.script();
        script.inner = store;
        std::mem::take(&mut script.streams).cancel();
    }

    /// Makes every open stream of wake-ups panic when it is polled next.
    pub fn panic_streams(&self) {
        std::mem::take(&mut self.script().stream_panics).cancel();
    }

    /// Ends all faults that are planned or lasting.
    pub fn heal(&self) {
        let mut script = self.script();
        script.down = false;
        script.next.clear();
        script.always.clear();
    }

    fn take(&self, verb: Verb) -> Fault {
        let mut script = self.script();
        let planned = script.next.get_mut(&verb).and_then(VecDeque::pop_front);
        planned.or_else(|| script.always.get(&verb).copied()).unwrap_or_default()
    }

    fn inner(&self) -> Arc<dyn LeaseStore> {
        self.script().inner.clone()
    }

    fn is_down(&self) -> bool {
        self.script().down
    }
}

/// A panic without the message of the panic hook: tests make many.
fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("a planned panic"))
}

/// Any lease store, with faults between it and its caller.
#[derive(Clone, Debug)]
pub struct FaultyStore {
    faults: Faults,
    max_in_flight: Option<usize>,
    max_batch: Option<usize>,
}

impl FaultyStore {
    /// Wraps a store, and returns the control of its faults beside it.
    #[must_use]
    pub fn new(inner: Arc<dyn LeaseStore>) -> (FaultyStore, Faults) {
        let faults = Faults(Arc::new(Mutex::new(Script {
            inner,
            down: false,
            next: HashMap::new(),
            always: HashMap::new(),
            streams: CancellationToken::new(),
            stream_panics: CancellationToken::new(),
        })));
        (FaultyStore { faults: faults.clone(), max_in_flight: None, max_batch: None }, faults)
    }

    /// Allows so many requests of a verb in flight, whatever the wrapped store says.
    #[must_use]
    pub fn max_in_flight(self, most: usize) -> Self {
        FaultyStore { max_in_flight: Some(most), ..self }
    }

    /// Allows at most so many items in a request, whatever the wrapped store says.
    #[must_use]
    pub fn max_batch(self, most: usize) -> Self {
        FaultyStore { max_batch: Some(most), ..self }
    }

    fn failed(&self, what: &'static str) -> Error {
        Error::new(ErrorKind::Unavailable, what)
            .on(self.describe())
            .advise("end the fault that a test put there")
    }

    async fn call<T, F>(&self, verb: Verb, call: impl FnOnce(Arc<dyn LeaseStore>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let fault = self.faults.take(verb);
        if self.faults.is_down() {
            return Err(self.failed("the store is down"));
        }
        fault.before.wait().await;
        if fault.panics_before {
            panic_quietly();
        }
        if fault.refused || self.faults.is_down() {
            return Err(self.failed("the request failed before it arrived"));
        }
        let reply = call(self.faults.inner()).await;
        fault.after.wait().await;
        if fault.panics_after {
            panic_quietly();
        }
        if fault.lost || self.faults.is_down() {
            return Err(self.failed("the reply was lost").with_unknown_outcome());
        }
        reply
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn describe(&self) -> String {
        self.faults.inner().describe()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.faults.inner().capabilities();
        capabilities.max_in_flight = self.max_in_flight.unwrap_or(capabilities.max_in_flight);
        capabilities.max_batch = self.max_batch.unwrap_or(capabilities.max_batch);
        capabilities
    }

    fn use_clock(&self, clock: Arc<dyn Clock>) {
        self.faults.inner().use_clock(clock);
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.call(Verb::Admin, async |inner| inner.inspect(query).await).await
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        self.call(Verb::Admin, async |inner| inner.break_lock(resource).await).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.call(Verb::Admin, async |inner| inner.doctor().await).await
    }
}

#[async_trait]
impl LeaseStore for FaultyStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.call(Verb::Acquire, |inner| async move { inner.try_acquire(claims).await }).await
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.call(Verb::Renew, |inner| async move { inner.renew(leases).await }).await
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.call(Verb::Release, |inner| async move { inner.release(leases).await }).await
    }

    async fn subscribe(&self, inbox: &Inbox) -> Result<WakeStream> {
        let (ends, panics) = {
            let script = self.faults.script();
            (script.streams.clone(), script.stream_panics.clone())
        };
        let stream = self.call(Verb::Subscribe, |inner| async move { inner.subscribe(inbox).await }).await?;
        let ended = async move {
            tokio::select! {
                biased;
                () = ends.cancelled() => {}
                () = panics.cancelled() => panic_quietly(),
            }
        };
        Ok(Box::pin(stream.take_until(Box::pin(ended))))
    }
}
