//! A connection without a task of its own: each request is written by the task that makes it, and replies are read as soon as the
//! runtime reports that they are there. So a request and its reply cross no other task.
//!
//! While there are few requests, the tasks that wait for replies read them: see `polling`. Otherwise the runtime does. Then reading depends
//! on no task: one that is not polled for a while delays no reply of another.
//!
//! Replies that arrive together wake several tasks, which often send their next requests at once. Those of each quarter of the tasks are
//! written together, by the last of them, or by a task that runs after all of them. So the server works on the first quarter
//! while the other tasks run, and few writes wake it.

mod halves;
mod pending_reply;
mod polling;
mod reader;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(test)]
mod tests;
mod woken_tasks;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use redis::{Cmd, Pipeline, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};

use super::busy_poll::BusyPoll;
use super::pubsub::Subscriptions;
pub(crate) use halves::IntoHalves;
use pending_reply::PendingReply;
use polling::{Step, Turn};
use reader::Reader;
pub(crate) use reader::{ReadHalf, ReadNow};
use woken_tasks::WokenTasks;

/// A larger buffer for requests is not kept after they are written.
const KEPT_WRITE_BUFFER: usize = 64 * 1024;

pub(crate) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// An open connection that has logged in with RESP3. It is closed when it is dropped.
pub(crate) struct DirectConnection {
    reader: Mutex<Reader>,
    writer: Mutex<Writer>,
    /// The requests that are not answered yet, in the order in which they were written.
    in_flight: Mutex<InFlight>,
    subscriptions: Arc<Subscriptions>,
    on_readable: Waker,
    on_writable: Waker,
    /// Wakes the task that writes what the woken tasks have left, and sees to it that a reply is read if no task polls.
    flush: Arc<Notify>,
    busy_poll: BusyPoll,
    /// A task sees to it that replies are read although a task that should poll does not.
    is_watched: AtomicBool,
}

struct Writer {
    half: WriteHalf,
    /// What the socket did not take yet.
    unsent: Vec<u8>,
    /// How much of it was written.
    written: usize,
    /// The socket is full. It wakes us when it can take more.
    is_full: bool,
    /// How many requests wait for the task that polls, which writes them before it looks at the socket.
    left: usize,
    woken: WokenTasks,
}

#[derive(Default)]
struct InFlight {
    requests: VecDeque<Request>,
    failure: Option<Failure>,
    /// The request whose task polls, or is about to.
    poller: Option<Arc<PendingReply>>,
}

/// Why the connection cannot be used any more.
#[derive(Clone)]
struct Failure {
    kind: io::ErrorKind,
    text: Arc<str>,
}

/// A request that is not answered yet.
enum Request {
    Command(Arc<PendingReply>),
    Commands {
        missing: usize,
        replies: Vec<Value>,
        reply: oneshot::Sender<RedisResult<Vec<Value>>>,
    },
    /// SUBSCRIBE or UNSUBSCRIBE, which a push confirms.
    Subscription(oneshot::Sender<RedisResult<Value>>),
}

/// What the runtime wakes when the socket is ready.
struct SocketWaker {
    connection: Weak<DirectConnection>,
    does: fn(&DirectConnection),
}

impl Wake for SocketWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(connection) = self.connection.upgrade() {
            (self.does)(&connection);
        }
    }
}

impl DirectConnection {
    /// Takes over a connection that is logged in and has no request in flight. Messages go to `subscriptions`.
    pub(crate) fn start(read: ReadHalf, write: WriteHalf, subscriptions: Arc<Subscriptions>) -> Arc<Self> {
        let connection = Arc::new_cyclic(|weak: &Weak<DirectConnection>| {
            let waker = |does| Waker::from(Arc::new(SocketWaker { connection: weak.clone(), does }));
            DirectConnection {
                reader: Mutex::new(Reader::new(read)),
                writer: Mutex::new(Writer {
                    half: write,
                    unsent: Vec::new(),
                    written: 0,
                    is_full: false,
                    left: 0,
                    woken: WokenTasks::default(),
                }),
                in_flight: Mutex::default(),
                subscriptions,
                on_readable: waker(DirectConnection::read),
                on_writable: waker(|connection| connection.write(&mut connection.writer())),
                flush: Arc::default(),
                busy_poll: BusyPoll::new(),
                is_watched: AtomicBool::new(false),
            }
        });
        // Not before: until then there is no connection that it could find.
        tokio::spawn(watch(Arc::downgrade(&connection), Arc::clone(&connection.flush)));
        // Registers for the first reply.
        connection.read();
        connection
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one command. An error of the server is a reply. With `may_poll` the task may look at the
    /// socket for it instead of sleeping.
    ///
    /// # Cancel safety
    /// Once polled, the command is sent. Its reply is dropped if the future is.
    pub(super) async fn send(&self, command: &Cmd, may_poll: bool) -> RedisResult<Value> {
        let reply = Arc::new(PendingReply::new(may_poll));
        let request = Request::Command(Arc::clone(&reply));
        self.submit(request, |out| command.write_packed_command(out))?;
        let mut turn = Turn::new(self, reply);
        loop {
            match std::future::poll_fn(|context| turn.step(context)).await {
                Step::Replied(reply) => return reply,
                Step::Yield => tokio::task::yield_now().await,
            }
        }
    }

    /// Sends several commands at once and returns the reply to each.
    ///
    /// # Cancel safety
    /// As for [`send`](DirectConnection::send).
    pub(super) async fn send_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let missing = commands.len();
        if missing == 0 {
            return Ok(Vec::new());
        }
        let (reply, answer) = oneshot::channel();
        let request = Request::Commands { missing, replies: Vec::with_capacity(missing), reply };
        self.submit(request, |out| out.extend_from_slice(&commands.get_packed_pipeline()))?;
        answer.await.unwrap_or_else(|_| Err(self.failure()))
    }

