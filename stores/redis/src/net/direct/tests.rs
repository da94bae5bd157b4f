use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::{FutureExt, join_all};
use futures_util::poll;

use super::reader::{READ_BUFFER, ReadNow};
use super::*;
use crate::net::resp::first_frame;

const LIMIT: Duration = Duration::from_secs(20);

/// A connection and the server's end of it.
async fn pair() -> (Arc<DirectConnection>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().unwrap();
    server.set_nodelay(true).unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    (start(ours), server)
}

fn start(socket: tokio::net::TcpStream) -> Arc<DirectConnection> {
    let (read, write) = socket.into_halves().unwrap();
    DirectConnection::start(read, write, Arc::default())
}

fn echo(number: usize) -> Cmd {
    let mut command = redis::cmd("ECHO");
    command.arg(number);
    command
}

fn pipeline(numbers: &[usize]) -> Pipeline {
    let mut commands = redis::pipe();
    for number in numbers {
        commands.add_command(echo(*number));
    }
    commands
}

/// The arguments of the next requests that a server receives.
struct Requests {
    socket: TcpStream,
    received: Vec<u8>,
}

impl Requests {
    fn of(socket: &TcpStream) -> Self {
        Requests { socket: socket.try_clone().unwrap(), received: Vec::new() }
    }

    /// The last argument of the next request; `None` at the end.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some((value, length)) = first_frame(&self.received).unwrap() {
                self.received.drain(..length);
                let Value::Array(mut words) = value else { panic!("no request: {value:?}") };
                let Some(Value::BulkString(last)) = words.pop() else { panic!("no argument") };
                return Some(last);
            }
            let mut piece = vec![0; 256 * 1024];
            match self.socket.read(&mut piece).unwrap() {
                0 => return None,
                count => self.received.extend_from_slice(&piece[..count]),
            }
        }
    }
}

/// A server that replies to each of `count` requests with its last argument.
fn echoing(mut socket: TcpStream, count: usize) -> JoinHandle<TcpStream> {
    std::thread::spawn(move || {
        let mut requests = Requests::of(&socket);
        for _ in 0..count {
            let argument = requests.next().unwrap();
            socket.write_all(&[b":".as_slice(), argument.as_slice(), b"\r\n"].concat()).unwrap();
        }
        socket
    })
}

async fn within_limit<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("a reply that never came")
}

/// Fails if this takes too long, even if a thread of the runtime is blocked. Runs it outside of the runtime's workers, where Tokio
/// defers no wake-up.
fn must_end(test: impl Future<Output = ()> + Send + 'static) {
    let (ended, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.unwrap().block_on(test);
        ended.send(()).unwrap();
    });
    wait.recv_timeout(LIMIT).expect("it should have ended without a panic");
}

#[tokio::test]
async fn replies_in_pieces_with_pushes_between_them_reach_their_requests() {
    let (connection, mut server) = pair().await;
    let replies = [
        ":1\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
        "*2\r\n:2\r\n$4\r\na\r\nb\r\n",
        // The server ended a subscription by itself: this answers nothing.
        ">3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n",
        "-ERR three\r\n",
        ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        ":4\r\n",
    ];
    let sender = std::thread::spawn(move || {
        for byte in replies.concat().bytes() {
            server.write_all(&[byte]).unwrap();
            std::thread::yield_now();
        }
        server
    });
    let (echo, commands) = (echo(0), pipeline(&[0, 0]));
    let requests = async {
        tokio::join!(
            connection.send(&echo, false),
            connection.send_all(&commands),
            connection.subscribe(b"c"),
            connection.send(&echo, false)
        )
    };
    let (one, both, subscribed, four) = within_limit(requests).await;
    assert_eq!(one.unwrap(), Value::Int(1));
    let both = both.unwrap();
    assert_eq!(both[0], Value::Array(vec![Value::Int(2), Value::BulkString(b"a\r\nb".to_vec())]));
    assert!(matches!(both[1], Value::ServerError(_)), "{both:?}");
    subscribed.unwrap();
    assert_eq!(four.unwrap(), Value::Int(4));
    drop(sender.join().unwrap());
}

