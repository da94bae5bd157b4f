//! Redlock: the core's quorum over independent Redis servers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::{LeaseStore, StoreUrl};
use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::join_all;

use crate::config::RedisConfig;
use crate::store::RedisStore;

/// After this long without a reply the connection to a server is replaced. An attempt does without that server far sooner.
const NODE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The servers of a Redlock and the options of its quorum.
///
/// ```
/// use std::time::Duration;
/// use distlock_core::{quorum::QuorumOptions, store::StoreUrl};
/// use distlock_redis::RedlockConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let url = StoreUrl::parse("redlock://10.0.0.1,10.0.0.2,10.0.0.3")?;
/// let config = RedlockConfig::from_url(&url)?
///     .options(QuorumOptions::new().node_timeout(Duration::from_millis(100))?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedlockConfig {
    pub(crate) nodes: Vec<RedisConfig>,
    options: QuorumOptions,
}

impl RedlockConfig {
    /// A quorum of these servers. They must be independent: no replicas of one another, on machines that do not fail together.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if there is none.
    pub fn new(mut nodes: Vec<RedisConfig>) -> Result<Self> {
        if nodes.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "a Redlock has no servers")
                .doing("read the Redis options")
                .advise("give three or five"));
        }
        for node in &mut nodes {
            // The grant of one node is no grant of the quorum, and each node would grant to another waiter.
            node.grants_on_release = false;
        }
        Ok(RedlockConfig { nodes, options: QuorumOptions::new() })
    }

    /// The servers and options in a URL: `redlock://h1:p,h2:p,h3:p[/db]`, or `redlocks://` for TLS, with the options of every Redis
    /// URL for all servers, and `distlock.node_timeout`, `distlock.min_validity` and `distlock.repair` for the quorum.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an invalid URL or option.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut url = url.clone();
        url.accept(&["redlock", "redlocks"])?;
        let mut options = QuorumOptions::new();
        if let Some(timeout) = url.take_duration("node_timeout")? {
            let wanted = "a duration from 1ms to 1m";
            options = options.node_timeout(timeout).map_err(|_| url.refuse_value("node_timeout", wanted))?;
        }
        if let Some(validity) = url.take_duration("min_validity")? {
            options = options.min_validity(validity);
        }
        if let Some(repair) = url.take_switch("repair")? {
            options = options.repair(repair);
        }
        let nodes = RedisConfig::nodes_from_url(&url, |node| {
            node.response_timeout(NODE_RESPONSE_TIMEOUT)?.connect_timeout(NODE_RESPONSE_TIMEOUT)
        })?;
        Ok(RedlockConfig::new(nodes)?.options(options))
    }

    /// Sets the options of the quorum.
    #[must_use]
    pub fn options(mut self, options: QuorumOptions) -> Self {
        self.options = options;
        self
    }

    /// Connects to a majority of the servers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Denied`] if fewer than a majority can be connected to,
    /// [`ErrorKind::InvalidInput`] for unreadable certificates.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Quorum> {
        let stores = self.nodes.into_iter().map(RedisStore::disconnected).collect::<Result<Vec<_>>>()?;
        let nodes = stores.iter().map(|store| Arc::new(store.clone()) as Arc<dyn LeaseStore>).collect();
        let quorum = Quorum::with_options(nodes, self.options)?;
        let count = stores.len();
        if count < 3 {
            tracing::warn!(
                servers = count,
                "a Redlock of fewer than three servers tolerates no failure of a server"
            );
        }
        let outcomes = join_all(stores.iter().map(|store| store.0.servers.connect())).await;
        let errors: Vec<Error> = outcomes.into_iter().filter_map(Result::err).collect();
        let connected = count - errors.len();
        match errors.into_iter().next() {
            Some(first) if connected <= count / 2 => Err(Error::new(
                first.kind(),
                format!("connected to {connected} of {count} servers, and a majority is needed: {first:#}"),
            )
            .doing("connect")
            .advise("bring the others back")),
            _ => Ok(quorum),
        }
    }
}

impl fmt::Debug for RedlockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockConfig").field("nodes", &self.nodes).field("options", &self.options).finish()
    }
}