    /// Subscribes to a channel. A refusal of the server is an error with its code.
    ///
    /// # Cancel safety
    /// As for [`send`](DirectConnection::send).
    pub(super) async fn subscribe(&self, channel: &[u8]) -> RedisResult<()> {
        self.change_subscription("SUBSCRIBE", channel).await
    }

    /// Ends the subscription to a channel.
    ///
    /// # Cancel safety
    /// As for [`send`](DirectConnection::send).
    pub(super) async fn unsubscribe(&self, channel: &[u8]) -> RedisResult<()> {
        self.change_subscription("UNSUBSCRIBE", channel).await
    }

    async fn change_subscription(&self, verb: &str, channel: &[u8]) -> RedisResult<()> {
        let mut command = redis::cmd(verb);
        command.arg(channel);
        let (reply, answer) = oneshot::channel();
        self.submit(Request::Subscription(reply), |out| command.write_packed_command(out))?;
        answer.await.unwrap_or_else(|_| Err(self.failure()))?.extract_error().map(|_| ())
    }

    /// Writes a request behind those that were written before it.
    fn submit(&self, request: Request, encode: impl FnOnce(&mut Vec<u8>)) -> RedisResult<()> {
        let mut writer = self.writer();
        let (has_poller, in_flight_now);
        {
            let mut in_flight = self.in_flight();
            if in_flight.failure.is_some() {
                drop(in_flight);
                return Err(self.failure());
            }
            // Before it is written: its reply may be there before the write returns.
            in_flight.requests.push_back(request);
            has_poller = in_flight.poller.is_some();
            in_flight_now = in_flight.requests.len();
        }
        encode(&mut writer.unsent);
        if has_poller && self.leaves_to_poller(&mut writer, in_flight_now) {
            return Ok(());
        }
        if writer.woken.writes_after_request() && !writer.is_full {
            self.write(&mut writer);
        }
        Ok(())
    }

