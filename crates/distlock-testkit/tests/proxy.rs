//! Every fault of the proxy does what it says, and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock_testkit::proxy::{AfterLoss, Direction, Proxy};
use distlock_testkit::servers::redis::resp::RedisConnection;
use distlock_testkit::servers::{RedisServer, wait_for};

/// How long a reply may take that is to arrive.
const LONG: Duration = Duration::from_secs(5);
/// How long a test watches that nothing arrives.
const SHORT: Duration = Duration::from_millis(60);

/// Sends back what it gets, and counts the bytes it got.
struct Echo {
    addr: SocketAddr,
    received: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (received, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, ended) = (Arc::clone(&received), Arc::clone(&closed));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, count, ended) = (stream.unwrap(), Arc::clone(&count), Arc::clone(&ended));
                thread::spawn(move || {
                    let mut buffer = [0; 65_536];
                    while let Ok(length @ 1..) = stream.read(&mut buffer) {
                        count.fetch_add(length, Ordering::SeqCst);
                        if stream.write_all(&buffer[..length]).is_err() {
                            break;
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self { addr, received, closed }
    }

    fn wait_received(&self, bytes: usize) {
        wait_for("the server gets the request", LONG, || {
            (self.received.load(Ordering::SeqCst) == bytes).then_some(())
        });
    }
}

struct Client(TcpStream);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.addr()).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    fn expect(&mut self, text: &str) {
        self.0.set_read_timeout(Some(LONG)).unwrap();
        let mut bytes = vec![0; text.len()];
        self.0.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, text.as_bytes());
    }

    fn expect_nothing(&mut self) {
        self.0.set_read_timeout(Some(SHORT)).unwrap();
        let error = self.0.read(&mut [0; 16]).expect_err("nothing was to arrive, not even the end");
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }

    fn expect_end(&mut self) {
        self.0.set_read_timeout(Some(LONG)).unwrap();
        match self.0.read(&mut [0; 16]) {
            Ok(0) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("the connection was to end, but {other:?}"),
        }
    }

    fn round_trip(&mut self, text: &str) {
        self.send(text);
        self.expect(text);
    }
}

fn echo() -> (Echo, Proxy) {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.addr);
    (echo, proxy)
}

#[test]
fn bytes_pass_and_are_counted() {
    let (_echo, proxy) = echo();
    let (mut one, mut two) = (Client::connect(&proxy), Client::connect(&proxy));
    one.round_trip("hello");
    two.round_trip("hi");
    let counters = proxy.counters();
    assert_eq!((counters.accepted, counters.open), (2, 2));
    assert_eq!((counters.to_server.bytes, counters.to_server.bursts, counters.to_server.lost), (7, 2, 0));
    assert_eq!((counters.to_client.bytes, counters.to_client.bursts, counters.to_client.lost), (7, 2, 0));
    drop(one);
    proxy.wait_counters("the closed connection is noticed", |counters| counters.open == 1);
}

