//! Items that wait for a place in a batcher, and which of them go out together.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::desk::Desk;
use super::verbs::Verb;
use crate::error::{Error, Result};

pub(super) type Reply<V> = oneshot::Sender<Result<<V as Verb>::Answer>>;

pub(super) struct Pending<V: Verb>(VecDeque<Queued<V>>);

struct Queued<V: Verb> {
    item: V::Item,
    reply: Reply<V>,
    part: Option<Part>,
}

/// A half of a batch that panicked, with the error of that. It goes out by itself.
#[derive(Clone)]
struct Part {
    number: u64,
    error: Error,
}

impl<V: Verb> Queued<V> {
    fn part(&self) -> Option<u64> {
        self.part.as_ref().map(|part| part.number)
    }
}

impl<V: Verb> Default for Pending<V> {
    fn default() -> Self {
        Pending(VecDeque::new())
    }
}

impl<V: Verb> Pending<V> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, item: V::Item, reply: Reply<V>) {
        self.0.push_back(Queued { item, reply, part: None });
    }

    /// Puts the halves of a batch that panicked before all others, under these numbers.
    pub(super) fn push_halves(
        &mut self,
        numbers: [u64; 2],
        items: Vec<V::Item>,
        replies: Vec<Reply<V>>,
        error: &Error,
    ) {
        let half = items.len() / 2;
        let parts = numbers.map(|number| Part { number, error: error.clone() });
        for (at, (item, reply)) in items.into_iter().zip(replies).enumerate().rev() {
            let part = Some(parts[usize::from(at >= half)].clone());
            self.0.push_front(Queued { item, reply, part });
        }
    }

    /// Takes what goes out together now, this much at most. Empty only if nothing is left.
    ///
    /// An item whose caller is gone is not sent. The caller posted its lock id to be forgotten, which undoes what an earlier
    /// attempt may have left. That may have been before a call was applied in which the item was and which panicked: then
    /// it is undone once more.
    pub(super) fn take_batch(&mut self, most: usize, desk: &Desk) -> (Vec<V::Item>, Vec<Reply<V>>) {
        let room = self.0.len().min(most);
        let (mut items, mut replies) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut together = None;
        while items.len() < most
            && let Some(next) = self.0.pop_front()
        {
            if next.reply.is_closed() {
                if let Some(part) = next.part {
                    V::orphaned(desk, next.item, Err(part.error));
                }
                continue;
            }
            if *together.get_or_insert(next.part()) != next.part() {
                self.0.push_front(next);
                break;
            }
            items.push(next.item);
            replies.push(next.reply);
        }
        (items, replies)
    }
}