    /// Writes what the socket takes. If it is full, the socket continues this when it can take more.
    fn write(&self, writer: &mut Writer) {
        writer.is_full = false;
        writer.left = 0;
        let mut context = Context::from_waker(&self.on_writable);
        while writer.written < writer.unsent.len() {
            let rest = writer.unsent.get(writer.written..).unwrap_or_default();
            let half = &mut writer.half;
            match without_budget(&mut context, |context| Pin::new(&mut *half).poll_write(context, rest)) {
                Poll::Ready(Ok(0)) => return self.fail(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => writer.written += count,
                Poll::Ready(Err(error)) => return self.fail(error),
                Poll::Pending => {
                    writer.is_full = true;
                    // A socket that stays full must not make us keep all that was ever written.
                    if writer.written > writer.unsent.len() / 2 {
                        writer.unsent.drain(..writer.written);
                        writer.written = 0;
                    }
                    return;
                }
            }
        }
        writer.written = 0;
        if writer.unsent.capacity() > KEPT_WRITE_BUFFER {
            writer.unsent = Vec::new();
        } else {
            writer.unsent.clear();
        }
    }

    /// Delivers all complete replies and messages of the buffer. False if the connection has failed.
    fn deliver_all(&self, reader: &mut Reader) -> bool {
        let mut woken = 0;
        let delivered = reader.parse(|value| {
            woken += usize::from(self.deliver(value));
            true
        });
        if delivered.is_err() {
            self.fail_malformed();
            return false;
        }
        // Two are as fast side by side.
        if woken > 2 {
            self.writer().woken = WokenTasks::new(woken);
            self.flush.notify_one();
        }
        true
    }

    /// Reads what has arrived, and registers for what arrives next.
    fn read(&self) {
        let mut reader = self.reader();
        let mut context = Context::from_waker(&self.on_readable);
        loop {
            reader.make_room();
            let Reader { half, buffer, filled, .. } = &mut *reader;
            let mut room = ReadBuf::new(buffer.get_mut(*filled..).unwrap_or_default());
            match without_budget(&mut context, |context| Pin::new(&mut *half).poll_read(context, &mut room)) {
                Poll::Pending => return,
                Poll::Ready(Err(error)) => return self.fail(error),
                Poll::Ready(Ok(())) => {
                    let count = room.filled().len();
                    if count == 0 {
                        return self.fail(io::ErrorKind::UnexpectedEof.into());
                    }
                    *filled += count;
                    if !self.deliver_all(&mut reader) {
                        return;
                    }
                }
            }
        }
    }

    /// Delivers a reply to the oldest request, or a message to its subscriptions. True if this ended a request.
    fn deliver(&self, value: Value) -> bool {
        let value = match value {
            Value::Push { kind, data } if !is_confirmation(&kind) => {
                self.subscriptions.deliver(PushInfo { kind, data });
                return false;
            }
            value => value,
        };
        let is_push = matches!(value, Value::Push { .. });
        let mut in_flight = self.in_flight();
        // The server may end a subscription by itself; that answers no request.
        if is_push && !matches!(in_flight.requests.front(), Some(Request::Subscription(_))) {
            return false;
        }
        match (in_flight.requests.front_mut(), value) {
            (Some(Request::Commands { missing, replies, .. }), value) if *missing > 1 => {
                *missing -= 1;
                replies.push(value);
                false
            }
            (Some(_), value) => {
                let request = in_flight.requests.pop_front();
                drop(in_flight);
                if let Some(request) = request {
                    request.answer(Ok(value));
                }
                true
            }
            (None, _) => {
                tracing::debug!("ignored a reply to no request");
                false
            }
        }
    }

    fn fail_malformed(&self) {
        let what = "the server sent something that is no reply";
        self.fail(io::Error::new(io::ErrorKind::InvalidData, what));
    }

    /// Ends the connection: no request is sent any more, and those in flight fail.
    fn fail(&self, error: io::Error) {
        let mut in_flight = self.in_flight();
        in_flight.failure.get_or_insert(Failure { kind: error.kind(), text: error.to_string().into() });
        let requests = std::mem::take(&mut in_flight.requests);
        drop(in_flight);
        self.subscriptions.deliver(PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
        for request in requests {
            request.answer(Err(self.failure()));
        }
    }

    fn failure(&self) -> RedisError {
        match &self.in_flight().failure {
            Some(Failure { kind, text }) => io::Error::new(*kind, text.to_string()).into(),
            None => io::Error::from(io::ErrorKind::NotConnected).into(),
        }
    }
}

/// Polls outside of the cooperative budget of the task that runs here. Once a task has used up its budget, Tokio wakes the waker of
/// what it polls, at once: ours would read or write from within the read or write that we are in.
fn without_budget<T>(context: &mut Context<'_>, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    let polled = tokio::task::coop::unconstrained(std::future::poll_fn(poll));
    std::pin::pin!(polled).poll(context)
}

/// Writes the requests of tasks that were woken together, after all of them had a chance to add theirs. While tasks poll, the runtime
/// does not read: then it looks now and then whether one still polls.
async fn watch(connection: Weak<DirectConnection>, flush: Arc<Notify>) {
    loop {
        let Some(turns) = connection.upgrade().map(|connection| connection.watched_turns()) else { return };
        tokio::select! {
            () = flush.notified() => {}
            () = tokio::time::sleep(polling::WATCH_EVERY), if turns.is_some() => {
                let (Some(connection), Some(turns)) = (connection.upgrade(), turns) else { return };
                connection.end_stalled_polling(turns);
                continue;
            }
        }
        // The runtime polls a task that yields when its thread has nothing else to do. If the thread is blocked, the timer, which any
        // thread serves, comes first.
        let _ = tokio::time::timeout(polling::WATCH_EVERY, tokio::task::yield_now()).await;
        let Some(connection) = connection.upgrade() else { return };
        connection.writer().woken = WokenTasks::default();
        connection.write_rest();
    }
}

impl Drop for DirectConnection {
    fn drop(&mut self) {
        self.flush.notify_one();
    }
}

impl Request {
    /// Answers it with its last reply, or with an error. A caller that left takes no answer.
    fn answer(self, value: RedisResult<Value>) {
        match self {
            Request::Command(reply) => reply.reply(value),
            Request::Subscription(reply) => drop(reply.send(value)),
            Request::Commands { mut replies, reply, .. } => drop(reply.send(value.map(|value| {
                replies.push(value);
                replies
            }))),
        }
    }
}

/// Whether a push confirms a change of subscriptions.
fn is_confirmation(kind: &PushKind) -> bool {
    matches!(kind, PushKind::Subscribe | PushKind::Unsubscribe)
}

impl fmt::Debug for DirectConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_flight = self.in_flight();
        f.debug_struct("DirectConnection")
            .field("in_flight", &in_flight.requests.len())
            .field("failed", &in_flight.failure.is_some())
            .finish_non_exhaustive()
    }
}
