//! The batcher: one for acquire and one for release. A lone request is sent at once by its caller's task. Once as many
//! requests are in flight as the store wants, further items are queued and sent together as the next batch.
//!
//! A store future is never dropped before it completes, even if its caller is cancelled: the background task drives it
//! to completion and undoes a result that no caller awaits. A request without an answer blocks no batch while another
//! slot is free, and frees its own slot early enough for the items behind it to be served before they time out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::answer::{self, Answer};
use super::command_channel::{Command, CommandChannel};
use super::pending::Pending;
use super::request::{LoneRequest, Submission, drive, gather, send_pending};
use super::store_call::StoreOperation;
use crate::error::{Error, Result};
use crate::store::Capabilities;

pub(crate) struct Batcher<O: StoreOperation> {
    pub(super) store: Arc<O::Store>,
    pub(super) commands: Arc<CommandChannel>,
    max_batch: usize,
    /// How long a caller waits for the answer to a request that the background task drives.
    pub(super) timeout: Duration,
    /// How many items this batcher has, in flight and pending, and how many that of the other verb has.
    loads: [Arc<AtomicUsize>; 2],
    state: Mutex<BatcherState<O>>,
}

/// A batch takes this part of the items of both verbs. So half of the tasks acquire while the other half releases, and neither waits
/// for a batch of the other half, however far away the store is.
const SHARES: usize = 2;
/// The smallest share. As long as batches are so small, several of one verb may be in flight.
const SMALLEST_SHARE: usize = 16;

struct BatcherState<O: StoreOperation> {
    /// One for each request that may be in flight.
    slots: Box<[RequestSlot<O>]>,
    /// Set when there are more items than slots, until for a while there were no more than half as many. While set, few
    /// requests are in flight: each carries a large batch, which costs the store less than many small requests.
    batching: bool,
    /// How many items there were at most a moment ago: it falls by an eighth with each request that completes. Tasks that were
    /// answered together have no item until they ask again, so a single count says little, and to begin and end batches again
    /// and again is worse than either way.
    recent_items: usize,
    /// How many requests may be in flight while batching, if their batches are small.
    max_batches: usize,
    /// A share is larger than [`SMALLEST_SHARE`]: batches are sent one at a time. Set as soon as one is taken, and decided anew when
    /// one has ended, because only then its tasks are counted.
    large_batches: bool,
    /// Items that wait for a slot. Not empty only while requests are in flight, all of them driven by the background
    /// task.
    pending: Pending<O>,
    /// The number of the last request.
    last_number: u64,
    /// Requests up to this number no longer delay a batch: each was answered, has stalled, or a later one was answered.
    passed: u64,
}

enum RequestSlot<O: StoreOperation> {
    Free,
    /// A lone request that its caller's task drives.
    Lone {
        number: u64,
        request: Arc<LoneRequest<O>>,
    },
    /// A request with this many items that the background task drives or is about to send.
    Driven {
        number: u64,
        items: usize,
    },
}

impl<O: StoreOperation> RequestSlot<O> {
    fn is_free(&self) -> bool {
        matches!(self, RequestSlot::Free)
    }

    /// The number of the request, or zero if the slot is free.
    fn number(&self) -> u64 {
        match self {
            RequestSlot::Free => 0,
            RequestSlot::Lone { number, .. } | RequestSlot::Driven { number, .. } => *number,
        }
    }

    /// How many items are in flight or pending.
    fn items(&self) -> usize {
        match self {
            RequestSlot::Free => 0,
            RequestSlot::Lone { .. } => 1,
            RequestSlot::Driven { items, .. } => *items,
        }
    }

    /// Marks a lone request as driven by the background task, and returns it.
    fn take_over(&mut self) -> Option<Arc<LoneRequest<O>>> {
        let RequestSlot::Lone { number, request } = self else { return None };
        let request = Arc::clone(request);
        *self = RequestSlot::Driven { number: *number, items: 1 };
        Some(request)
    }
}

impl<O: StoreOperation> BatcherState<O> {
    /// The index of a slot for another request, if one may be sent now.
    fn free_slot(&self) -> Option<usize> {
        let free = self.slots.iter().position(RequestSlot::is_free)?;
        if !self.batching {
            return Some(free);
        }
        let in_flight = self.slots.iter().filter(|slot| slot.number() > self.passed).count();
        let most = if self.large_batches { 1 } else { self.max_batches };
        (in_flight < most).then_some(free)
    }

