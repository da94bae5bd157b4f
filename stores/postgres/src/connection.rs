//! One connection: its server, its prepared statements, and whether it still replies.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::Result;
use distlock_core::store::support::reconnect;
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tokio_util::sync::CancellationToken;

use crate::error;
use crate::statement::{Request, RowLockTimeout, Slot};

/// A statement is prepared after this many uses: a program that acquires one lock and ends gains nothing from it.
const PREPARE_AFTER: u32 = 3;
/// How often a statement is retried that was rolled back because of another transaction.
const MAX_CONFLICTS: u32 = 20;
/// A connection with a request in flight and no reply for this long is suspected to be dead.
const SILENCE: Duration = Duration::from_secs(1);

/// How many statements this process has sent, for benchmarks.
#[cfg(feature = "bench")]
pub(crate) static SENT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// What the server said about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerInfo {
    /// `server_version_num`: 150018.
    pub(crate) version: i32,
    /// The connection goes through a pooler.
    pub(crate) pooled: bool,
    /// The database's encoding is UTF-8. Other encodings lack characters.
    pub(crate) utf8: bool,
}

/// The task that drives a connection.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Cancelled when the connection ends, for whatever reason.
    pub(crate) ended: CancellationToken,
    /// The server ended the connection because it was idle.
    pub(crate) ended_idle: Arc<AtomicBool>,
    /// `None` if the task belongs to a pool.
    pub(crate) task: Option<AbortHandle>,
}

impl Driver {
    /// The driver of a connection whose task belongs to a pool, and ends when the connection is dropped.
    #[cfg(feature = "deadpool-postgres")]
    pub(crate) fn of_another_task() -> Self {
        Driver { ended: CancellationToken::new(), ended_idle: Arc::default(), task: None }
    }
}

/// The driver's client.
#[derive(Debug)]
pub(crate) enum ClientHandle {
    Own(Client),
    /// Taken out of a pool of the application.
    #[cfg(feature = "deadpool-postgres")]
    Pooled(deadpool_postgres::ClientWrapper),
}

impl Deref for ClientHandle {
    type Target = Client;

    fn deref(&self) -> &Client {
        match self {
            ClientHandle::Own(client) => client,
            #[cfg(feature = "deadpool-postgres")]
            ClientHandle::Pooled(client) => client,
        }
    }
}

/// A connection that many tasks share: requests are sent as they come, and answered in that order.
#[derive(Debug)]
pub(crate) struct Connection {
    client: ClientHandle,
    pub(crate) server: ServerInfo,
    driver: Driver,
    prepared: [PreparedSlot; Slot::COUNT],
    /// Statements are sent as text, because prepared ones do not last.
    text_only: AtomicBool,
    activity: Activity,
}

#[derive(Debug, Default)]
struct PreparedSlot {
    uses: AtomicU32,
    statement: OnceCell<tokio_postgres::Statement>,
}

impl reconnect::Connection for Connection {
    fn is_usable(&self) -> bool {
        self.is_open()
    }
}

impl Connection {
    pub(crate) fn new(client: ClientHandle, server: ServerInfo, driver: Driver) -> Self {
        Connection {
            client,
            server,
            driver,
            prepared: std::array::from_fn(|_| PreparedSlot::default()),
            text_only: AtomicBool::new(server.pooled),
            activity: Activity::default(),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.driver.ended.is_cancelled() && !self.client.is_closed()
    }

    /// Cancelled when the connection ends.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.driver.ended
    }

    /// Whether a request failed because the server had closed an idle session. It was certainly not applied: a server that
    /// has read a request is not idle.
    pub(crate) fn was_idle(&self, error: &tokio_postgres::Error) -> bool {
        error::is_idle_timeout(error) || (error.is_closed() && self.driver.ended_idle.load(Ordering::SeqCst))
    }

    /// Whether requests are in flight and no reply comes.
    pub(crate) fn is_silent(&self) -> bool {
        self.activity.silence() > SILENCE
    }