#[tokio::test]
async fn a_refused_subscription_answers_itself_alone() {
    let (connection, mut server) = pair().await;
    server.write_all(b"-NOPERM no\r\n:2\r\n").unwrap();
    let echo = echo(0);
    let (refused, two) =
        within_limit(async { tokio::join!(connection.subscribe(b"c"), connection.send(&echo, false)) }).await;
    assert_eq!(refused.unwrap_err().code(), Some("NOPERM"));
    assert_eq!(two.unwrap(), Value::Int(2));
}

/// The driver cannot parse some frames that are complete, such as an error whose text is not UTF-8. If that ended one request of
/// several commands, the replies to its other commands would be taken for those to later requests.
#[tokio::test]
async fn a_reply_that_cannot_be_parsed_gives_no_request_the_reply_to_another() {
    for unparsable in [b"-ERR \xff\r\n".as_slice(), b"+\xff\r\n", b",x\r\n", b"#x\r\n", b">1\r\n:1\r\n"] {
        let (connection, mut server) = pair().await;
        server.write_all(&[unparsable, b":11\r\n:2\r\n"].concat()).unwrap();
        let (commands, echo) = (pipeline(&[0, 0]), echo(2));
        let (both, later) = within_limit(async {
            tokio::join!(connection.send_all(&commands), connection.send(&echo, false))
        })
        .await;
        assert!(both.is_err(), "{both:?}");
        assert!(later.is_err(), "the reply to another request: {later:?}");
        assert!(connection.subscriptions.is_closed());
        assert!(within_limit(connection.send(&echo, false)).await.is_err());
    }
}

#[tokio::test]
async fn a_server_that_closes_at_any_byte_fails_every_request_that_has_no_reply() {
    let replies = ":1\r\n*2\r\n:2\r\n$2\r\nab\r\n:3\r\n";
    for cut in 0..replies.len() {
        let (connection, mut server) = pair().await;
        let (echo, commands) = (echo(0), pipeline(&[0, 0]));
        let mut first = std::pin::pin!(connection.send(&echo, false));
        let mut both = std::pin::pin!(connection.send_all(&commands));
        assert!(poll!(first.as_mut()).is_pending() && poll!(both.as_mut()).is_pending());
        let mut requests = Requests::of(&server);
        for _ in 0..3 {
            requests.next().unwrap();
        }
        server.write_all(&replies.as_bytes()[..cut]).unwrap();
        drop((server, requests));
        let (first, both) = within_limit(async { tokio::join!(first, both) }).await;
        assert_eq!(first.is_ok(), cut >= 4, "cut at {cut}");
        let error = both.expect_err("a reply that was cut");
        assert!(error.is_io_error(), "{error}");
        assert!(within_limit(connection.send(&echo, false)).await.is_err(), "closed");
        assert!(connection.subscriptions.is_closed());
    }
}

#[tokio::test]
async fn garbage_instead_of_a_reply_fails_the_connection() {
    for garbage in ["HTTP/1.1 400 Bad Request\r\n", "\0\0\0\0", ":1x\r\n", "$2\r\nabcd\r\n"] {
        let (connection, mut server) = pair().await;
        server.write_all(garbage.as_bytes()).unwrap();
        let error = within_limit(connection.send(&echo(0), false)).await.unwrap_err();
        assert!(!error.to_string().contains("HTTP"), "{error}");
        assert!(connection.subscriptions.is_closed());
    }
}

