//! Connecting, and finding out what the deployment can do.

use std::future::Future;
use std::time::Duration;

use distlock_core::store::support::errors;
use distlock_core::{ErrorKind, Result};
use mongodb::Client;
use mongodb::bson::{Document, doc};

use crate::commands::Commands;
use crate::config::{MongoConfig, Names};
use crate::error;
use crate::state::StoreState;
use crate::store::{MongoStore, OPERATOR_TIMEOUT};
use crate::topology::Topology;

/// How long the change stream may occupy a connection without an event: of the store's own client, and of the application's,
/// whose pool may be small.
const OWN_SILENCE: Duration = Duration::from_secs(10);
const SHARED_SILENCE: Duration = Duration::from_millis(500);

/// How long connecting may take beyond the driver's own limit.
const SLACK: Duration = Duration::from_secs(2);

impl MongoStore {
    /// Connects.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for bad names, before anything is sent; [`ErrorKind::Unavailable`] if no server answers
    /// within five seconds (`serverSelectionTimeoutMS` in the URL sets another limit); [`ErrorKind::Denied`] for wrong
    /// credentials; [`ErrorKind::Unsupported`] before MongoDB 4.2.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(config: MongoConfig) -> Result<Self> {
        let location = config.location();
        connect(config).await.map_err(|error| error.on(location))
    }

    /// Uses a client that the application has already, and the names and the retention of `config`. The client's write
    /// concern, read preference and retries have no effect. Its time limits do: a client that waits half a minute for a
    /// server makes a request wait that long, unless the engine's own limit is shorter.
    ///
    /// The store opens no connections of its own. It takes them from the client's pool for the time of a request: one for each
    /// request in flight, and one while the process has waiters on a replica set, for the change stream. The change
    /// stream lets others use its connection at least twice a second, so a pool of one connection works too, slowly. With a small
    /// `maxPoolSize` renewals wait behind requests of the application, so keep some connections free. Shut the locks down before
    /// the client: a client that is shut down is an error for every later request.
    ///
    /// # Errors
    /// As for [`connect`](MongoStore::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn with_client(client: Client, config: MongoConfig) -> Result<Self> {
        let default_database = client.default_database().map(|database| database.name().to_owned());
        let names = config.names(default_database.as_deref())?;
        examine(client, names, None, OPERATOR_TIMEOUT).await
    }
}

async fn connect(config: MongoConfig) -> Result<MongoStore> {
    let names = config.names(config.default_database())?;
    let options = with_timeout(OPERATOR_TIMEOUT, async move {
        config.client_options().await.map_err(|error| error::from_driver(&error))
    })
    .await?;
    let limit = options.server_selection_timeout.unwrap_or(OPERATOR_TIMEOUT).saturating_add(SLACK);
    let hosts: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
    let client = Client::with_options(options).map_err(|error| error::from_driver(&error))?;
    examine(client, names, Some(hosts), limit).await
}

async fn examine(
    client: Client,
    names: Names,
    hosts: Option<Vec<String>>,
    limit: Duration,
) -> Result<MongoStore> {
    let silence = if hosts.is_some() { OWN_SILENCE } else { SHARED_SILENCE };
    with_timeout(limit, async move {
        let hello = hello(&Commands::new(&client, names.clone(), false)).await?;
        let topology = Topology::read(&hello)?;
        let location = location(&names, hosts.as_deref().unwrap_or_default(), hello.get_str("me").ok());
        let commands = Commands::new(&client, names, topology.has_projection_expressions());
        let state = StoreState::new(commands, topology, silence);
        if let Ok(now) = hello.get_datetime("localTime") {
            let logical = hello.get_timestamp("operationTime").ok();
            match state.clock.load(&state.commands, now.timestamp_millis(), logical).await {
                // Mutexes work for a user without rights to the second collection.
                Err(error) if error.kind() == ErrorKind::Denied => {
                    tracing::warn!(%error, "only mutexes will work, and their waiters will not be woken");
                }
                loaded => loaded?,
            }
        }
        Ok(MongoStore::new(state, location))
    })
    .await
}

async fn hello(commands: &Commands) -> Result<Document> {
    match commands.run(doc! { "hello": 1 }).await {
        // Servers before 4.4.2 know it by its old name only.
        Err(error) if error.kind() == ErrorKind::Internal => commands.run(doc! { "isMaster": 1 }).await,
        hello => hello,
    }
}

/// Where the locks are, without secrets.
fn location(names: &Names, hosts: &[String], me: Option<&str>) -> String {
    let hosts = match (hosts, me) {
        ([], Some(me)) => me.to_owned(),
        ([], None) => "client".to_owned(),
        (hosts, _) => hosts.join(","),
    };
    format!("mongodb {hosts}/{}.{}", names.database, names.locks)
}

/// Runs a request in a task of its own, with a time limit: the driver's futures are not cancel-safe.
pub(crate) async fn with_timeout<T: Send + 'static>(
    limit: Duration,
    request: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::time::timeout(limit, tokio::spawn(request)).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(_)) => Err(error::task_ended("an operator's request")),
        Err(_) => Err(errors::no_reply(limit)),
    }
}
