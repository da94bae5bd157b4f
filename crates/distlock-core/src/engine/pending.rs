//! The items that wait until their batcher has a slot for the next batch.

use std::collections::VecDeque;

use super::batcher::Reply;
use super::command_channel::CommandChannel;
use super::store_call::StoreOperation;
use crate::error::Error;

/// The items that wait for a slot, in order.
pub(super) struct Pending<O: StoreOperation>(VecDeque<PendingItem<O>>);

struct PendingItem<O: StoreOperation> {
    item: O::Item,
    reply: Reply<O>,
    half: Option<BatchHalf>,
}

/// One half of a batch that panicked with this error. It is sent alone.
#[derive(Clone)]
struct BatchHalf {
    number: u64,
    error: Error,
}

impl<O: StoreOperation> PendingItem<O> {
    fn half(&self) -> Option<u64> {
        self.half.as_ref().map(|half| half.number)
    }
}

impl<O: StoreOperation> Default for Pending<O> {
    fn default() -> Self {
        Pending(VecDeque::new())
    }
}

impl<O: StoreOperation> Pending<O> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, item: O::Item, reply: Reply<O>) {
        self.0.push_back(PendingItem { item, reply, half: None });
    }

    /// Puts the two halves of a batch that panicked at the front, under these numbers.
    pub(super) fn push_halves(
        &mut self,
        numbers: [u64; 2],
        items: Vec<O::Item>,
        replies: Vec<Reply<O>>,
        error: &Error,
    ) {
        let middle = items.len() / 2;
        let halves = numbers.map(|number| BatchHalf { number, error: error.clone() });
        for (at, (item, reply)) in items.into_iter().zip(replies).enumerate().rev() {
            let half = Some(halves[usize::from(at >= middle)].clone());
            self.0.push_front(PendingItem { item, reply, half });
        }
    }

    /// Takes at most `max_batch` items that are sent together. Empty only if nothing is left.
    ///
    /// Unless it [outlives](StoreOperation::OUTLIVES_CALLER) its caller, an item whose caller left is not sent: the caller
    /// has already asked the background task to withdraw its lock id. If the item was part of a batch that panicked, that
    /// withdrawal may have run before the batch was applied, so the item is withdrawn again.
    pub(super) fn take_batch(
        &mut self,
        max_batch: usize,
        commands: &CommandChannel,
    ) -> (Vec<O::Item>, Vec<Reply<O>>) {
        let room = self.0.len().min(max_batch);
        let (mut items, mut replies) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut together = None;
        while items.len() < max_batch
            && let Some(next) = self.0.pop_front()
        {
            if next.reply.is_closed() && !O::OUTLIVES_CALLER {
                if let Some(half) = next.half {
                    O::orphaned(commands, next.item, Err(half.error));
                }
                continue;
            }
            if *together.get_or_insert(next.half()) != next.half() {
                self.0.push_front(next);
                break;
            }
            items.push(next.item);
            replies.push(next.reply);
        }
        (items, replies)
    }
}
