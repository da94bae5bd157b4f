//! A Redis Cluster: each name goes to the master of its hash slot, which is found again when slots or masters move.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::Value;

use super::connection::ServerConnection;
use super::servers::ServerHandle;
use super::topology::{SlotTable, redirection};
use crate::config::Address;
use crate::connect::Connector;
use crate::error;
use crate::protocol::ScriptItem;
use crate::scripts::{CallReply, ItemReply, ScriptCall};

/// How often one call follows redirections. For a slot to be served it waits as long as it has time.
const MAX_REDIRECTIONS: usize = 8;
const RETRY_PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Cluster {
    connector: Connector,
    seeds: Vec<Address>,
    state: Mutex<ClusterState>,
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ClusterState {
    table: Arc<SlotTable>,
    /// Counts the tables, so that tasks that find the same table wrong refresh it once.
    version: u64,
    /// A node of the table did not reply.
    suspect: bool,
    servers: HashMap<Address, Arc<ServerHandle>>,
}

/// Items of one hash slot, for its master or for the node that it redirected us to.
struct SlotGroup {
    slot: u16,
    items: Vec<usize>,
    ask: Option<Address>,
}

/// What to do with a group that was not served.
enum Retry {
    /// Follow an ASK redirection.
    Redirected(SlotGroup),
    /// Refresh the slot table first.
    Moved(SlotGroup),
    /// Wait: no master serves the slot now.
    Unserved(SlotGroup, Error),
}

impl Cluster {
    pub(super) fn new(connector: &Connector, seeds: &[Address]) -> Result<Self> {
        let cluster = Cluster {
            connector: connector.clone(),
            seeds: seeds.to_vec(),
            state: Mutex::default(),
            refreshing: tokio::sync::Mutex::default(),
        };
        for seed in seeds {
            cluster.server(seed)?;
        }
        Ok(cluster)
    }

    fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self, address: &Address) -> Result<Arc<ServerHandle>> {
        let mut state = self.state();
        if let Some(server) = state.servers.get(address) {
            return Ok(Arc::clone(server));
        }
        let server = Arc::new(ServerHandle::direct(&self.connector, address)?);
        state.servers.insert(address.clone(), Arc::clone(&server));
        Ok(server)
    }

    pub(super) async fn connect(&self) -> Result<()> {
        self.table().await.map(|_| ())
    }

    async fn table(&self) -> Result<(Arc<SlotTable>, u64)> {
        loop {
            let version = {
                let state = self.state();
                if !state.table.masters.is_empty() && !state.suspect {
                    return Ok((Arc::clone(&state.table), state.version));
                }
                state.version
            };
            self.refresh(version).await?;
        }
    }

    /// Fetches the slot table, unless another task did so since the table of this version.
    async fn refresh(&self, seen: u64) -> Result<()> {
        let _one_at_a_time = self.refreshing.lock().await;
        let mut addresses: Vec<Address> = {
            let state = self.state();
            if state.version != seen {
                return Ok(());
            }
            state.table.masters.clone()
        };
        addresses
            .extend(self.seeds.iter().filter(|seed| !addresses.contains(seed)).cloned().collect::<Vec<_>>());
        let mut replies: FuturesUnordered<_> = addresses
            .into_iter()
            .map(|address| async move {
                let table = self.fetch_slots(&address).await;
                (address, table)
            })
            .collect();
        let mut last_error = None;
        while let Some((address, table)) = replies.next().await {
            match table {
                Ok(table) => {
                    drop(replies);
                    self.adopt(table);
                    return Ok(());
                }
                Err(error) => last_error = Some(error.on(address.to_string())),
            }
        }
        Err(last_error
            .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no node of the cluster is known")))
    }

    async fn fetch_slots(&self, address: &Address) -> Result<SlotTable> {
        let connection = self.server(address)?.connection().await?;
        let mut query = redis::cmd("CLUSTER");
        query.arg("SLOTS");
        match connection.send(&query, self.connector.limit).await? {
            Value::ServerError(refusal) => {
                let text = error::text_of(&refusal);
                if text.contains("cluster support disabled") {
                    return Err(Error::new(ErrorKind::InvalidInput, "the server is not part of a cluster")
                        .advise("connect by redis://"));
                }
                Err(error::refused(&text))
            }
            reply => match SlotTable::parse(&reply, address) {
                Some(table) if !table.masters.is_empty() => Ok(table),
                Some(_) => Err(Error::new(ErrorKind::Unavailable, "the node does not know the slots yet")),
                None => Err(errors::unexpected_reply(reply)),
            },
        }
    }

    fn adopt(&self, table: SlotTable) {
        let mut state = self.state();
        // Closes connections to nodes that are no longer masters, except those to seeds.
        state.servers.retain(|address, _| table.masters.contains(address) || self.seeds.contains(address));
        state.table = Arc::new(table);
        state.version += 1;
        state.suspect = false;
    }

    /// Applies a MOVED redirection.
    fn moved(&self, slot: u16, address: &Address) {
        let mut state = self.state();
        Arc::make_mut(&mut state.table).assign(slot, address);
    }

    pub(super) async fn masters(&self) -> Result<Vec<Arc<ServerConnection>>> {
        let (table, _) = self.table().await?;
        let mut found = Vec::new();
        for address in &table.masters {
            found.push(self.server(address)?.connection().await?);
        }
        Ok(found)
    }

    /// A master to subscribe at, because messages reach all nodes; preferably one that is connected.
    pub(super) async fn any_master(&self) -> Result<Arc<ServerConnection>> {
        let (table, version) = self.table().await?;
        let mut addresses = table.masters.clone();
        fastrand::shuffle(&mut addresses);
        let servers = addresses.iter().map(|address| self.server(address)).collect::<Result<Vec<_>>>()?;
        let (mut ready, rest): (Vec<_>, Vec<_>) =
            servers.into_iter().partition(|server| server.is_connected());
        ready.extend(rest);
        let mut last_error = None;
        for server in ready {
            match server.connection().await {
                Ok(connection) => return Ok(connection),
                Err(error) => last_error = Some(error),
            }
        }
        self.refresh(version).await?;
        Err(last_error
            .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no master of the cluster is known")))
    }

    pub(super) async fn call(
        &self,
        call: &ScriptCall<'_>,
        items: &[ScriptItem<'_>],
    ) -> Vec<Result<ItemReply>> {
        let started = Instant::now();
        let mut replies: Vec<Option<Result<ItemReply>>> = items.iter().map(|_| None).collect();
        let mut pending = by_slot(items);
        let mut redirections = 0;
        loop {
            let (table, version) = match self.table().await {
                Ok(found) => found,
                Err(error) => {
                    fail(&mut replies, pending, &error);
                    break;
                }
            };
            let retries = self.send_groups(call, items, &table, pending, &mut replies).await;
            if retries.is_empty() {
                break;
            }
            redirections += usize::from(retries.iter().any(|retry| !matches!(retry, Retry::Unserved(..))));
            let last = redirections >= MAX_REDIRECTIONS || started.elapsed() >= call.limit;
            let refresh = retries.iter().any(|retry| !matches!(retry, Retry::Redirected(_)));
            let wait = retries.iter().any(|retry| matches!(retry, Retry::Unserved(..)));
            pending = Vec::new();
            for retry in retries {
                match retry {
                    Retry::Unserved(group, error) if last => fail(&mut replies, vec![group], &error),
                    Retry::Redirected(group) | Retry::Moved(group) if last => {
                        let what = "the hash slot of this name is redirected again and again";
                        fail(&mut replies, vec![group], &Error::new(ErrorKind::Unavailable, what));
                    }
                    Retry::Redirected(group) | Retry::Moved(group) | Retry::Unserved(group, _) => {
                        pending.push(group)
                    }
                }
            }
            if pending.is_empty() {
                break;
            }
            if wait {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            if refresh && let Err(error) = self.refresh(version).await {
                fail(&mut replies, pending, &error);
                break;
            }
        }
        let missing = || Err(Error::new(ErrorKind::Internal, "an item was not sent"));
        replies.into_iter().map(|reply| reply.unwrap_or_else(missing)).collect()
    }

    /// Sends the groups, those of one node together, and returns what must be retried.
    async fn send_groups(
        &self,
        call: &ScriptCall<'_>,
        items: &[ScriptItem<'_>],
        table: &SlotTable,
        pending: Vec<SlotGroup>,
        replies: &mut [Option<Result<ItemReply>>],
    ) -> Vec<Retry> {
        let mut retries = Vec::new();
        let mut by_node: HashMap<(Address, bool), Vec<SlotGroup>> = HashMap::new();
        for group in pending {
            let target = match &group.ask {
                Some(address) => Some((address.clone(), true)),
                None => table.master_of(group.slot).map(|address| (address.clone(), false)),
            };
            match target {
                Some(target) => by_node.entry(target).or_default().push(group),
                None => {
                    let error = error::refused("CLUSTERDOWN Hash slot not served");
                    retries.push(Retry::Unserved(group, error));
                }
            }
        }
        let calls = by_node.into_iter().map(|((address, asking), groups)| async move {
            let sets: Vec<Vec<&ScriptItem<'_>>> =
                groups.iter().map(|group| group.items.iter().map(|at| &items[*at]).collect()).collect();
            let outcome = async {
                let connection = self.server(&address)?.connection().await?;
                connection.call(call, &sets, asking).await
            };
            let outcome = outcome.await;
            (address, groups, outcome)
        });
        for (address, groups, outcome) in join_all(calls).await {
            match outcome {
                Ok((group_replies, confirmed)) => {
                    for (group, reply) in groups.into_iter().zip(group_replies) {
                        if let Some(retry) = self.settle(&address, group, reply, call, confirmed, replies) {
                            retries.push(retry);
                        }
                    }
                }
                // Nothing was sent: the node may have been replaced.
                Err(error) if !error.is_outcome_unknown() && error.can_retry() => {
                    retries.extend(groups.into_iter().map(|group| {
                        let group = SlotGroup { ask: None, ..group };
                        Retry::Unserved(group, error.clone())
                    }));
                }
                Err(error) => {
                    fail(replies, groups, &error);
                    // The next call must not go to the same dead node.
                    self.state().suspect = true;
                }
            }
        }
        retries
    }

    /// Stores the replies of a group, or returns how to retry it.
    fn settle(
        &self,
        address: &Address,
        mut group: SlotGroup,
        reply: CallReply,
        call: &ScriptCall<'_>,
        confirmed: Option<u64>,
        replies: &mut [Option<Result<ItemReply>>],
    ) -> Option<Retry> {
        if let CallReply::Refused(text) = &reply {
            let code = text.split_ascii_whitespace().next().unwrap_or_default();
            match (code, redirection(text, address)) {
                ("MOVED", Some((slot, address))) => {
                    self.moved(slot, &address);
                    group.ask = None;
                    return Some(Retry::Moved(group));
                }
                ("ASK", Some((_, address))) => {
                    group.ask = Some(address);
                    return Some(Retry::Redirected(group));
                }
                ("CLUSTERDOWN" | "TRYAGAIN" | "MASTERDOWN" | "LOADING" | "READONLY", _) => {
                    group.ask = None;
                    return Some(Retry::Unserved(group, error::refused(text)));
                }
                _ => {}
            }
        }
        let count = group.items.len();
        for (at, reply) in group.items.into_iter().zip(reply.for_each_item(call, confirmed, count)) {
            replies[at] = Some(reply);
        }
        None
    }
}

fn by_slot(items: &[ScriptItem<'_>]) -> Vec<SlotGroup> {
    let mut groups: HashMap<u16, Vec<usize>> = HashMap::new();
    for (at, item) in items.iter().enumerate() {
        groups.entry(item.keys.slot).or_default().push(at);
    }
    groups.into_iter().map(|(slot, items)| SlotGroup { slot, items, ask: None }).collect()
}

fn fail(replies: &mut [Option<Result<ItemReply>>], groups: Vec<SlotGroup>, error: &Error) {
    for at in groups.into_iter().flat_map(|group| group.items) {
        replies[at] = Some(Err(error.clone()));
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masters = self.state().table.masters.clone();
        f.debug_struct("Cluster")
            .field("seeds", &self.seeds)
            .field("masters", &masters)
            .finish_non_exhaustive()
    }
}
