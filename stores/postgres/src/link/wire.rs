//! One connection: what it leads to, what was prepared on it, and whether it still answers.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::{Error, ErrorKind, Result};
use tokio::sync::{OnceCell, mpsc};
use tokio::task::AbortHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Notification, Row};
use tokio_util::sync::CancellationToken;

use super::pooler;
use crate::config::PostgresConfig;
use crate::failure;
use crate::statement::{Patience, Statement};

/// The oldest server that knows what our statements say.
const OLDEST: i32 = 120_000;
/// A statement is prepared when it comes again this often: a program that takes one lock and ends gains nothing.
const PREPARE_AFTER: u32 = 3;
/// How often a statement that was rolled back because of somebody else is done again.
const CONFLICTS: u32 = 20;
/// With a request out and no sign of life for this long, a connection is under suspicion.
const SUSPICIOUS: Duration = Duration::from_secs(1);

/// What a connection was told about the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// As the server writes it: 150018.
    pub(crate) version: i32,
    /// A pooler stands in between.
    pub(crate) pooled: bool,
    /// Text is kept as UTF-8; elsewhere not every character has a place.
    pub(crate) utf8: bool,
}

/// A connection that many share: requests are sent as they come, and answered in that order.
#[derive(Debug)]
pub(crate) struct Wire {
    client: Client,
    pub(crate) server: Server,
    /// Ends when the connection does, whoever ended it.
    pub(crate) ended: CancellationToken,
    /// The server ended it because nobody asked anything.
    ended_idle: Arc<AtomicBool>,
    driver: AbortHandle,
    prepared: [Slot; Statement::SLOTS],
    whole: AtomicBool,
    pulse: Pulse,
}

#[derive(Debug, Default)]
struct Slot {
    uses: AtomicU32,
    statement: OnceCell<tokio_postgres::Statement>,
}

impl Wire {
    /// Connects, and finds out what is at the other end. Messages that the server sends unasked go to `mail`.
    pub(crate) async fn open(
        config: &PostgresConfig,
        mail: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Wire> {
        let tls = config.tls.connector()?;
        let (client, mut connection) =
            config.driver.connect(tls).await.map_err(|error| failure::of_connecting(&error))?;
        let ended = CancellationToken::new();
        let over = ended.clone().drop_guard();
        let ended_idle = Arc::new(AtomicBool::new(false));
        let idle = Arc::clone(&ended_idle);
        let driver = tokio::spawn(async move {
            // Dropped with this task, also when it is aborted or its runtime goes.
            let _over = over;
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notification(message)) => {
                        if let Some(mail) = &mail {
                            let _ = mail.send(message);
                        }
                    }
                    Ok(AsyncMessage::Notice(notice)) => {
                        tracing::debug!(notice = notice.message(), "the server says")
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a connection ended");
                        // Before whoever waits for an answer hears of the end.
                        idle.store(failure::is_idle_too_long(&error), Ordering::SeqCst);
                        return;
                    }
                }
            }
        })
        .abort_handle();
        let server = look_around(&client).await?;
        let wire = Wire {
            client,
            server,
            ended,
            ended_idle,
            driver,
            prepared: Default::default(),
            whole: AtomicBool::new(server.pooled),
            pulse: Pulse::default(),
        };
        Ok(wire)
    }

    /// Settings of the session, where it is ours alone: behind a pooler they would become somebody else's.
    pub(crate) async fn set(&self, settings: &str) -> Result<()> {
        if self.server.pooled {
            return Ok(());
        }
        self.client.batch_execute(settings).await.map_err(|error| failure::of_statement(&error))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.ended.is_cancelled() && !self.client.is_closed()
    }

    /// Whether a request failed because the server had closed an idle session, so that it was surely not carried out: a
    /// server that has read it is not idle.
    pub(crate) fn was_idle(&self, error: &tokio_postgres::Error) -> bool {
        failure::is_idle_too_long(error) || (error.is_closed() && self.ended_idle.load(Ordering::SeqCst))
    }

    /// Whether something is out and nothing comes back.
    pub(crate) fn is_silent(&self) -> bool {
        self.pulse.silent_for() > SUSPICIOUS
    }

    /// Ends the connection at once, whatever is under way on it.
    pub(crate) fn cut(&self) {
        // Nobody may take it for open before its task has noticed.
        self.ended.cancel();
        self.driver.abort();
    }

    /// Runs a statement in one round trip, and again if it was rolled back because of somebody else.
    ///
    /// # Cancel safety
    /// Dropping it may leave the statement carried out or not. The connection stays as good as it was: what was sent is
    /// answered, and the answer is thrown away.
    pub(crate) async fn run(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.run_with(statement, parameters, Patience::Usual).await
    }

    /// The same, for rows that another session may have locked.
    ///
    /// # Cancel safety
    /// As for [`run`](Wire::run).
    pub(crate) async fn run_with(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
        patience: Patience,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let mut conflicts = 0;
        loop {
            let outcome = match patience {
                Patience::Usual => self.run_once(statement, parameters).await,
                Patience::Brief => self.send_whole(&statement.brief(), statement, parameters).await,
            };
            match outcome {
                Err(error) if failure::is_conflict(&error) && conflicts < CONFLICTS => {
                    conflicts += 1;
                    let pause = fastrand::u64(0..=2 * u64::from(conflicts));
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                Err(error)
                    if failure::is_lost_statement(&error) && !self.whole.swap(true, Ordering::Relaxed) =>
                {
                    tracing::debug!("prepared statements get lost here: they are sent whole from now on");
                }
                outcome => return outcome,
            }
        }
    }

    /// Runs a statement once, in one round trip, whatever comes of it.
    ///
    /// # Cancel safety
    /// As for [`run`](Wire::run).
    pub(crate) async fn run_once(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let _beat = self.pulse.begin();
        if !self.whole.load(Ordering::Relaxed) {
            let slot = &self.prepared[statement.slot];
            if slot.uses.fetch_add(1, Ordering::Relaxed) >= PREPARE_AFTER {
                let prepare = || self.client.prepare_typed(&statement.text, statement.types);
                let prepared = slot.statement.get_or_try_init(prepare).await?;
                return self.client.query(prepared, parameters).await;
            }
        }
        let text = if self.whole.load(Ordering::Relaxed) { &statement.limited } else { &statement.text };
        self.send_whole(text, statement, parameters).await
    }

    async fn send_whole(
        &self,
        text: &str,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let _beat = self.pulse.begin();
        let typed: Vec<(&(dyn ToSql + Sync), Type)> =
            parameters.iter().copied().zip(statement.types.iter().cloned()).collect();
        self.client.query_typed(text, &typed).await
    }
}

