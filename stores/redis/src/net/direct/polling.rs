//! Looking at the socket for a reply instead of sleeping: see [`busy_poll`](crate::net::busy_poll).
//!
//! One task polls at a time, the one whose request is the oldest: its reply is the next one. It reads until it has its own reply, wakes
//! the task of the then oldest request, which polls in its place, and goes on. So each reply costs one wake-up, of the task that
//! needs it, in the thread that runs already. Requests that were made meanwhile are written together: half of those in flight, or all that
//! there are when the server has nothing else to do.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::{RedisResult, Value};

use super::pending_reply::PendingReply;
use super::reader::Reader;
use super::{DirectConnection, InFlight, Request, Writer};
use crate::net::busy_poll::Looking;

/// The pauses of the processor between two looks at the socket, which cost the kernel more than a reply is early by.
const LOOK_EVERY: u32 = 30;
/// So many requests are written together at the most: half of those in flight, so that the server works on the other half meanwhile.
const WRITTEN_TOGETHER: usize = 8;
/// How often it is looked whether a task that should poll does so. It does not if its thread is busy with something else.
pub(super) const WATCH_EVERY: Duration = Duration::from_millis(5);

/// A task that waits for a reply, and may have to poll for it.
pub(super) struct Turn<'a> {
    connection: &'a DirectConnection,
    reply: Arc<PendingReply>,
    sent: u64,
    /// Since when it polls.
    since: Option<u64>,
    has_ended: bool,
}

/// What the task does next.
pub(super) enum Step {
    Replied(RedisResult<Value>),
    /// Other tasks of the thread come first.
    Yield,
}

enum Looked {
    Replied,
    Yield,
    GaveUp,
}

impl<'a> Turn<'a> {
    pub(super) fn new(connection: &'a DirectConnection, reply: Arc<PendingReply>) -> Self {
        let sent = connection.busy_poll.now();
        Turn { connection, reply, sent, since: None, has_ended: false }
    }

    pub(super) fn step(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        let connection = self.connection;
        loop {
            if let Poll::Ready(reply) = self.reply.poll(context) {
                self.end();
                return Poll::Ready(Step::Replied(reply));
            }
            if !self.reply.may_poll() || !connection.takes_turn(&self.reply, self.sent) {
                return Poll::Pending;
            }
            let since = *self.since.get_or_insert_with(|| connection.busy_poll.now());
            match connection.look(&self.reply, since) {
                Looked::Replied => {}
                Looked::Yield => return Poll::Ready(Step::Yield),
                Looked::GaveUp => {
                    self.reply.polls_no_more();
                    connection.pass_turn(&self.reply);
                }
            }
        }
    }

    fn end(&mut self) {
        self.has_ended = true;
        let now = self.connection.busy_poll.now();
        self.connection.busy_poll.replied(self.since.unwrap_or(self.sent), now);
        self.connection.pass_turn(&self.reply);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.reply.close();
            self.connection.pass_turn(&self.reply);
        }
    }
}

impl DirectConnection {
    /// Whether a request is left to the task that polls, for it to write. `in_flight`: how many requests are.
    pub(super) fn leaves_to_poller(&self, writer: &mut Writer, in_flight: usize) -> bool {
        self.begin_watch();
        writer.left += 1;
        writer.left < (in_flight / 2).min(WRITTEN_TOGETHER)
    }

    /// Whether the task of this request polls now. If the turn is another's, that one is woken.
    fn takes_turn(&self, reply: &Arc<PendingReply>, now: u64) -> bool {
        let mut in_flight = self.in_flight();
        match &in_flight.poller {
            Some(poller) => return Arc::ptr_eq(poller, reply),
            None if !self.busy_poll.allows(now, in_flight.requests.len()) => return false,
            None => {}
        }
        let Some(Request::Command(first)) = in_flight.requests.front() else { return false };
        let first = Arc::clone(first);
        let is_ours = Arc::ptr_eq(&first, reply);
        if is_ours || first.may_poll() {
            in_flight.poller = Some(Arc::clone(&first));
            drop(in_flight);
            if !is_ours && !first.wake() {
                self.pass_turn(&first);
            }
        }
        is_ours
    }

    /// As if a task had made a request now.
    #[cfg(test)]
    pub(super) fn takes_turn_for_test(&self) {
        self.takes_turn(&Arc::new(PendingReply::new(true)), self.busy_poll.now());
    }

    /// The task of this request polls no more: the task of the oldest one does.
    fn pass_turn(&self, reply: &Arc<PendingReply>) {
        let mut from = Arc::clone(reply);
        loop {
            let mut in_flight = self.in_flight();
            if !in_flight.is_poller(&from) {
                return;
            }
            self.busy_poll.count_turn();
            let next = match in_flight.requests.front() {
                Some(Request::Command(first)) if first.may_poll() && !Arc::ptr_eq(first, &from) => {
                    Arc::clone(first)
                }
                _ => {
                    drop(in_flight);
                    return self.end_polling();
                }
            };
            in_flight.poller = Some(Arc::clone(&next));
            drop(in_flight);
            if next.wake() {
                return;
            }
            from = next;
        }
    }