#[tokio::test]
async fn dropped_requests_leave_each_other_request_its_own_reply() {
    let (connection, server) = pair().await;
    let mut kept = Vec::new();
    for number in 0..300 {
        let (echo, commands) = (echo(number), pipeline(&[number, number]));
        if number % 3 == 1 {
            let mut dropped = Box::pin(connection.send(&echo, false));
            assert!(poll!(dropped.as_mut()).is_pending());
        } else if number % 3 == 2 {
            let mut dropped = Box::pin(connection.send_all(&commands));
            assert!(poll!(dropped.as_mut()).is_pending());
        } else {
            let connection = Arc::clone(&connection);
            let mut request = Box::pin(async move { (number, connection.send(&echo, false).await.unwrap()) });
            assert!(poll!(request.as_mut()).is_pending());
            kept.push(request);
        }
    }
    let server = echoing(server, 400);
    for (number, reply) in within_limit(join_all(kept)).await {
        assert_eq!(reply, Value::Int(number.try_into().unwrap()));
    }
    let _open = server.join().unwrap();
    // The last ones were dropped: nothing waits for their replies.
    let unanswered = async {
        while !connection.in_flight().requests.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    within_limit(unanswered).await;
}

/// A stopped server: its socket takes no more, then continues in the middle of a request.
#[tokio::test]
async fn what_a_full_socket_did_not_take_follows_in_order_and_is_not_kept() {
    let (connection, server) = pair().await;
    let padding = vec![b'x'; 512 * 1024];
    let mut requests = Vec::new();
    for number in 0..64 {
        let connection = Arc::clone(&connection);
        let mut command = redis::cmd("ECHO");
        command.arg(&padding).arg(number);
        let mut request = Box::pin(async move { connection.send(&command, false).await.unwrap() });
        assert!(poll!(request.as_mut()).is_pending());
        requests.push(request);
    }
    assert!(connection.writer().is_full, "the socket took everything: the test needs more");
    let server = echoing(server, 64);
    for (number, reply) in within_limit(join_all(requests)).await.into_iter().enumerate() {
        assert_eq!(reply, Value::Int(number.try_into().unwrap()));
    }
    server.join().unwrap();
    assert!(connection.writer().unsent.capacity() <= KEPT_WRITE_BUFFER);
}

/// A socket that takes a little each time it is asked, and never everything.
struct Slow {
    takes: usize,
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match std::mem::take(&mut self.takes) {
            0 => {
                self.takes = 1000;
                Poll::Pending
            }
            count => Poll::Ready(Ok(count.min(bytes.len()))),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A server that sends nothing.
struct Silent;

impl ReadNow for Silent {
    fn read_now(&self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl AsyncRead for Silent {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn a_socket_that_is_never_empty_does_not_keep_what_was_written() {
    let slow = Box::new(Slow { takes: 0 });
    let connection = DirectConnection::start(Box::new(Silent), slow, Arc::default());
    let mut command = redis::cmd("ECHO");
    command.arg(vec![b'x'; 1000]);
    for _ in 0..10_000 {
        let mut request = Box::pin(connection.send(&command, false));
        assert!(poll!(request.as_mut()).is_pending());
        // As if the socket could take more.
        connection.on_writable.wake_by_ref();
        // Slower than the requests, but not by much.
        let behind = {
            let writer = connection.writer();
            writer.unsent.len() - writer.written
        };
        if behind > 100_000 {
            for _ in 0..50 {
                connection.on_writable.wake_by_ref();
            }
        }
    }
    let kept = connection.writer().unsent.len();
    assert!(kept < 500_000, "{kept} bytes are kept");
}

/// Tokio wakes a waker at once when the task that polls has used up its budget: a read or a write would begin within itself.
#[test]
fn a_task_without_budget_does_not_block_itself() {
    must_end(async {
        let (connection, server) = pair().await;
        let server = echoing(server, 2000);
        let commands: Vec<Cmd> = (0..2000).map(echo).collect();
        let replies = join_all(commands.iter().map(|command| connection.send(command, false))).await;
        for (number, reply) in replies.into_iter().enumerate() {
            assert_eq!(reply.unwrap(), Value::Int(number.try_into().unwrap()));
        }
        server.join().unwrap();
    });
}

#[test]
fn a_runtime_that_ends_fails_the_requests_of_another_runtime() {
    must_end(async {
        let (runtime, opened) = std::thread::spawn(|| {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let opened = runtime.block_on(pair());
            (runtime, opened)
        })
        .join()
        .unwrap();
        let (connection, _server) = opened;
        let echo = echo(1);
        let mut request = std::pin::pin!(connection.send(&echo, false));
        assert!(poll!(request.as_mut()).is_pending());
        runtime.shutdown_background();
        assert!(request.await.unwrap_err().is_io_error());
        assert!(connection.send(&echo, false).await.is_err());
        assert!(connection.subscriptions.is_closed());
    });
}

/// Drops the last handle to the connection while it is read.
struct DropsLast {
    half: ReadHalf,
    last: Arc<Mutex<Option<Arc<DirectConnection>>>>,
    dropped: Arc<AtomicBool>,
}

impl ReadNow for DropsLast {
    fn read_now(&self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl AsyncRead for DropsLast {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.half).poll_read(cx, buf);
        if polled.is_ready() {
            drop(self.last.lock().unwrap().take());
        }
        polled
    }
}

impl Drop for DropsLast {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[test]
fn the_last_handle_may_go_while_the_runtime_wakes_the_connection() {
    must_end(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let (half, write) = ours.into_halves().unwrap();
        let (last, dropped) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let half = Box::new(DropsLast { half, last: Arc::clone(&last), dropped: Arc::clone(&dropped) });
        let connection = DirectConnection::start(half, write, Arc::default());
        *last.lock().unwrap() = Some(connection);
        server.write_all(b":1\r\n").unwrap();
        while !dropped.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        // The runtime still serves other sockets.
        let (connection, server) = pair().await;
        let server = echoing(server, 1);
        assert_eq!(connection.send(&echo(7), false).await.unwrap(), Value::Int(7));
        server.join().unwrap();
    });
}

/// A reply that is larger than the buffer, then a small one: the memory of the large one is not kept.
#[tokio::test]
async fn a_huge_reply_is_delivered_and_its_memory_is_given_back() {
    let (connection, mut server) = pair().await;
    let large = 8 * 1024 * 1024;
    let sender = std::thread::spawn(move || {
        server.write_all(format!("${large}\r\n").as_bytes()).unwrap();
        server.write_all(&vec![b'x'; large]).unwrap();
        server.write_all(b"\r\n:2\r\n").unwrap();
        server
    });
    let echo = echo(0);
    let (huge, small) =
        within_limit(async { tokio::join!(connection.send(&echo, false), connection.send(&echo, false)) })
            .await;
    assert_eq!(huge.unwrap(), Value::BulkString(vec![b'x'; large]));
    assert_eq!(small.unwrap(), Value::Int(2));
    let kept = connection.reader.lock().unwrap().buffer.len();
    assert_eq!(kept, READ_BUFFER);
    drop(sender.join().unwrap());
}

/// Eight tasks were woken together, so two share a write, and only one of them sends a request again: it does not wait for the other.
#[tokio::test]
async fn a_request_is_written_although_the_tasks_woken_with_its_own_send_none() {
    let (connection, mut server) = pair().await;
    let replies = std::thread::spawn(move || {
        let mut requests = Requests::of(&server);
        for together in [8, 1, 1] {
            for _ in 0..together {
                requests.next().unwrap();
            }
            server.write_all(":7\r\n".repeat(together).as_bytes()).unwrap();
        }
        server
    });
    let command = echo(7);
    let answers = within_limit(join_all((0..8).map(|_| connection.send(&command, false)))).await;
    assert!(answers.into_iter().all(|answer| answer == Ok(Value::Int(7))));
    for _ in 0..2 {
        assert_eq!(within_limit(connection.send(&command, false)).await, Ok(Value::Int(7)));
    }
    drop(replies.join().unwrap());
}

/// A lone task whose server is near: its replies are there when it looks for them, so it never sleeps.
#[tokio::test]
async fn a_lone_task_reads_its_reply_without_the_runtime() {
    let (connection, mut server) = pair().await;
    for number in 0..3 {
        // The runtime looks for nothing between these lines, so it does not take the reply for one to no request.
        server.write_all(format!(":{number}\r\n").as_bytes()).unwrap();
        let reply = connection.send(&echo(number), true).now_or_never();
        assert_eq!(reply, Some(Ok(Value::Int(i64::try_from(number).unwrap()))));
    }
    // A caller that may not poll sleeps.
    server.write_all(b":7\r\n").unwrap();
    let echo = echo(7);
    let mut request = std::pin::pin!(connection.send(&echo, false));
    assert!(poll!(&mut request).is_pending());
    assert_eq!(within_limit(request).await, Ok(Value::Int(7)));
}

/// A reply that comes late, in pieces, or not at all: the task stops polling and sleeps.
#[tokio::test]
async fn a_lone_task_whose_reply_is_late_or_in_pieces_sleeps_until_it_is_there() {
    let (connection, mut server) = pair().await;
    server.write_all(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n$9\r\nin pi").unwrap();
    let echo = echo(0);
    let mut request = std::pin::pin!(connection.send(&echo, true));
    assert!(poll!(&mut request).is_pending());
    server.write_all(b"eces\r\n").unwrap();
    assert_eq!(within_limit(request).await, Ok(Value::BulkString(b"in pieces".to_vec())));

    let mut request = std::pin::pin!(connection.send(&echo, true));
    assert!(poll!(&mut request).is_pending());
    drop(server);
    assert!(within_limit(request).await.is_err(), "the connection has ended");
}

#[tokio::test]
async fn what_is_no_reply_ends_the_connection_also_while_a_task_polls() {
    let (connection, mut server) = pair().await;
    server.write_all(b":1\r\nHTTP/1.1 400\r\n").unwrap();
    assert_eq!(within_limit(connection.send(&echo(1), true)).await, Ok(Value::Int(1)));
    let error = within_limit(connection.send(&echo(2), true)).await.unwrap_err();
    assert!(error.to_string().contains("no reply"), "{error}");
}

/// The first request in flight polls.
fn poller(connection: &DirectConnection) -> Option<usize> {
    let in_flight = connection.in_flight();
    let poller = in_flight.poller.as_ref()?;
    in_flight
        .requests
        .iter()
        .position(|request| matches!(request, Request::Command(reply) if Arc::ptr_eq(reply, poller)))
}

/// What the runtime is not told of stays in the socket until a task polls again, or polling ends.
fn is_quiet(connection: &DirectConnection) -> bool {
    connection.reader().is_quiet
}

/// Two requests whose tasks take turns; the server has replied to none.
macro_rules! two_requests {
    ($connection:ident, $command:ident, $first:ident, $second:ident) => {
        let $command = echo(0);
        let mut $first = Box::pin($connection.send(&$command, true));
        let mut $second = Box::pin($connection.send(&$command, true));
        // The first polls for a while and sleeps then. It may not poll again, so the second is made before it does.
        $connection.busy_poll.pause_for_test();
        assert!(poll!(&mut $first).is_pending() && poll!(&mut $second).is_pending());
        $connection.busy_poll.resume_for_test();
        $connection.takes_turn_for_test();
    };
}

#[tokio::test]
async fn replies_are_read_in_turn_by_the_tasks_that_wait_for_them() {
    let (connection, mut server) = pair().await;
    two_requests!(connection, command, first, second);
    assert_eq!(poller(&connection), Some(0));
    server.write_all(b":1\r\n:2\r\n").unwrap();
    assert_eq!((&mut first).now_or_never(), Some(Ok(Value::Int(1))));
    assert_eq!(poller(&connection), Some(0), "the task of the second request");
    assert!(is_quiet(&connection));
    assert_eq!((&mut second).now_or_never(), Some(Ok(Value::Int(2))));
    assert!(poller(&connection).is_none() && !is_quiet(&connection));
}

#[tokio::test]
async fn the_task_that_polls_may_leave_and_the_next_one_polls() {
    let (connection, mut server) = pair().await;
    two_requests!(connection, command, first, second);
    drop(first);
    assert!(!is_quiet(&connection), "the reply to the first request has no task");
    server.write_all(b":1\r\n:2\r\n").unwrap();
    assert_eq!(within_limit(second).await, Ok(Value::Int(2)));
    server.write_all(b":3\r\n").unwrap();
    assert_eq!(within_limit(connection.send(&command, true)).await, Ok(Value::Int(3)));
}

/// A future that holds the turn and is not polled: inside a `select!` whose other branch takes long, or kept for later.
#[tokio::test]
async fn a_task_that_has_the_turn_and_is_not_polled_delays_the_others_by_little() {
    let (connection, mut server) = pair().await;
    two_requests!(connection, command, first, second);
    connection.quieten(&mut connection.reader());
    server.write_all(b":1\r\n:2\r\n").unwrap();
    let begun = std::time::Instant::now();
    assert_eq!(within_limit(second).await, Ok(Value::Int(2)));
    assert!(begun.elapsed() >= polling::WATCH_EVERY, "only the watch has ended the turn");
    assert!(!is_quiet(&connection));
    assert_eq!((&mut first).now_or_never(), Some(Ok(Value::Int(1))));
}

#[tokio::test]
async fn the_runtime_is_told_of_what_arrived_while_it_was_told_nothing() {
    let (connection, mut server) = pair().await;
    let command = echo(0);
    for number in 0..50_i64 {
        let mut request = Box::pin(connection.send(&command, false));
        assert!(poll!(&mut request).is_pending());
        // Half of the time it had something to tell before.
        if number % 2 == 0 {
            server.write_all(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n").unwrap();
            tokio::task::yield_now().await;
        }
        connection.quieten(&mut connection.reader());
        server.write_all(format!(":{number}\r\n").as_bytes()).unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        connection.end_polling();
        assert_eq!(within_limit(request).await, Ok(Value::Int(number)));
    }
}

#[tokio::test]
async fn an_end_of_the_connection_is_noticed_although_the_runtime_was_not_told() {
    for polls in [true, false] {
        let (connection, server) = pair().await;
        let command = echo(0);
        let mut request = Box::pin(connection.send(&command, polls));
        connection.busy_poll.pause_for_test();
        assert!(poll!(&mut request).is_pending());
        connection.busy_poll.resume_for_test();
        connection.quieten(&mut connection.reader());
        drop(server);
        if polls {
            connection.takes_turn_for_test();
        } else {
            connection.end_polling();
        }
        assert!(within_limit(request).await.is_err());
        assert!(connection.subscriptions.is_closed());
    }
}

#[test]
fn requests_of_many_threads_get_their_own_replies_while_their_tasks_take_turns() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        const TASKS: usize = 12;
        const EACH: usize = 2000;
        let (connection, server) = pair().await;
        let server = echoing(server, TASKS * EACH * 3 / 2);
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let connection = Arc::clone(&connection);
                tokio::spawn(async move {
                    for n in 0..EACH {
                        let number = task * EACH + n;
                        let command = echo(number);
                        if n % 2 == 0 {
                            // One that is dropped at some point of its life.
                            let dropped = connection.send(&command, true);
                            let _ = tokio::time::timeout(Duration::from_micros(n as u64 % 50), dropped).await;
                        }
                        let reply = connection.send(&command, n % 7 != 0).await;
                        assert_eq!(reply, Ok(Value::Int(i64::try_from(number).unwrap())));
                    }
                })
            })
            .collect();
        for task in tasks {
            within_limit(task).await.unwrap();
        }
        drop(server);
    });
}

/// On a runtime with one thread, which serves its timers and other tasks only in between.
#[tokio::test]
async fn tasks_that_take_turns_leave_the_thread_to_others() {
    let (connection, server) = pair().await;
    let server = echoing(server, usize::MAX);
    let command = echo(7);
    let ends = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let (connection, command, ends) = (Arc::clone(&connection), command.clone(), Arc::clone(&ends));
            tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    assert_eq!(connection.send(&command, true).await, Ok(Value::Int(7)));
                }
            })
        })
        .collect();
    for _ in 0..20 {
        within_limit(tokio::time::sleep(Duration::from_millis(1))).await;
    }
    ends.store(true, Ordering::Relaxed);
    for task in busy {
        within_limit(task).await.unwrap();
    }
    drop((connection, server));
}
