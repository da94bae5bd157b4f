//! What the suite must know about a store.

use std::future::Future;
use std::time::Duration;

use distlock_core::store::{Backend, Driver, StoreUrl};

/// A store under test. Every case opens its own.
///
/// A store that is found by URL implements [`driver`](Self::driver) and [`url`](Self::url). Any other store implements
/// [`connect`](Self::connect) and [`actor_mode`](Self::actor_mode).
///
/// ```
/// use distlock_core::memory::MemoryStore;
/// use distlock_core::store::Backend;
/// use distlock_testkit::conformance::{ActorMode, Fixture};
///
/// struct Memory(MemoryStore);
///
/// impl Fixture for Memory {
///     async fn open() -> Self {
///         Memory(MemoryStore::new())
///     }
///
///     async fn connect(&self) -> Backend {
///         Backend::lease(self.0.clone())
///     }
///
///     fn actor_mode(&self) -> ActorMode {
///         ActorMode::Threads { reason: "a memory store lives in one process" }
///     }
/// }
/// ```
pub trait Fixture: Send + Sync + Sized + 'static {
    /// Opens an empty store that no other case uses: a server of its own, or a namespace (a prefix, a schema, a folder) of
    /// a server that all cases share. Dropping the fixture ends it.
    fn open() -> impl Future<Output = Self> + Send;

    /// The driver that connects to the URL, as registered with the facade.
    fn driver() -> &'static Driver {
        panic!("implement Fixture::driver, or connect and connect_to")
    }

    /// The URL of the store, valid in other processes too.
    fn url(&self) -> String {
        panic!("implement Fixture::url, or connect and actor_mode")
    }

    /// Opens a new connection. Each connection gets an engine of its own and stands for another process: two connections
    /// must share nothing that two processes would not share.
    fn connect(&self) -> impl Future<Output = Backend> + Send {
        Self::connect_to(self.url())
    }

    /// Whether actors are processes or threads.
    fn actor_mode(&self) -> ActorMode {
        ActorMode::Processes(self.url())
    }

    /// Connects from an actor process, to the address in [`ActorMode::Processes`].
    fn connect_to(address: String) -> impl Future<Output = Backend> + Send {
        async move {
            let url = StoreUrl::parse(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
            let connected = Self::driver().connect(url).await;
            connected.unwrap_or_else(|error| panic!("{address}: {error}"))
        }
    }

    /// Expiries and time limits, where the defaults do not fit the store.
    fn timing(&self) -> Timing {
        Timing::default()
    }

    /// Whether readers that are granted concurrently may have the same token. Only a quorum needs this: its nodes may see
    /// the readers in different orders.
    fn readers_may_share_tokens(&self) -> bool {
        false
    }

    /// Whether the store frees the lock of a client that is silent, although its connection is open: a paused process. On a server
    /// without such a limit the lock is free when the client goes on, or when its connection ends; its guard is lost before that.
    fn frees_silent_holders(&self) -> bool {
        true
    }

    /// Closes every open connection to the store; new ones work. For the fault `cut_connections`.
    fn cut_connections(&self) -> impl Future<Output = ()> + Send {
        async { panic!("implement Fixture::cut_connections, or leave the fault out") }
    }

    /// Kills the store and starts it again with the data it kept. For the fault `restart`.
    fn restart(&self) -> impl Future<Output = ()> + Send {
        async { panic!("implement Fixture::restart, or leave the fault out") }
    }

    /// Makes another node the primary. For the fault `fail_over`.
    fn fail_over(&self) -> impl Future<Output = ()> + Send {
        async { panic!("implement Fixture::fail_over, or leave the fault out") }
    }

    /// Sets the store's clock to this offset from the true time. For the fault `move_clock`.
    fn move_clock(&self, seconds: i64) -> impl Future<Output = ()> + Send {
        async move { panic!("implement Fixture::move_clock (by {seconds} s), or leave the fault out") }
    }
}

/// How the cases run clients outside the test process.
#[derive(Clone, Debug)]
pub enum ActorMode {
    /// As processes: the test binary started again. Each gets this address (a URL, a path) and connects with
    /// [`Fixture::connect_to`].
    Processes(String),
    /// As threads with a runtime each, because the store lives in this one process. A "killed" thread takes no further
    /// step; a "paused" one blocks as a whole.
    Threads {
        /// Why no other process can reach the store.
        reason: &'static str,
    },
}

/// Expiries and time limits of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The expiry in cases that wait for one. A longer one makes the suite slower and less sensitive to a busy machine.
    pub expiry: Duration,
    /// How soon the store detects that a holder died. `None`: at the expiry, or at once where the store frees on crash. Set
    /// it for sessions whose time-out is not the expiry.
    pub crash_detected_within: Option<Duration>,
    /// How long a case waits for an expected event before it fails.
    pub wait_limit: Duration,
    /// The request time-out of the engines ([`Options::request_timeout`](distlock_core::Options::request_timeout)).
    pub request_timeout: Duration,
    /// How long a waiter needs to enter the wait queue of a store that cannot show its waiters.
    pub queue_delay: Duration,
    /// The number of contending processes.
    pub processes: u32,
    /// The number of acquisitions of each contending process.
    pub rounds: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            expiry: Duration::from_millis(800),
            crash_detected_within: None,
            wait_limit: Duration::from_secs(30),
            request_timeout: Duration::from_secs(5),
            queue_delay: Duration::from_millis(300),
            processes: 5,
            rounds: 30,
        }
    }
}