    /// Closes the connection at once, with requests in flight or not.
    pub(crate) fn close(&self) {
        // Cancelled here, so that it is not taken for open before its task has ended.
        self.driver.ended.cancel();
        if let Some(task) = &self.driver.task {
            task.abort();
        }
    }

    /// Resolves when [`close`](Connection::close) was called and does not end the requests in flight by itself, because the
    /// connection's task belongs to a pool.
    pub(crate) async fn abandoned(&self) {
        match self.driver.task {
            Some(_) => std::future::pending().await,
            None => self.driver.ended.cancelled().await,
        }
    }

    /// As [`run`](Connection::run), with our error.
    ///
    /// # Cancel safety
    /// As for [`run`](Connection::run).
    pub(crate) async fn query(&self, request: &Request<'_>) -> Result<Vec<Row>> {
        self.run(request).await.map_err(error::from_statement)
    }

    /// Runs a statement in one round trip, and again if it was rolled back because of another transaction.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the outcome unknown. The connection stays usable: the reply is discarded.
    pub(crate) async fn run(&self, request: &Request<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        let mut conflicts = 0;
        loop {
            match self.run_once(request).await {
                Err(error) if error::is_conflict(&error) && conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                    let pause = fastrand::u64(0..=2 * u64::from(conflicts));
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                Err(error)
                    if error::is_unknown_statement(&error)
                        && !self.text_only.swap(true, Ordering::Relaxed) =>
                {
                    tracing::debug!("prepared statements do not last here: statements are sent as text");
                }
                outcome => return outcome,
            }
        }
    }

    /// Runs a statement once, in one round trip, without a retry.
    ///
    /// # Cancel safety
    /// As for [`run`](Connection::run).
    pub(crate) async fn run_once(&self, request: &Request<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        let outcome = self.send(request).await;
        if outcome.as_ref().is_err_and(error::ends_session) {
            // The task that reads the connection notices a moment later. The next request must not be sent here.
            self.driver.ended.cancel();
        }
        outcome
    }

    async fn send(&self, request: &Request<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        #[cfg(feature = "bench")]
        SENT.fetch_add(1, Ordering::Relaxed);
        let _in_flight = self.activity.begin();
        let statement = request.statement;
        if request.timeout != RowLockTimeout::Default {
            return self.send_text(&statement.text_with(request.timeout), request).await;
        }
        if self.text_only.load(Ordering::Relaxed) {
            return self.send_text(&statement.limited_text, request).await;
        }
        let slot = &self.prepared[statement.slot as usize];
        if slot.uses.fetch_add(1, Ordering::Relaxed) < PREPARE_AFTER {
            return self.send_text(&statement.text, request).await;
        }
        let prepare = || self.client.prepare_typed(&statement.text, statement.types);
        let prepared = slot.statement.get_or_try_init(prepare).await?;
        self.client.query(prepared, request.parameters).await
    }

    async fn send_text(&self, text: &str, request: &Request<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        let types = request.statement.types.iter().cloned();
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = request.parameters.iter().copied().zip(types).collect();
        self.client.query_typed(text, &typed).await
    }
}

/// How many requests are in flight, and when the last reply came.
#[derive(Debug)]
struct Activity {
    in_flight: AtomicUsize,
    last_reply: Mutex<Instant>,
}

impl Default for Activity {
    fn default() -> Self {
        Activity { in_flight: AtomicUsize::new(0), last_reply: Mutex::new(Instant::now()) }
    }
}

impl Activity {
    fn begin(&self) -> InFlight<'_> {
        if self.in_flight.fetch_add(1, Ordering::SeqCst) == 0 {
            self.touch();
        }
        InFlight(self)
    }

    fn touch(&self) {
        *self.last_reply.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long the requests in flight have had no reply.
    fn silence(&self) -> Duration {
        if self.in_flight.load(Ordering::SeqCst) == 0 {
            return Duration::ZERO;
        }
        self.last_reply.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// A request in flight.
struct InFlight<'a>(&'a Activity);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.touch();
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}
