//! The one connection that all requests of a store share, made again when it ends.

mod pooler;
mod wire;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use distlock_core::{Error, ErrorKind, Result};
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Notification, Row};

pub(crate) use self::wire::{Server, Wire};
use crate::config::PostgresConfig;
use crate::failure;
use crate::schema::Schema;
use crate::statement::{Patience, Statement};

/// How long all of connecting may take: the driver limits the socket's part only.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const LAST_BACKOFF: Duration = Duration::from_secs(1);
/// What is still out on a connection that fell silent gets this long to come back.
const LAST_CHANCE: Duration = Duration::from_secs(10);

/// What our statements need of a session of their own. One plan for all sizes of a batch, by the key and never by
/// a look at the whole table, which may have been small when the plan was made. A limit for rows that another session has
/// locked.
const SETTINGS: &str = "SET lock_timeout = {lock_timeout}; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off;
                        SET default_transaction_isolation = 'read committed'";
/// Ends a statement whose client is gone, from this version on, on systems that can tell.
const CHECKS_CLIENT: i32 = 140_000;
const CHECK_CLIENT: &str = "SET client_connection_check_interval = 1000";

/// A shared connection. Dropping a future of it leaves the connection as good as it was: what was sent is answered,
/// and the answer is thrown away.
#[derive(Debug)]
pub(crate) struct Link {
    config: Arc<PostgresConfig>,
    schema: Schema,
    state: Mutex<State>,
    statements: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    wire: Option<Arc<Wire>>,
    /// One that fell silent and may still answer.
    retired: Weak<Wire>,
    trouble: Option<Trouble>,
}

/// Connecting failed, and is not tried again for a moment.
#[derive(Debug)]
struct Trouble {
    until: Instant,
    backoff: Duration,
    error: Error,
}

impl Link {
    /// Connects, and makes sure that the tables are there.
    pub(crate) async fn open(config: Arc<PostgresConfig>, schema: Schema) -> Result<Self> {
        let link = Link { config, schema, state: Mutex::default(), statements: AtomicU64::new(0) };
        let wire = link.wire().await?;
        link.schema.ensure(wire.client()).await?;
        Ok(link)
    }

    pub(crate) fn config(&self) -> &PostgresConfig {
        &self.config
    }

    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// How many statements were sent.
    pub(crate) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// The connection, made now if there is none. Those who come meanwhile wait for the same one.
    pub(crate) async fn wire(&self) -> Result<Arc<Wire>> {
        let mut state = self.state.lock().await;
        if let Some(wire) = state.wire.take_if(|wire| !wire.is_open()) {
            drop(wire);
        }
        if let Some(wire) = &state.wire {
            let spare = state.retired.upgrade().is_some_and(|retired| retired.is_open());
            if !wire.is_silent() || spare {
                return Ok(Arc::clone(wire));
            }
            // Half-open, or the server is stuck: others shall not wait for that.
            state.retired = Arc::downgrade(wire);
            let stuck = state.retired.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LAST_CHANCE).await;
                if let Some(wire) = stuck.upgrade() {
                    wire.cut();
                }
            });
            state.wire = None;
        }
        if let Some(trouble) = state.trouble.as_ref().filter(|trouble| Instant::now() < trouble.until) {
            return Err(trouble.error.clone());
        }
        match open_wire(&self.config, None).await {
            Ok(wire) => {
                let wire = Arc::new(wire);
                state.trouble = None;
                state.wire = Some(Arc::clone(&wire));
                Ok(wire)
            }
            Err(error) => {
                let backoff =
                    state.trouble.as_ref().map_or(FIRST_BACKOFF, |t| (t.backoff * 2).min(LAST_BACKOFF));
                let until = Instant::now() + backoff.mul_f64(0.5 + fastrand::f64());
                state.trouble = Some(Trouble { until, backoff, error: error.clone() });
                Err(error)
            }
        }
    }

    /// A connection beside the shared one, for messages that the server sends unasked.
    pub(crate) async fn listener(&self, mail: mpsc::UnboundedSender<Notification>) -> Result<Wire> {
        open_wire(&self.config, Some(mail)).await
    }

    /// Runs a statement, in one round trip.
    ///
    /// # Cancel safety
    /// Dropping it may leave the statement carried out or not.
    pub(crate) async fn run(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        self.run_with(statement, parameters, Patience::Usual).await
    }

    /// The same, for rows that another session may have locked.
    ///
    /// # Cancel safety
    /// As for [`run`](Link::run).
    pub(crate) async fn run_with(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
        patience: Patience,
    ) -> Result<Vec<Row>> {
        let (mut created, mut idle) = (false, false);
        loop {
            let wire = self.wire().await?;
            self.statements.fetch_add(1, Ordering::Relaxed);
            let error = match wire.run_with(statement, parameters, patience).await {
                Ok(rows) => return Ok(rows),
                Err(error) => error,
            };
            if failure::is_missing_table(&error) && !created {
                created = true;
                self.schema.ensure(wire.client()).await?;
                continue;
            }
            if wire.was_idle(&error) && !idle {
                // Sent while the server was closing the session. Another one gets it.
                idle = true;
                self.forget(&wire).await;
                continue;
            }
            if failure::is_read_only(&error) {
                // Somebody else may be the primary by now. What is under way on this connection comes to its end.
                self.forget(&wire).await;
            }
            return Err(failure::of_statement(&error));
        }
    }

    /// Nothing new is sent on this connection.
    async fn forget(&self, wire: &Arc<Wire>) {
        self.state.lock().await.wire.take_if(|current| Arc::ptr_eq(current, wire));
    }
}

async fn open_wire(
    config: &PostgresConfig,
    mail: Option<mpsc::UnboundedSender<Notification>>,
) -> Result<Wire> {
    let opening = async {
        let wire = Wire::open(config, mail).await?;
        let milliseconds = Patience::Usual.milliseconds().to_string();
        let settings = SETTINGS.replace("{lock_timeout}", &milliseconds);
        if wire.server.version < CHECKS_CLIENT {
            wire.set(&settings).await?;
        } else if let Err(error) = wire.set(&format!("{settings}; {CHECK_CLIENT}")).await {
            tracing::debug!(%error, "statements of clients that died end late on this server");
            wire.set(&settings).await?;
        }
        Ok(wire)
    };
    match tokio::time::timeout(CONNECT_LIMIT, opening).await {
        Ok(opened) => opened,
        Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("no session within {CONNECT_LIMIT:?}"))
            .advise("check that the server runs and can be reached from here")),
    }
}
