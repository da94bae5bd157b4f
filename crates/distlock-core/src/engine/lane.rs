//! Coalescing. While as many requests of one verb are in flight as the store wants, what arrives meanwhile goes out
//! together as the next batch; a lone request is sent at once, by the task that makes it, without a hop over the
//! engine's task.
//!
//! A store's future is never dropped half-way, whatever the user drops: it is handed to the engine's task, which
//! drives it to its end and undoes what no caller awaits any more. A request that is not answered stops no batch that
//! has another place, and frees its own in time for those behind it to be served before they time out.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::desk::{Desk, Mail};
use super::lone::{Lone, Submission, drive};
use super::pending::{Pending, Reply};
use super::verbs::spread;
pub(crate) use super::verbs::{AcquireVerb, ReleaseVerb, Verb, silent};
use crate::error::{Error, Result};
use crate::store::{Batch, Capabilities, LeaseStore};

/// After this share of the request time-out a request counts as stalled: a crowd does not wait for it any longer.
const STALLED_AFTER: u32 = 20;
/// After this share of the request time-out a request frees its place.
const FREES_AFTER: u32 = 2;

pub(crate) struct Lane<V: Verb> {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) desk: Arc<Desk>,
    max_batch: usize,
    /// How long a caller waits for the answer to a request that the engine drives.
    pub(super) patience: Duration,
    state: Mutex<State<V>>,
}

struct State<V: Verb> {
    /// One for each request that may be in flight.
    places: Box<[Place<V>]>,
    /// There were more items than places, and there are still more than half as many. Then one request at a time: it
    /// gathers large batches, which cost the store less than many small requests do.
    crowded: bool,
    /// What waits for a place. Not empty only while a request is in flight, and the engine drives all that are.
    pending: Pending<V>,
    /// The number of the request that was sent last.
    sent: u64,
    /// No request up to this number holds up a crowd: it was answered, stalled, or overtaken by one that was sent later.
    passed: u64,
}

enum Place<V: Verb> {
    Free,
    /// A lone request, driven by its own task.
    Lone {
        number: u64,
        lone: Arc<Lone<V>>,
    },
    /// A request that the engine's task drives, or is about to send, with so many items.
    Driven {
        number: u64,
        items: usize,
    },
}

impl<V: Verb> Place<V> {
    fn is_free(&self) -> bool {
        matches!(self, Place::Free)
    }

    fn number(&self) -> u64 {
        match self {
            Place::Free => 0,
            Place::Lone { number, .. } | Place::Driven { number, .. } => *number,
        }
    }

    fn items(&self) -> usize {
        match self {
            Place::Free => 0,
            Place::Lone { .. } => 1,
            Place::Driven { items, .. } => *items,
        }
    }

    /// The request that its own task drives, from here on for the engine's task to drive.
    fn hand_over(&mut self) -> Option<Arc<Lone<V>>> {
        let Place::Lone { number, lone } = self else { return None };
        let lone = Arc::clone(lone);
        *self = Place::Driven { number: *number, items: 1 };
        Some(lone)
    }
}

impl<V: Verb> State<V> {
    /// A place for one more request, if it may go out now.
    fn free_place(&self) -> Option<usize> {
        let free = self.places.iter().position(Place::is_free)?;
        // A free place has the number zero.
        let waited_for = self.crowded && self.places.iter().any(|place| place.number() > self.passed);
        (!waited_for).then_some(free)
    }

    /// Looks anew whether there is a crowd, when a request of so many items has just ended.
    fn count(&mut self, ended: usize) {
        let items = ended + self.places.iter().map(Place::items).sum::<usize>() + self.pending.len();
        let places = self.places.len();
        self.crowded = items > places || (self.crowded && items > (places / 2).max(1));
    }

    fn next_number(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }
}