    /// Looks at the socket until this reply is there, or for a while.
    fn look(&self, reply: &Arc<PendingReply>, since: u64) -> Looked {
        let mut looking = None;
        loop {
            {
                let mut reader = self.reader();
                let (polls, in_flight) = {
                    let in_flight = self.in_flight();
                    (in_flight.is_poller(reply), in_flight.requests.len())
                };
                let is_lone = in_flight == 1;
                if polls && !reader.is_quiet && (!is_lone || self.busy_poll.is_dense(since)) {
                    self.quieten(&mut reader);
                }
                if self.deliver_until(&mut reader, reply) {
                    return Looked::Replied;
                }
                let looks_long = looking
                    .as_ref()
                    .is_some_and(|looking: &Looking<'_>| looking.is_long(self.busy_poll.now()));
                self.write_left(in_flight, looks_long);
                if self.read_now(&mut reader) && self.deliver_until(&mut reader, reply) {
                    return Looked::Replied;
                }
                looking.get_or_insert_with(|| self.busy_poll.look(since, is_lone));
            }
            for _ in 0..LOOK_EVERY {
                std::hint::spin_loop();
            }
            let now = self.busy_poll.now();
            if let Some(looking) = &mut looking {
                if looking.is_over(now) {
                    return Looked::GaveUp;
                }
                if looking.yields(now) {
                    return Looked::Yield;
                }
            }
        }
    }

    /// Tells the runtime nothing of what arrives until polling ends. From then on it is watched that a task polls.
    pub(super) fn quieten(&self, reader: &mut Reader) {
        reader.is_quiet = true;
        match reader.half.set_quiet(true) {
            Ok(()) => self.begin_watch(),
            Err(error) => self.fail(error),
        }
    }

    /// From now on a task that has the turn and does not poll loses it.
    fn begin_watch(&self) {
        if !self.is_watched.swap(true, Ordering::SeqCst) {
            self.flush.notify_one();
        }
    }

    /// Writes what the tasks before have left, if the server has no other request, or was waited for long. Otherwise a reply comes soon, and
    /// the next request is written with these.
    fn write_left(&self, in_flight: usize, looks_long: bool) {
        let mut writer = self.writer();
        let is_due = writer.left >= in_flight || looks_long;
        if is_due && writer.written < writer.unsent.len() && !writer.is_full {
            self.write(&mut writer);
        }
    }

    /// Writes what the tasks before have left.
    pub(super) fn write_rest(&self) {
        let mut writer = self.writer();
        if writer.written < writer.unsent.len() && !writer.is_full {
            self.write(&mut writer);
        }
    }

    /// Delivers what is in the buffer up to this reply. True if it is there, or if the connection has ended. What stands behind it is
    /// left to the next task that polls; so if this one has lost its turn, all of it is delivered.
    fn deliver_until(&self, reader: &mut Reader, reply: &Arc<PendingReply>) -> bool {
        let parsed = reader.parse(|value| {
            self.deliver(value);
            !reply.has_reply() || !self.in_flight().is_poller(reply)
        });
        if parsed.is_err() {
            self.fail_malformed();
        }
        reply.has_reply()
    }

    /// Reads what has arrived, without asking the runtime. True if that was something.
    fn read_now(&self, reader: &mut Reader) -> bool {
        reader.make_room();
        let Reader { half, buffer, filled, .. } = reader;
        match half.read_now(buffer.get_mut(*filled..).unwrap_or_default()) {
            Ok(0) => self.fail(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => *filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => self.fail(error),
        }
        true
    }

    /// Leaves it to the runtime to read replies.
    pub(super) fn end_polling(&self) {
        self.in_flight().poller = None;
        self.write_rest();
        let mut reader = self.reader();
        if reader.is_quiet {
            reader.is_quiet = false;
            if let Err(error) = reader.half.set_quiet(false) {
                self.fail(error);
            }
        }
        self.deliver_all(&mut reader);
    }

    /// How often the turn was passed, if it must be watched that it is passed again. None if no task polls.
    pub(super) fn watched_turns(&self) -> Option<u64> {
        let polls = || self.in_flight().poller.is_some();
        if !polls() {
            self.is_watched.store(false, Ordering::SeqCst);
            // A task that began in between has seen that it is watched, and woke no watch.
            if !polls() && !self.reader().is_quiet {
                return None;
            }
        }
        Some(self.busy_poll.turns())
    }

    /// Ends polling if the turn was not passed since.
    pub(super) fn end_stalled_polling(&self, turns: u64) {
        if self.busy_poll.turns() == turns {
            self.end_polling();
        }
    }
}

impl InFlight {
    fn is_poller(&self, reply: &Arc<PendingReply>) -> bool {
        self.poller.as_ref().is_some_and(|poller| Arc::ptr_eq(poller, reply))
    }
}
