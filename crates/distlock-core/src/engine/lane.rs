//! Coalescing. While as many requests of one verb are on their way as the store wants, what arrives meanwhile goes out
//! together as the next one; a lone request is sent at once, by the task that makes it, without a hop over the engine's
//! task.
//!
//! A store's future is never dropped half-way, whatever the user drops: it is handed to the engine's task, which
//! drives it to its end and undoes what nobody waits for any more.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;

use super::desk::{Desk, Mail};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Attempt, Batch, Capabilities, Claim, Lease, LeaseStore, Released};

/// A verb of the lease store that is sent in batches.
pub(crate) trait Verb: Sized + Send + Sync + 'static {
    type Item: Clone + Send + Sync + 'static;
    type Answer: Send + 'static;
    const DOING: &'static str;

    fn call(store: Arc<dyn LeaseStore>, items: Vec<Self::Item>) -> BoxFuture<'static, Batch<Self::Answer>>;

    /// The same for a lone item, which needs no vector.
    fn call_one(store: Arc<dyn LeaseStore>, item: Self::Item) -> BoxFuture<'static, Batch<Self::Answer>>;

    /// How long the store keeps, at the longest, what this brings about.
    fn expiry(item: &Self::Item) -> Duration;

    /// An answer came that nobody waits for.
    fn orphaned(desk: &Desk, item: Self::Item, answer: Result<Self::Answer>);
}

#[derive(Debug)]
pub(crate) struct AcquireVerb;

impl Verb for AcquireVerb {
    type Item = Claim;
    type Answer = Attempt;
    const DOING: &'static str = "acquire";

    fn call(store: Arc<dyn LeaseStore>, items: Vec<Claim>) -> BoxFuture<'static, Batch<Attempt>> {
        Box::pin(async move { store.try_acquire(&items).await })
    }

    fn call_one(store: Arc<dyn LeaseStore>, item: Claim) -> BoxFuture<'static, Batch<Attempt>> {
        Box::pin(async move { store.try_acquire(std::slice::from_ref(&item)).await })
    }

    fn expiry(claim: &Claim) -> Duration {
        claim.lasts()
    }

    fn orphaned(desk: &Desk, claim: Claim, answer: Result<Attempt>) {
        let leaves_something = match answer {
            Ok(Attempt::Granted { .. }) => true,
            Ok(Attempt::Busy { .. }) => claim.waiting.is_some(),
            Err(error) => error.is_outcome_unknown(),
        };
        if leaves_something {
            desk.post(Mail::Withdraw(claim));
        }
    }
}

#[derive(Debug)]
pub(crate) struct ReleaseVerb;

impl Verb for ReleaseVerb {
    type Item = Lease;
    type Answer = Released;
    const DOING: &'static str = "release";

    fn call(store: Arc<dyn LeaseStore>, items: Vec<Lease>) -> BoxFuture<'static, Batch<Released>> {
        Box::pin(async move { store.release(&items).await })
    }

    fn call_one(store: Arc<dyn LeaseStore>, item: Lease) -> BoxFuture<'static, Batch<Released>> {
        Box::pin(async move { store.release(std::slice::from_ref(&item)).await })
    }

    fn expiry(lease: &Lease) -> Duration {
        lease.expiry
    }

    /// Whoever gives up a release posts the lease to the engine's task, which sees it through.
    fn orphaned(_: &Desk, _: Lease, _: Result<Released>) {}
}

type Reply<V> = oneshot::Sender<Result<<V as Verb>::Answer>>;

pub(crate) struct Lane<V: Verb> {
    store: Arc<dyn LeaseStore>,
    desk: Arc<Desk>,
    max_batch: usize,
    /// How long a batch may keep the others waiting.
    patience: Duration,
    state: Mutex<State<V>>,
}

struct State<V: Verb> {
    /// One for each request that may be under way.
    places: Box<[Place<V>]>,
    /// There were more items than places, and there are still more than half as many. Then one request at a time: it
    /// gathers large batches, which cost the store less than many small requests do.
    crowded: bool,
    /// What waits for a request to end. Not empty only while one is under way, and the engine drives all that are.
    pending: Vec<(V::Item, Reply<V>)>,
}

