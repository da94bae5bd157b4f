//! A TCP proxy between a client and a server with switchable network faults.
//!
//! The proxy listens on its own loopback port and runs on its own thread, so it works with any runtime and while the test's
//! thread is blocked. Switch faults through the [`Proxy`] or a clone of its [`ProxyHandle`]; they apply to all its connections.
//! When a method returns, its fault is in effect for everything sent afterwards.
//!
//! ```no_run
//! use distlock_testkit::proxy::{AfterLoss, Direction, Proxy};
//! use distlock_testkit::servers::RedisServer;
//! use std::time::Duration;
//!
//! let redis = RedisServer::start();
//! let proxy = Proxy::start(redis.addr());
//! let url = proxy.through(&redis.url()); // what the client connects to
//!
//! proxy.set_delay(Direction::ToClient, Duration::from_millis(50));
//! proxy.lose_reply(1, AfterLoss::Close); // the next request is executed, its reply never arrives
//! proxy.heal(); // no faults any more
//! # let _ = url;
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod connection;
mod state;

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::LocalSet;

use crate::servers::{Port, wait_for};
pub use state::{AfterLoss, Counters, Direction, Flow};
use state::{Faults, ProxyState, ReplyLoss};

/// The proxy's thread reacts within microseconds; the limit is for a machine under heavy load.
const LIMIT: Duration = Duration::from_secs(10);

/// A running proxy. Dropping it closes all its connections and its port.
#[derive(Debug)]
pub struct Proxy {
    handle: ProxyHandle,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `target`, which need not be up.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let shared = Arc::new(ProxyState::new(Port::reserve(), target));
        let handle = ProxyHandle { shared: Arc::clone(&shared) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("no runtime");
        let thread = thread::Builder::new()
            .name(format!("proxy-{}", handle.port()))
            .spawn(move || LocalSet::new().block_on(&runtime, serve(shared)))
            .expect("cannot start the proxy's thread");
        handle.wait_listening(true);
        Self { handle, thread: Some(thread) }
    }

    /// A handle that can be shared; it does not keep the proxy alive.
    #[must_use]
    pub fn handle(&self) -> ProxyHandle {
        self.handle.clone()
    }
}

impl Deref for Proxy {
    type Target = ProxyHandle;

