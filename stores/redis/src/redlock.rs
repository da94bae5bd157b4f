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
use crate::url::{self, database_of, hosts_of, of_one};

const NODE_TIMEOUT: &str = "node_timeout";
const MIN_VALIDITY: &str = "min_validity";
const REPAIR: &str = "repair";

/// A node that says nothing for this long is connected to anew. Each attempt does without it far sooner.
const NODE_SILENT: Duration = Duration::from_secs(1);

/// Which servers make up a Redlock, and how they are asked.
///
/// ```
/// use std::time::Duration;
/// use distlock_core::quorum::QuorumOptions;
/// use distlock_redis::RedlockConfig;
///
/// # fn main() -> distlock_core::Result<()> {
/// let config = RedlockConfig::parse("redlock://10.0.0.1,10.0.0.2,10.0.0.3")?
///     .options(QuorumOptions::new().node_timeout(Duration::from_millis(100))?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedlockConfig {
    pub(crate) nodes: Vec<RedisConfig>,
    options: QuorumOptions,
}

impl RedlockConfig {
    /// These servers, each of its own: no replicas of one another, on machines that do not fail together.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if there is none.
    pub fn new(nodes: Vec<RedisConfig>) -> Result<Self> {
        if nodes.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "a Redlock has no servers")
                .doing("read the Redis options")
                .advise("give three or five"));
        }
        let mut nodes = nodes;
        for node in &mut nodes {
            // A node is one voice: what it grants on its own is no grant, and each would grant to somebody else.
            node.grants_on_release = false;
        }
        Ok(RedlockConfig { nodes, options: QuorumOptions::new() })
    }

    /// How the servers are asked.
    #[must_use]
    pub fn options(mut self, options: QuorumOptions) -> Self {
        self.options = options;
        self
    }

    /// What a URL says: `redlock://h1:p,h2:p,h3:p[/db]`, or `redlocks://` for secure connections, with the
    /// parameters of every Redis URL for all servers, and `distlock.node_timeout=50ms`,
    /// `distlock.min_validity=10ms` and `distlock.repair=on` (or `off`) of the quorum.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for anything that is wrong with it.
    pub fn parse(url: &str) -> Result<Self> {
        RedlockConfig::from_url(StoreUrl::parse(url)?)
    }

    /// What a URL that was split already says.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for anything that is wrong with it.
    pub fn from_url(mut url: StoreUrl) -> Result<Self> {
        url.accept(&["redlock", "redlocks"])?;
        let mut options = QuorumOptions::new();
        if let Some(timeout) = url.take_duration(NODE_TIMEOUT)? {
            let wanted = "a time from 1ms to 1m";
            options = options.node_timeout(timeout).map_err(|_| url.refuse_value(NODE_TIMEOUT, wanted))?;
        }
        if let Some(validity) = url.take_duration(MIN_VALIDITY)? {
            options = options.min_validity(validity);
        }
        if let Some(repair) = url.take_switch(REPAIR)? {
            options = options.repair(repair);
        }
        let database = database_of(&url, &url.path()?)?;
        let mut nodes = Vec::new();
        let mut left = url.clone();
        for (credentials, address) in hosts_of(&url)? {
            let node = of_one(&url, address, credentials)?;
            let node =
                node.database(database)?.response_timeout(NODE_SILENT)?.connect_timeout(NODE_SILENT)?;
            left = url.clone();
            nodes.push(node.with_parameters(&mut left)?);
        }
        let known: Vec<&str> =
            url::KNOWN.iter().copied().chain([NODE_TIMEOUT, MIN_VALIDITY, REPAIR]).collect();
        left.refuse_unknown(&known)?;
        left.refuse_unknown_driver(&[])?;
        Ok(RedlockConfig::new(nodes)?.options(options))
    }

    /// The quorum, which connects to its servers when it is first used.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for certificates that cannot be read.
    pub fn build(self) -> Result<Quorum> {
        let (quorum, _) = self.assemble()?;
        Ok(quorum)
    }

    /// The quorum, connected to a majority of its servers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Denied`] if fewer than a majority let us in.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Quorum> {
        let (quorum, stores) = self.assemble()?;
        let count = stores.len();
        if count < 3 {
            tracing::warn!(
                servers = count,
                "a Redlock of fewer than three servers cannot do without any of them"
            );
        }
        let answers = join_all(stores.iter().map(|store| store.0.fleet.connect())).await;
        let failed: Vec<Error> = answers.into_iter().filter_map(Result::err).collect();
        let connected = count - failed.len();
        if connected > count / 2 {
            return Ok(quorum);
        }
        match failed.into_iter().next() {
            None => Ok(quorum),
            Some(first) => Err(Error::new(
                first.kind(),
                format!(
                    "{connected} of {count} servers let us in, and a majority is needed; one said: {first}"
                ),
            )
            .doing("connect")
            .advise("bring the others back")),
        }
    }

    fn assemble(self) -> Result<(Quorum, Vec<RedisStore>)> {
        let stores = self.nodes.into_iter().map(RedisStore::new).collect::<Result<Vec<_>>>()?;
        let nodes = stores.iter().map(|store| Arc::new(store.clone()) as Arc<dyn LeaseStore>).collect();
        Ok((Quorum::with_options(nodes, self.options)?, stores))
    }
}

impl fmt::Debug for RedlockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockConfig").field("nodes", &self.nodes).field("options", &self.options).finish()
    }
}