enum Place<V: Verb> {
    Free,
    /// A lone request, driven by its own task.
    Alone(Arc<Alone<V>>),
    /// A request that the engine's task drives, or is about to send, with so many items.
    Driven {
        items: usize,
    },
}

impl<V: Verb> Place<V> {
    fn is_free(&self) -> bool {
        matches!(self, Place::Free)
    }

    fn items(&self) -> usize {
        match self {
            Place::Free => 0,
            Place::Alone(_) => 1,
            Place::Driven { items } => *items,
        }
    }

    /// The request that its own task drives, from here on for the engine's task to drive.
    fn hand_over(&mut self) -> Option<Arc<Alone<V>>> {
        let Place::Alone(alone) = self else { return None };
        let alone = Arc::clone(alone);
        *self = Place::Driven { items: 1 };
        Some(alone)
    }
}

impl<V: Verb> State<V> {
    /// A place for one more request, if it may go out now.
    fn free_place(&self) -> Option<usize> {
        let free = self.places.iter().position(Place::is_free)?;
        (!self.crowded || self.places.iter().all(Place::is_free)).then_some(free)
    }

    /// Looks anew whether there is a crowd, when a request of so many items has just ended.
    fn count(&mut self, ended: usize) {
        let items = ended + self.places.iter().map(Place::items).sum::<usize>() + self.pending.len();
        let places = self.places.len();
        self.crowded = items > places || (self.crowded && items > (places / 2).max(1));
    }
}

impl<V: Verb> Lane<V> {
    pub(crate) fn new(
        store: Arc<dyn LeaseStore>,
        desk: Arc<Desk>,
        capabilities: &Capabilities,
        patience: Duration,
    ) -> Arc<Self> {
        let places = (0..capabilities.max_under_way.max(1)).map(|_| Place::Free).collect();
        let state = Mutex::new(State { places, crowded: false, pending: Vec::new() });
        Arc::new(Lane { store, desk, max_batch: capabilities.max_batch.max(1), patience, state })
    }

    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an item now, or with the next batch if as many requests are under way as may be.
    ///
    /// In a crowd, an answer to many lets many go on at once, and all of them ask for something next. Were the first of
    /// them sent at once, the others would wait for a request that carries one item. So those who can go on right now are
    /// gathered; that waits for no time and for nobody who is not ready.
    pub(crate) fn submit(self: &Arc<Self>, item: V::Item) -> Submission<V> {
        let mut state = self.lock();
        let Some(free) = state.free_place().filter(|_| state.pending.is_empty()) else {
            let (reply, answer) = oneshot::channel();
            state.pending.push((item, reply));
            // Now that somebody waits for a place, no request may depend on its own task being polled: that task may well
            // be the one that waits here.
            let alone: Vec<_> = state.places.iter_mut().filter_map(Place::hand_over).collect();
            drop(state);
            for alone in alone {
                self.desk.post(Mail::Work(Box::pin(drive(alone))));
            }
            return Submission(Way::Queued(answer));
        };
        let turn = Turn { lane: Arc::clone(self), place: free };
        if state.crowded && !self.desk.is_dead() {
            let (reply, answer) = oneshot::channel();
            state.pending.push((item, reply));
            // Its items are counted where they wait.
            state.places[free] = Place::Driven { items: 0 };
            drop(state);
            self.desk.post(Mail::Work(Box::pin(gather(turn))));
            return Submission(Way::Queued(answer));
        }
        let call = V::call_one(Arc::clone(&self.store), item.clone());
        let alone = Arc::new(Alone {
            progress: Mutex::new(Progress::Out { call, item, turn, driven: false }),
            waker: AtomicWaker::new(),
            driver: AtomicWaker::new(),
        });
        state.places[free] = Place::Alone(Arc::clone(&alone));
        Submission(Way::Alone(alone))
    }

    /// The request that had this place is over: sends what came meanwhile.
    fn advance(self: &Arc<Self>, place: usize) {
        let mut state = self.lock();
        let ended = std::mem::replace(&mut state.places[place], Place::Free);
        // Those who make it a crowd do not wait for the others that are under way: one of these may be stuck.
        let free = state.free_place();
        state.count(ended.items());
        if state.pending.is_empty() {
            return;
        }
        let Some(place) = free.or_else(|| state.free_place()) else { return };
        let batch = self.take_batch(&mut state, place);
        drop(state);
        let turn = Turn { lane: Arc::clone(self), place };
        self.desk.post(Mail::Work(Box::pin(run_batch(turn, batch))));
    }

