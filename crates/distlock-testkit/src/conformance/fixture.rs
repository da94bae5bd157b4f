//! What the suite needs to know about a store.

use std::future::Future;
use std::time::Duration;

use distlock_core::store::{Backend, Driver, StoreUrl};

/// A store under test. Every case opens one of its own.
///
/// A store that is found by a URL gives its [`driver`](Self::driver) and the [`url`](Self::url); any other one says how
/// to [`connect`](Self::connect) and who the [`others`](Self::others) are.
///
/// ```
/// use distlock_core::memory::MemoryStore;
/// use distlock_core::store::Backend;
/// use distlock_testkit::conformance::{Fixture, Others};
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
///     fn others(&self) -> Others {
///         Others::Threads { because: "a memory store lives in one process" }
///     }
/// }
/// ```
pub trait Fixture: Send + Sync + Sized + 'static {
    /// Opens a store that nobody else uses and that holds nothing: a server of its own, or a namespace (a prefix, a
    /// schema, a folder) of a server that all cases share. It ends when the fixture is dropped.
    fn open() -> impl Future<Output = Self> + Send;

    /// Makes a store of the URL, as the facade does.
    fn driver() -> &'static Driver {
        panic!("implement Fixture::driver, or connect and join")
    }

    /// Where the store is found, also by other processes.
    fn url(&self) -> String {
        panic!("implement Fixture::url, or connect and others")
    }

    /// Connects anew. Each connection gets an engine of its own, and is to the store what another process is:
    /// nothing may be shared between two of them that two processes would not share.
    fn connect(&self) -> impl Future<Output = Backend> + Send {
        Self::join(self.url())
    }

    /// Who plays the other processes.
    fn others(&self) -> Others {
        Others::Processes(self.url())
    }

    /// Connects in another process, to the address that [`Others::Processes`] gave.
    fn join(address: String) -> impl Future<Output = Backend> + Send {
        async move {
            let url = StoreUrl::parse(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
            let connected = Self::driver().connect(url).await;
            connected.unwrap_or_else(|error| panic!("{address}: {error}"))
        }
    }

    /// How fast the store is, where the defaults do not fit.
    fn pace(&self) -> Pace {
        Pace::default()
    }

    /// Whether readers that are granted at the same time may have the same token. No single store needs this; a
    /// quorum does, whose nodes may see them in different orders.
    fn readers_may_share_a_token(&self) -> bool {
        false
    }

    /// Ends every connection to the store that is open now. New ones work. For the fault `cut_connections`.
    fn cut_connections(&self) -> impl Future<Output = ()> + Send {
        async { panic!("implement Fixture::cut_connections, or leave the fault out") }
    }

    /// Stops the store, hard, and starts it again with what it kept. For the fault `restart`.
    fn restart(&self) -> impl Future<Output = ()> + Send {
        async { panic!("implement Fixture::restart, or leave the fault out") }
    }

    /// Makes another node the one that decides. For the fault `fail_over`.
    fn fail_over(&self) -> impl Future<Output = ()> + Send {
        async { panic!("implement Fixture::fail_over, or leave the fault out") }
    }

    /// Sets the store's clock, so that it differs by this many seconds from the true one. For the fault
    /// `move_clock`.
    fn move_clock(&self, seconds: i64) -> impl Future<Output = ()> + Send {
        async move { panic!("implement Fixture::move_clock (by {seconds} s), or leave the fault out") }
    }
}

/// Who plays the other processes in the cases that need some.
#[derive(Clone, Debug)]
pub enum Others {
    /// Processes: the test binary started again. Each is handed this text and joins with it
    /// ([`Fixture::join`]): a URL, a path.
    Processes(String),
    /// Threads with a runtime each, because the store lives in this one process. A "killed" one never makes another
    /// step, a "paused" one stands still as a whole.
    Threads {
        /// Why no other process can reach the store.
        because: &'static str,
    },
}

/// How fast a store is and how patient the suite is with it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The expiry where a case waits for one. Longer makes the suite slower and less easily disturbed.
    pub expiry: Duration,
    /// After this long at the latest a store notices that a holder died; `None`: the expiry, or at once where the
    /// store says that it frees on crash. For sessions whose time-out is not the expiry.
    pub crash_noticed_within: Option<Duration>,
    /// How long a case waits for something that must happen before it fails.
    pub patience: Duration,
    /// How long it takes a waiter to get into the line of a store that cannot show its waiters.
    pub settling: Duration,
    /// How many processes contend.
    pub processes: u32,
    /// How often each of them takes the lock.
    pub rounds: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            expiry: Duration::from_millis(800),
            crash_noticed_within: None,
            patience: Duration::from_secs(30),
            settling: Duration::from_millis(300),
            processes: 5,
            rounds: 30,
        }
    }
}