    /// Updates `batching` after a request has completed. `items`: how many its tasks have, those of the other verb included. Tasks
    /// acquire and release by turns, so the items of one verb alone come and go with each batch.
    fn update_batching(&mut self, items: usize) {
        let slots = self.slots.len();
        self.large_batches = items > SHARES * SMALLEST_SHARE;
        self.recent_items = items.max(self.recent_items - self.recent_items.div_ceil(8));
        self.batching = items > slots || (self.batching && self.recent_items > (slots / 2).max(1));
    }

    /// How many items are in flight or pending.
    fn items(&self) -> usize {
        self.slots.iter().map(RequestSlot::items).sum::<usize>() + self.pending.len()
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// The two batchers of a store: one for attempts, one for releases.
pub(super) fn pair<A, B>(
    store: &Arc<A::Store>,
    commands: &Arc<CommandChannel>,
    capabilities: &Capabilities,
    timeout: Duration,
) -> (Arc<Batcher<A>>, Arc<Batcher<B>>)
where
    A: StoreOperation,
    B: StoreOperation<Store = A::Store>,
{
    let [a, b] = [Arc::default(), Arc::default()];
    (
        Batcher::new(Arc::clone(store), Arc::clone(commands), capabilities, timeout, [&a, &b]),
        Batcher::new(Arc::clone(store), Arc::clone(commands), capabilities, timeout, [&b, &a]),
    )
}

impl<O: StoreOperation> Batcher<O> {
    fn new(
        store: Arc<O::Store>,
        commands: Arc<CommandChannel>,
        capabilities: &Capabilities,
        timeout: Duration,
        loads: [&Arc<AtomicUsize>; 2],
    ) -> Arc<Self> {
        let slots = (0..capabilities.max_in_flight.max(1)).map(|_| RequestSlot::Free).collect();
        let max_batches = capabilities.max_batches_in_flight.max(1);
        let state = BatcherState {
            slots,
            batching: false,
            recent_items: 0,
            large_batches: false,
            max_batches,
            pending: Pending::default(),
            last_number: 0,
            passed: 0,
        };
        let max_batch = capabilities.max_batch.max(1);
        let loads = loads.map(Arc::clone);
        Arc::new(Batcher { store, commands, max_batch, timeout, loads, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, BatcherState<O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an item now, or queues it for the next batch if no slot is free.
    pub(crate) fn submit(self: &Arc<Self>, item: O::Item) -> Submission<O> {
        let mut state = self.lock();
        let free = state.free_slot().filter(|_| state.pending.is_empty());
        match free {
            Some(index) if !state.batching || self.commands.is_dead() => {
                let number = state.next_number();
                let request = LoneRequest::begin(self.permit(index, number), item);
                state.slots[index] = RequestSlot::Lone { number, request: Arc::clone(&request) };
                Submission::lone(request)
            }
            _ => Submission::queued(self.enqueue(state, free, item)),
        }
    }

    /// Queues an item for the next batch.
    ///
    /// A batched reply wakes many tasks that resubmit at once. If the first of them were sent alone, the others would
    /// wait for a request that carries one item. So, with a free slot, the background task yields once and then sends
    /// everything that was queued meanwhile. It waits for no timer.
    fn enqueue(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, BatcherState<O>>,
        free: Option<usize>,
        item: O::Item,
    ) -> Answer<Result<O::Outcome>> {
        let (reply, answer) = answer::channel();
        if self.commands.is_dead() {
            return answer;
        }
        state.pending.push(item, reply);
        let gathering = free.map(|index| self.reserve(&mut state, index));
        // An item now waits for a slot, so no request may depend on its caller's task being polled: that task may be
        // the one that waits here.
        let lone: Vec<_> = state.slots.iter_mut().filter_map(RequestSlot::take_over).collect();
        drop(state);
        for request in lone {
            self.commands.send(Command::Work(Box::pin(drive(request))));
        }
        if let Some(permit) = gathering {
            self.commands.send(Command::Work(Box::pin(gather(permit))));
        }
        answer
    }

    /// Reserves a free slot for a batch. Its items count as pending until it is sent.
    fn reserve(self: &Arc<Self>, state: &mut BatcherState<O>, index: usize) -> SlotPermit<O> {
        let number = state.next_number();
        state.slots[index] = RequestSlot::Driven { number, items: 0 };
        self.permit(index, number)
    }

    fn permit(self: &Arc<Self>, index: usize, number: u64) -> SlotPermit<O> {
        SlotPermit { batcher: Arc::clone(self), id: SlotId { index, number } }
    }

    /// Frees the slot of a request that has ended or has used it for too long, and sends what is pending.
    pub(super) fn free(self: &Arc<Self>, SlotId { index, number }: SlotId) {
        let mut state = self.lock();
        if state.slots[index].number() != number {
            return;
        }
        let ended = std::mem::replace(&mut state.slots[index], RequestSlot::Free);
        state.passed = state.passed.max(ended.number());
        // Looked up before `batching` is updated: the pending items that start a batching phase do not wait for the
        // other requests in flight.
        let free = state.free_slot();
        let items = ended.items() + self.items(&state);
        state.update_batching(items);
        let free = free.or_else(|| state.free_slot());
        self.send_next(state, free);
    }

    /// Lets pending items pass a request that has not been answered in the usual time, if another slot is free.
    pub(super) fn stalled(self: &Arc<Self>, number: u64) {
        let mut state = self.lock();
        state.passed = state.passed.max(number);
        let free = state.free_slot();
        self.send_next(state, free);
    }

    /// Sends what did not fit into a batch as another one, if one more may be in flight.
    pub(super) fn send_rest(self: &Arc<Self>) {
        let state = self.lock();
        let free = state.free_slot();
        self.send_next(state, free);
    }

    /// Sends the next batch from this slot, if anything is pending.
    fn send_next(self: &Arc<Self>, mut state: MutexGuard<'_, BatcherState<O>>, free: Option<usize>) {
        if state.pending.is_empty() {
            return;
        }
        if self.commands.is_dead() {
            // No batch is driven any more, so all callers are told here. If each batch were sent as a command instead,
            // dropping it would drop its permit, which would send the next one: a recursion as deep as the queue.
            let pending = std::mem::take(&mut state.pending);
            drop(state);
            drop(pending);
            return;
        }
        let Some(index) = free else { return };
        let permit = self.reserve(&mut state, index);
        drop(state);
        self.commands.send(Command::Work(Box::pin(send_pending(permit))));
    }

    /// How many items the next batch carries at most. Tasks that are answered together ask again together. If one batch took all of them, the
    /// store would wait while their answers are processed, and they while the store works.
    fn share(&self, state: &mut BatcherState<O>) -> usize {
        if state.max_batches == 1 {
            return usize::MAX;
        }
        let share = self.items(state).div_ceil(SHARES);
        state.large_batches |= share > SMALLEST_SHARE;
        share.max(SMALLEST_SHARE)
    }

    /// How many items of either verb are in flight or pending.
    fn items(&self, state: &BatcherState<O>) -> usize {
        let [own, other] = &self.loads;
        own.store(state.items(), Ordering::Relaxed);
        state.items() + other.load(Ordering::Relaxed)
    }

    /// Queues the two halves of a batch that panicked, each to be sent alone, so that one item that the driver cannot
    /// handle does not fail the others of its batch.
    pub(super) fn split(self: &Arc<Self>, items: Vec<O::Item>, replies: Vec<Reply<O>>, error: &Error) {
        let mut state = self.lock();
        let numbers = [state.next_number(), state.next_number()];
        state.pending.push_halves(numbers, items, replies, error);
        let free = state.free_slot();
        self.send_next(state, free);
    }
}

/// A slot and the request that has it. The number tells it from a later request in the same slot.
#[derive(Clone, Copy)]
pub(super) struct SlotId {
    index: usize,
    pub(super) number: u64,
}

/// The permission to have a request in flight. Dropping it frees the slot and sends the next batch.
pub(super) struct SlotPermit<O: StoreOperation> {
    pub(super) batcher: Arc<Batcher<O>>,
    pub(super) id: SlotId,
}

impl<O: StoreOperation> SlotPermit<O> {
    /// Takes the pending items that this request carries. They are taken when the batch is sent and not before, so that
    /// an item whose caller left meanwhile is not sent.
    pub(super) fn take_batch(&self) -> (Vec<O::Item>, Vec<Reply<O>>) {
        let mut state = self.batcher.lock();
        let most = self.batcher.share(&mut state).min(self.batcher.max_batch);
        let batch = state.pending.take_batch(most, &self.batcher.commands);
        let SlotId { index, number } = self.id;
        state.slots[index] = RequestSlot::Driven { number, items: batch.0.len() };
        batch
    }
}

impl<O: StoreOperation> Drop for SlotPermit<O> {
    fn drop(&mut self) {
        self.batcher.free(self.id);
    }
}

pub(super) type Reply<O> = answer::Reply<Result<<O as StoreOperation>::Outcome>>;