impl<V: Verb> Lane<V> {
    pub(crate) fn new(
        store: Arc<dyn LeaseStore>,
        desk: Arc<Desk>,
        capabilities: &Capabilities,
        patience: Duration,
    ) -> Arc<Self> {
        let places = (0..capabilities.max_in_flight.max(1)).map(|_| Place::Free).collect();
        let state = State { places, crowded: false, pending: Pending::default(), sent: 0, passed: 0 };
        let max_batch = capabilities.max_batch.max(1);
        Arc::new(Lane { store, desk, max_batch, patience, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an item now, or with the next batch if as many requests are in flight as may be.
    pub(crate) fn submit(self: &Arc<Self>, item: V::Item) -> Submission<V> {
        let mut state = self.lock();
        let free = state.free_place().filter(|_| state.pending.is_empty());
        match free {
            Some(place) if !state.crowded || self.desk.is_dead() => {
                let number = state.next_number();
                let lone = Lone::begin(self.turn(place, number), item);
                state.places[place] = Place::Lone { number, lone: Arc::clone(&lone) };
                Submission::lone(lone)
            }
            _ => Submission::queued(self.queue(state, free, item)),
        }
    }

    /// Leaves an item for the next batch.
    ///
    /// A batched reply wakes many tasks that submit again at once. If the first of them were sent at once, the others
    /// would wait for a request that carries one item. So a crowd with a free place yields once, and those that were
    /// ready go out together; that waits for no time.
    fn queue(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State<V>>,
        free: Option<usize>,
        item: V::Item,
    ) -> oneshot::Receiver<Result<V::Answer>> {
        let (reply, answer) = oneshot::channel();
        if self.desk.is_dead() {
            return answer;
        }
        state.pending.push(item, reply);
        let gathering = free.map(|place| {
            let number = state.next_number();
            // Its items are counted where they wait.
            state.places[place] = Place::Driven { number, items: 0 };
            self.turn(place, number)
        });
        // Now that an item waits for a place, no request may depend on its own task being polled: that task may well be
        // the one that waits here.
        let lone: Vec<_> = state.places.iter_mut().filter_map(Place::hand_over).collect();
        drop(state);
        for lone in lone {
            self.desk.post(Mail::Work(Box::pin(drive(lone))));
        }
        if let Some(turn) = gathering {
            self.desk.post(Mail::Work(Box::pin(gather(turn))));
        }
        answer
    }

    fn turn(self: &Arc<Self>, place: usize, number: u64) -> Turn<V> {
        Turn { lane: Arc::clone(self), seat: Seat { place, number } }
    }

    /// The request that had this place has ended, or kept it long enough: sends what came meanwhile.
    fn free(self: &Arc<Self>, Seat { place, number }: Seat) {
        let mut state = self.lock();
        if state.places[place].number() != number {
            return;
        }
        let ended = std::mem::replace(&mut state.places[place], Place::Free);
        state.passed = state.passed.max(ended.number());
        // Looked for before those that are here make it a crowd: they do not wait for the others that are in flight.
        let free = state.free_place();
        state.count(ended.items());
        let free = free.or_else(|| state.free_place());
        self.send(state, free);
    }

    /// A request is not answered in the usual time. If there is another place, what waits goes out there.
    fn stalled(self: &Arc<Self>, number: u64) {
        let mut state = self.lock();
        state.passed = state.passed.max(number);
        let free = state.free_place();
        self.send(state, free);
    }

    /// Sends the next batch from this place, if anything waits for one.
    fn send(self: &Arc<Self>, mut state: MutexGuard<'_, State<V>>, free: Option<usize>) {
        if state.pending.is_empty() {
            return;
        }
        if self.desk.is_dead() {
            // No batch is driven any more, so all callers are told here. If each batch were posted instead, it would be
            // dropped with its turn, and that drop would post the next one: as deep a recursion as there are batches.
            let pending = std::mem::take(&mut state.pending);
            drop(state);
            drop(pending);
            return;
        }
        let Some(place) = free else { return };
        let number = state.next_number();
        // Its items are counted where they wait.
        state.places[place] = Place::Driven { number, items: 0 };
        drop(state);
        self.desk.post(Mail::Work(Box::pin(send_pending(self.turn(place, number)))));
    }

    /// Queues the halves of a batch that panicked, each to go out by itself: items that are in one batch by chance do not
    /// fail with the one that the driver cannot stand.
    fn divide(self: &Arc<Self>, items: Vec<V::Item>, replies: Vec<Reply<V>>, error: &Error) {
        let mut state = self.lock();
        let numbers = [state.next_number(), state.next_number()];
        state.pending.push_halves(numbers, items, replies, error);
        let free = state.free_place();
        self.send(state, free);
    }
}

/// A place that a request has. The number tells it from a later request that has the same place.
#[derive(Clone, Copy)]
pub(super) struct Seat {
    place: usize,
    number: u64,
}

/// The right to have a request in flight. Dropping it starts the next batch.
pub(super) struct Turn<V: Verb> {
    pub(super) lane: Arc<Lane<V>>,
    pub(super) seat: Seat,
}

impl<V: Verb> Drop for Turn<V> {
    fn drop(&mut self) {
        self.lane.free(self.seat);
    }
}

/// Waits for the answer to a request that was sent at this moment, and lets others go past it the longer it takes.
/// `None`: there was none within the request time-out, or within a quarter of it from now on if that is later: the task
/// that sent it may not have polled it for long, and the answer may be here already.
pub(super) async fn answer_in_time<V: Verb, T>(
    lane: &Arc<Lane<V>>,
    seat: Seat,
    sent: Instant,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let mut answer = pin!(answer);
    if let Ok(answer) = timeout_at(sent + lane.patience / STALLED_AFTER, &mut answer).await {
        return Some(answer);
    }
    lane.stalled(seat.number);
    let soonest = Instant::now() + lane.patience / 4;
    if let Ok(answer) = timeout_at(soonest.max(sent + lane.patience / FREES_AFTER), &mut answer).await {
        return Some(answer);
    }
    lane.free(seat);
    timeout_at(soonest.max(sent + lane.patience), answer).await.ok()
}

/// Sends what has come as soon as every task that is ready has had its turn.
async fn gather<V: Verb>(turn: Turn<V>) {
    tokio::task::yield_now().await;
    send_pending(turn).await;
}

/// Sends what waits. It is taken when this runs and not before: a caller may leave in between, and its claim is not sent.
async fn send_pending<V: Verb>(turn: Turn<V>) {
    let (items, replies) = {
        let mut state = turn.lane.lock();
        let batch = state.pending.take_batch(turn.lane.max_batch, &turn.lane.desk);
        let Seat { place, number } = turn.seat;
        state.places[place] = Place::Driven { number, items: batch.0.len() };
        batch
    };
    if !items.is_empty() {
        run_batch(turn, items, replies).await;
    }
}

async fn run_batch<V: Verb>(turn: Turn<V>, items: Vec<V::Item>, replies: Vec<Reply<V>>) {
    let lane = Arc::clone(&turn.lane);
    let sent = Instant::now();
    let mut call = V::call(Arc::clone(&lane.store), items.clone());
    let answers = answer_in_time(&lane, turn.seat, sent, &mut call).await;
    if V::REPEATABLE
        && items.len() > 1
        && let Some(Err(error)) = &answers
        && error.is_panic()
    {
        return lane.divide(items, replies, error);
    }
    // The next batch goes out now, also when this one is stuck; its answers are worked on meanwhile.
    drop(turn);
    match answers {
        Some(answers) => {
            for ((item, reply), answer) in items.into_iter().zip(replies).zip(spread(answers)) {
                if let Err(answer) = reply.send(answer) {
                    V::orphaned(&lane.desk, item, answer);
                }
            }
        }
        None => {
            let error = silent::<V>(lane.patience);
            for reply in replies {
                let _ = reply.send(Err(error.clone()));
            }
            adopt::<V>(&lane.desk, lane.patience, call, items);
        }
    }
}

/// Drives a call to its end though no caller awaits it. `shutdown` waits for it as long as answers usually take; the
/// engine itself, when it is not used any more, as long as the store would keep what the call may have brought about.
pub(super) fn adopt<V: Verb>(
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
        match timeout(patience, &mut call).await {
            Ok(answers) => undo(answers),
            Err(_) => posted.post(Mail::Stuck(Box::pin(async move {
                if let Ok(answers) = timeout(longest, call).await {
                    undo(answers);
                }
            }))),
        }
    })));
}