async fn look_around(client: &Client) -> Result<Server> {
    let told = pooler::told_process(client).await;
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&told, Type::INT4)];
    let row = client
        .query_typed(include_str!("../sql/session.sql"), typed)
        .await
        .map_err(|error| failure::of_statement(&error))?;
    let unreadable = |error: &tokio_postgres::Error| Error::new(ErrorKind::Internal, error.to_string());
    let row =
        row.first().ok_or_else(|| Error::new(ErrorKind::Internal, "the server told nothing of itself"))?;
    let process: i32 = row.try_get(0).map_err(|error| unreadable(&error))?;
    let server = Server {
        version: row.try_get(1).map_err(|error| unreadable(&error))?,
        pooled: told != Some(process),
        utf8: row.try_get(2).map_err(|error| unreadable(&error))?,
    };
    // Schemas of the session's own temporary tables have no functions that are found without their name.
    let schemas: Vec<String> = row.try_get(4).map_err(|error| unreadable(&error))?;
    let first = schemas.iter().find(|schema| !schema.starts_with("pg_temp")).map_or("", String::as_str);
    if server.pooled && first != "pg_catalog" {
        let detail =
            format!("search_path names the schema {first} before pg_catalog, and a pooler is in between");
        return Err(Error::new(ErrorKind::Unsupported, detail).advise(
            "leave pg_catalog out of search_path, where it comes first, or connect to the server itself",
        ));
    }
    if server.version < OLDEST {
        let version = server.version / 10_000;
        return Err(Error::new(ErrorKind::Unsupported, format!("the server is PostgreSQL {version}"))
            .advise("use PostgreSQL 12 or later"));
    }
    Ok(server)
}

/// When something last came back, and how much is still out.
#[derive(Debug)]
struct Pulse {
    out: AtomicUsize,
    last: Mutex<Instant>,
}

impl Default for Pulse {
    fn default() -> Self {
        Pulse { out: AtomicUsize::new(0), last: Mutex::new(Instant::now()) }
    }
}

impl Pulse {
    fn begin(&self) -> Beat<'_> {
        if self.out.fetch_add(1, Ordering::SeqCst) == 0 {
            self.touch();
        }
        Beat(self)
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn silent_for(&self) -> Duration {
        if self.out.load(Ordering::SeqCst) == 0 {
            return Duration::ZERO;
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

struct Beat<'a>(&'a Pulse);

impl Drop for Beat<'_> {
    fn drop(&mut self) {
        self.0.touch();
        self.0.out.fetch_sub(1, Ordering::SeqCst);
    }
}