    /// What goes out together now, from this place.
    fn take_batch(&self, state: &mut State<V>, place: usize) -> Vec<(V::Item, Reply<V>)> {
        let size = state.pending.len().min(self.max_batch);
        state.places[place] = Place::Driven { items: size };
        state.pending.drain(..size).collect()
    }
}

/// The right to have a request under way. Dropping it starts the next batch.
struct Turn<V: Verb> {
    lane: Arc<Lane<V>>,
    place: usize,
}

impl<V: Verb> Drop for Turn<V> {
    fn drop(&mut self) {
        self.lane.advance(self.place);
    }
}

/// Sends what has come as soon as every task that is ready has had its turn.
async fn gather<V: Verb>(turn: Turn<V>) {
    tokio::task::yield_now().await;
    let batch = turn.lane.take_batch(&mut turn.lane.lock(), turn.place);
    if batch.is_empty() {
        return;
    }
    run_batch(turn, batch).await;
}

async fn run_batch<V: Verb>(turn: Turn<V>, batch: Vec<(V::Item, Reply<V>)>) {
    let lane = Arc::clone(&turn.lane);
    let (items, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
    let mut call = V::call(Arc::clone(&lane.store), items.clone());
    let answers = tokio::time::timeout(lane.patience, &mut call).await;
    // The next batch goes out now, also when this one is stuck; its answers are worked on meanwhile.
    drop(turn);
    match answers {
        Ok(answers) => {
            for ((item, reply), answer) in items.into_iter().zip(replies).zip(spread(answers)) {
                if let Err(answer) = reply.send(answer) {
                    V::orphaned(&lane.desk, item, answer);
                }
            }
        }
        Err(_) => {
            let error = silent::<V>(lane.patience);
            for reply in replies {
                let _ = reply.send(Err(error.clone()));
            }
            adopt::<V>(&lane.desk, lane.patience, call, items);
        }
    }
}

/// Drives a call to its end though nobody waits for it. `shutdown` waits for it as long as answers usually take; the
/// engine itself, when nobody is left who uses it, as long as the store would keep what the call may have brought about.
fn adopt<V: Verb>(
    desk: &Arc<Desk>,
    patience: Duration,
    mut call: BoxFuture<'static, Batch<V::Answer>>,
    items: Vec<V::Item>,
) {
    let posted = Arc::clone(desk);
    desk.post(Mail::Work(Box::pin(async move {
        let longest = items.iter().map(V::expiry).max().unwrap_or_default();
        let undo = {
            let desk = Arc::clone(&posted);
            move |answers| {
                for (item, answer) in items.into_iter().zip(spread(answers)) {
                    V::orphaned(&desk, item, answer);
                }
            }
        };
        match tokio::time::timeout(patience, &mut call).await {
            Ok(answers) => undo(answers),
            Err(_) => posted.post(Mail::Stuck(Box::pin(async move {
                if let Ok(answers) = tokio::time::timeout(longest, call).await {
                    undo(answers);
                }
            }))),
        }
    })));
}

pub(crate) fn silent<V: Verb>(after: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {after:?}"))
        .doing(V::DOING)
        .with_unknown_outcome()
        .with_request_under_way()
        .advise("check that the store runs and can be reached from here")
}

/// One answer for each item: the error of a whole batch is everybody's, and a store that answers too little is
/// told apart from one that is down.
fn spread<T>(answers: Batch<T>) -> Box<dyn Iterator<Item = Result<T>> + Send>
where
    T: Send + 'static,
{
    let short = || Err(Error::new(ErrorKind::Internal, "the store answered fewer items than it was asked"));
    match answers {
        Ok(answers) => Box::new(answers.into_iter().chain(std::iter::repeat_with(short))),
        Err(error) => Box::new(std::iter::repeat_with(move || Err(error.clone()))),
    }
}

/// A lone request: driven by the task that made it, or by the engine's task once others wait for it.
struct Alone<V: Verb> {
    progress: Mutex<Progress<V>>,
    /// The task that made it.
    waker: AtomicWaker,
    /// The engine's task, if it drives.
    driver: AtomicWaker,
}

enum Progress<V: Verb> {
    Out {
        call: BoxFuture<'static, Batch<V::Answer>>,
        item: V::Item,
        turn: Turn<V>,
        driven: bool,
    },
    Answered {
        answer: Result<V::Answer>,
        item: V::Item,
        desk: Arc<Desk>,
    },
    /// The answer was taken, or nobody wants it.
    Over,
}

impl<V: Verb> Alone<V> {
    fn lock(&self) -> MutexGuard<'_, Progress<V>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the call, whoever drives it. Ready when there is an answer, or nobody who wants one.
    fn poll_call(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut progress = self.lock();
        let Progress::Out { call, .. } = &mut *progress else { return Poll::Ready(()) };
        let answers = std::task::ready!(call.as_mut().poll(context));
        let answer = match answers {
            Ok(mut answers) if answers.len() == 1 => answers.pop(),
            answers => spread(answers).next(),
        };
        let answer = answer.unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "no answer")));
        let Progress::Out { item, turn, .. } = std::mem::replace(&mut *progress, Progress::Over) else {
            return Poll::Ready(());
        };
        *progress = Progress::Answered { answer, item, desk: Arc::clone(&turn.lane.desk) };
        drop(progress);
        // After the lock: the next batch is begun by this.
        drop(turn);
        Poll::Ready(())
    }
}