    fn deref(&self) -> &ProxyHandle {
        &self.handle
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.handle.shared.change(|faults| faults.closed = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Switches the faults of a [`Proxy`].
#[derive(Debug, Clone)]
pub struct ProxyHandle {
    shared: Arc<ProxyState>,
}

impl ProxyHandle {
    /// The port that clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.shared.port.number()
    }

    /// The address that clients connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.shared.port.addr()
    }

    /// The URL of the target, with the proxy's port in the place of the target's.
    ///
    /// # Panics
    /// If the target's address is not in `url`.
    #[must_use]
    pub fn through(&self, url: &str) -> String {
        let target = self.shared.target().to_string();
        assert!(url.contains(&target), "{url} does not lead to {target}, the proxy's target");
        url.replace(&target, &self.addr().to_string())
    }

    /// Sends connections made from now on to another server.
    pub fn set_target(&self, target: SocketAddr) {
        self.shared.set_target(target);
    }

    /// Ends all faults: delays, pauses, black holes, scheduled losses, refused connections.
    ///
    /// Connections that lost bytes are closed, because no network repairs a stream with a gap.
    pub fn heal(&self) {
        self.shared.lose(None);
        self.shared.change(Faults::heal);
        self.wait_listening(true);
    }

    /// Delays everything sent in one direction from now on.
    pub fn set_delay(&self, direction: Direction, delay: Duration) {
        self.shared.change(|faults| faults.delay[direction as usize] = delay);
    }

    /// Closes all connections and returns their number. New connections are accepted.
    pub fn cut(&self) -> usize {
        let (old, count) = self.shared.next_epoch();
        wait_for("the proxy closes its connections", LIMIT, || (Arc::strong_count(&old) == 1).then_some(()));
        count
    }

    /// Refuses new connections, like a port without a listener. Open connections stay.
    pub fn refuse(&self) {
        self.shared.change(|faults| faults.refusing = true);
        self.wait_listening(false);
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.shared.change(|faults| faults.refusing = false);
        self.wait_listening(true);
    }

    /// Refuses new connections, closes the open ones, and returns their number: to clients the server is gone.
    pub fn disconnect(&self) -> usize {
        self.refuse();
        self.cut()
    }

    /// Silently drops everything sent in one direction, including the end of a connection. The other direction works.
    ///
    /// When [`heal`](Self::heal) or [`clear_black_hole`](Self::clear_black_hole) ends it, connections that lost bytes are
    /// closed.
    pub fn black_hole(&self, direction: Direction) {
        self.shared.change(|faults| faults.black_hole[direction as usize] = true);
    }

    /// Ends [`black_hole`](Self::black_hole) for one direction.
    pub fn clear_black_hole(&self, direction: Direction) {
        self.shared.change(|faults| faults.black_hole[direction as usize] = false);
    }

    /// Drops the `nth` reply from now (1 is the next) on any connection: the request was applied, and its outcome is unknown to
    /// the client.
    ///
    /// A reply is one burst of the server, that is, what the proxy reads at once: one reply of ordinary size, or several that
    /// the server wrote together. Unsolicited messages of the server count too.
    pub fn lose_reply(&self, nth: usize, after: AfterLoss) {
        assert!(nth > 0, "replies are counted from 1");
        self.shared.lose(Some(ReplyLoss::Nth { left: nth, after }));
    }

    /// Drops the reply to the next request that contains `words`: the first burst that the server sends on the same connection
    /// after that request. If earlier requests are in flight, it may be the reply to one of those.
    pub fn lose_reply_to(&self, words: impl AsRef<[u8]>, after: AfterLoss) {
        let words = words.as_ref().to_vec();
        assert!(!words.is_empty(), "empty words match every request");
        self.shared.lose(Some(ReplyLoss::To { words, after }));
    }

    /// Stops both directions, like a pulled cable: connections stay open, and new ones are accepted and wait. What is sent
    /// meanwhile arrives after [`resume`](Self::resume).
    pub fn pause(&self) {
        self.shared.change(|faults| faults.paused = true);
    }

    /// Ends [`pause`](Self::pause).
    pub fn resume(&self) {
        self.shared.change(|faults| faults.paused = false);
    }

    /// The traffic so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Waits until the counters satisfy `condition`.
    ///
    /// # Panics
    /// If they do not within ten seconds.
    pub fn wait_counters(&self, what: &str, condition: impl Fn(&Counters) -> bool) -> Counters {
        wait_for(what, LIMIT, || Some(self.counters()).filter(&condition))
    }

    fn wait_listening(&self, wanted: bool) {
        wait_for("the proxy opens or closes its port", LIMIT, || {
            let faults = self.shared.faults();
            let done = self.shared.listening.load(Ordering::SeqCst) == wanted;
            // Another thread may have switched it back, or the proxy may have ended.
            (done || faults.closed || faults.refusing == wanted).then_some(())
        });
    }
}

/// The proxy's thread: accepts connections until the proxy is closed.
async fn serve(shared: Arc<ProxyState>) {
    let mut faults = shared.subscribe();
    loop {
        let now = *faults.borrow_and_update();
        if now.closed {
            return;
        }
        if now.refusing {
            shared.listening.store(false, Ordering::SeqCst);
            let _ = faults.changed().await;
            continue;
        }
        let listener = TcpListener::bind(shared.port.addr()).await.expect("the proxy's port was reserved");
        shared.listening.store(true, Ordering::SeqCst);
        while !faults.borrow().refusing && !faults.borrow().closed {
            tokio::select! {
                _ = faults.changed() => {}
                Ok((client, _)) = listener.accept() => {
                    tokio::task::spawn_local(connection::forward(client, Arc::clone(&shared)));
                }
            }
        }
    }
}