#[test]
fn large_replies_arrive_whole_and_the_end_of_a_stream_is_passed_on() {
    let (_echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let mut writer = client.0.try_clone().unwrap();
    let copy = sent.clone();
    let thread = thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    client.0.read_to_end(&mut got).unwrap();
    thread.join().unwrap();
    assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
}

#[test]
fn each_direction_has_its_own_delay() {
    let (echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    let delay = Duration::from_millis(200);
    proxy.set_delay(Direction::ToClient, delay);
    let begin = Instant::now();
    client.send("slow reply");
    echo.wait_received(10);
    let there = begin.elapsed();
    client.expect("slow reply");
    assert!(there < delay && begin.elapsed() >= delay, "{there:?}, {:?}", begin.elapsed());

    proxy.set_delay(Direction::ToServer, delay);
    let begin = Instant::now();
    client.round_trip("both ways");
    assert!(begin.elapsed() >= 2 * delay);

    proxy.heal();
    let begin = Instant::now();
    client.round_trip("quick");
    assert!(begin.elapsed() < delay);
}

#[test]
fn delayed_bursts_overlap_and_keep_their_order() {
    let (_echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    proxy.set_delay(Direction::ToServer, Duration::from_millis(50));
    let begin = Instant::now();
    for i in 0..10 {
        client.send(&i.to_string());
    }
    client.expect("0123456789");
    assert!(begin.elapsed() < Duration::from_millis(400), "one delay, not ten: {:?}", begin.elapsed());
}

#[test]
fn cut_ends_all_connections_and_new_ones_are_welcome() {
    let (echo, proxy) = echo();
    let mut clients = [Client::connect(&proxy), Client::connect(&proxy)];
    clients.iter_mut().for_each(|client| client.round_trip("x"));
    assert_eq!(proxy.cut(), 2);
    assert_eq!(proxy.counters().open, 0);
    clients.iter_mut().for_each(Client::expect_end);
    wait_for("the server sees both ends", LONG, || (echo.closed.load(Ordering::SeqCst) == 2).then_some(()));
    Client::connect(&proxy).round_trip("again");
}

#[test]
fn refusing_leaves_the_connections_there_are() {
    let (_echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    client.round_trip("before");
    proxy.refuse();
    let error = TcpStream::connect(proxy.addr()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    client.round_trip("meanwhile");
    proxy.accept();
    let mut other = Client::connect(&proxy);
    other.round_trip("after");

    assert_eq!(proxy.disconnect(), 2);
    assert!(TcpStream::connect(proxy.addr()).is_err());
    client.expect_end();
    other.expect_end();
    proxy.heal();
    Client::connect(&proxy).round_trip("and again");
}

#[test]
fn a_black_hole_to_the_server_lets_replies_flow() {
    let (echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    proxy.set_delay(Direction::ToClient, SHORT);
    client.send("one");
    echo.wait_received(3);
    proxy.black_hole(Direction::ToServer);
    client.send("two");
    client.expect("one");
    client.expect_nothing();
    assert_eq!(echo.received.load(Ordering::SeqCst), 3);
    assert_eq!(proxy.counters().to_server.lost, 1);
    proxy.clear_black_hole(Direction::ToServer);
    client.expect_end();
    Client::connect(&proxy).round_trip("three");
}

#[test]
fn a_black_hole_to_the_client_lets_requests_flow() {
    let (echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    let mut idle = Client::connect(&proxy);
    client.round_trip("one");
    idle.round_trip("one");
    proxy.black_hole(Direction::ToClient);
    client.send("two");
    echo.wait_received(9);
    client.expect_nothing();
    proxy.heal();
    client.expect_end();
    idle.round_trip("nothing of this one was lost");
}

#[test]
fn the_end_of_a_connection_does_not_leave_a_black_hole() {
    let (echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    client.round_trip("x");
    proxy.black_hole(Direction::ToServer);
    drop(client);
    // Time in which the server could learn of it, if there was a way.
    thread::sleep(SHORT);
    assert_eq!(echo.closed.load(Ordering::SeqCst), 0, "the server still believes in its client");
    proxy.heal();
    wait_for("the server sees the end", LONG, || (echo.closed.load(Ordering::SeqCst) == 1).then_some(()));
}

#[test]
fn the_nth_reply_is_lost_and_the_connection_closed() {
    let (echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    client.round_trip("0");
    proxy.lose_reply(2, AfterLoss::Close);
    client.round_trip("1");
    client.send("2");
    client.expect_end();
    echo.wait_received(3);
    assert_eq!(proxy.counters().to_client.lost, 1);
    Client::connect(&proxy).round_trip("3");
}

#[test]
fn the_nth_reply_is_lost_and_the_connection_hangs() {
    let (echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    proxy.lose_reply(1, AfterLoss::Hang);
    client.send("1");
    client.expect_nothing();
    client.send("2");
    echo.wait_received(2);
    client.expect_nothing();
    Client::connect(&proxy).round_trip("other connections are well");
    proxy.heal();
    client.expect_end();
}

#[test]
fn the_reply_to_a_certain_request_is_lost() {
    let (echo, proxy) = echo();
    let (mut one, mut two) = (Client::connect(&proxy), Client::connect(&proxy));
    proxy.lose_reply_to("SECRET", AfterLoss::Close);
    one.round_trip("public");
    two.round_trip("public");
    one.send("the SECRET word");
    one.expect_end();
    two.round_trip("another SECRET");
    echo.wait_received(12 + 15 + 14);
}

#[test]
fn a_frozen_proxy_loses_nothing_and_thaws() {
    let (echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    client.round_trip("before");
    proxy.pause();
    client.send("held");
    client.expect_nothing();
    let mut late = Client::connect(&proxy);
    late.send("late");
    late.expect_nothing();
    assert_eq!(echo.received.load(Ordering::SeqCst), 6);
    proxy.resume();
    client.expect("held");
    late.expect("late");
}

#[test]
fn a_target_that_is_down_ends_connections_and_another_may_take_its_place() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::start(gone);
    Client::connect(&proxy).expect_end();
    let echo = Echo::start();
    proxy.set_target(echo.addr);
    Client::connect(&proxy).round_trip("here");
}

#[test]
fn a_dropped_proxy_closes_its_port_and_connections() {
    let (_echo, proxy) = echo();
    let mut client = Client::connect(&proxy);
    client.round_trip("x");
    let (addr, handle) = (proxy.addr(), proxy.handle());
    drop(proxy);
    client.expect_end();
    assert!(TcpStream::connect(addr).is_err());
    // Handles that are left do nothing, and do not hang.
    assert_eq!(handle.cut(), 0);
    handle.heal();
}

#[test]
fn a_redis_command_is_executed_although_its_reply_is_lost() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.addr());
    assert_eq!(proxy.through(&redis.url()), format!("redis://{}", proxy.addr()));
    let mut client = RedisConnection::open(proxy.port(), LONG).unwrap();
    assert_eq!(client.command(&["SET", "k", "1"]).unwrap().text(), "OK");
    proxy.lose_reply_to("INCR", AfterLoss::Close);
    assert!(client.command(&["INCR", "k"]).is_err());
    assert_eq!(redis.command(&["GET", "k"]).text(), "2");
}

#[tokio::test]
async fn faults_can_be_switched_within_an_async_test() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (_echo, proxy) = echo();
    let mut client = tokio::net::TcpStream::connect(proxy.addr()).await.unwrap();
    client.write_all(b"x").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'x');
    let handle = proxy.handle();
    assert_eq!(tokio::spawn(async move { handle.disconnect() }).await.unwrap(), 1);
    assert_eq!(client.read(&mut [0; 4]).await.unwrap_or(0), 0);
}