/// The engine's task takes over. From here on the other task only looks for the answer: a call wakes one of its
/// pollers, and that must be the one that surely polls again.
async fn drive<V: Verb>(alone: Arc<Alone<V>>) {
    let driving = Driving(alone);
    if let Progress::Out { driven, .. } = &mut *driving.0.lock() {
        *driven = true;
    }
    std::future::poll_fn(|context| {
        driving.0.driver.register(context.waker());
        driving.0.poll_call(context)
    })
    .await;
}

/// Who drives a call. Dropping it, at the end or with the runtime of the engine, leaves it to the other task.
struct Driving<V: Verb>(Arc<Alone<V>>);

impl<V: Verb> Drop for Driving<V> {
    fn drop(&mut self) {
        if let Progress::Out { driven, .. } = &mut *self.0.lock() {
            *driven = false;
        }
        self.0.waker.wake();
    }
}

/// An item on its way. A future of its answer.
///
/// # Cancel safety
/// Dropping it leaves the request under way; its answer, when it comes, is undone.
pub(crate) struct Submission<V: Verb>(Way<V>);

enum Way<V: Verb> {
    Alone(Arc<Alone<V>>),
    Queued(oneshot::Receiver<Result<V::Answer>>),
}

impl<V: Verb> Future for Submission<V> {
    type Output = Result<V::Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Way::Alone(alone) => {
                // First the waker, then the look: an answer that the engine's task brings in between wakes us.
                alone.waker.register(context.waker());
                if matches!(&*alone.lock(), Progress::Out { driven: true, .. }) {
                    return Poll::Pending;
                }
                std::task::ready!(alone.poll_call(context));
                match std::mem::replace(&mut *alone.lock(), Progress::Over) {
                    Progress::Answered { answer, .. } => Poll::Ready(answer),
                    _ => Poll::Ready(Err(Error::new(ErrorKind::Internal, "polled after its answer"))),
                }
            }
            Way::Queued(answer) => Pin::new(answer).poll(context).map(|answer| {
                answer.unwrap_or_else(|_| {
                    Err(Error::new(ErrorKind::ShutDown, "the engine stopped before the store answered")
                        .with_unknown_outcome())
                })
            }),
        }
    }
}

impl<V: Verb> Drop for Submission<V> {
    fn drop(&mut self) {
        let Way::Alone(alone) = &self.0 else { return };
        let progress = std::mem::replace(&mut *alone.lock(), Progress::Over);
        match progress {
            Progress::Out { call, item, turn, .. } => {
                // The call, which would have woken it, goes another way.
                alone.driver.wake();
                let lane = Arc::clone(&turn.lane);
                drop(turn);
                adopt::<V>(&lane.desk, lane.patience, call, vec![item]);
            }
            Progress::Answered { answer, item, desk } => V::orphaned(&desk, item, answer),
            Progress::Over => {}
        }
    }
}
