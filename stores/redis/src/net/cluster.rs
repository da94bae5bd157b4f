//! A Redis Cluster: each name on the master of its slot, found again when slots or masters move.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::Value;

use super::dial::Dialer;
use super::fleet::{Answer, Request, answers_of};
use super::link::Reply;
use super::topology::{SlotTable, redirection};
use super::{Link, Live};
use crate::config::Address;
use crate::script::Item;
use crate::trouble;

/// How often one request follows redirections. For a slot to be served it waits as long as it has time.
const ROUNDS: usize = 8;
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Cluster {
    dialer: Dialer,
    seeds: Vec<Address>,
    state: Mutex<State>,
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    table: Arc<SlotTable>,
    /// Counts the tables, so that many who find one wrong ask for a new one once.
    version: u64,
    /// A node of it did not answer.
    doubtful: bool,
    links: HashMap<Address, Arc<Link>>,
}

/// Items of one slot, which go to its master or to where it sent us.
struct Group {
    slot: u16,
    items: Vec<usize>,
    ask: Option<Address>,
}

/// What is to be done with a group that was not answered.
enum Next {
    Follow(Group),
    /// The table is wrong.
    Refresh(Group),
    /// The slot has no master that serves it now.
    Wait(Group, Error),
}

impl Cluster {
    pub(super) fn new(dialer: &Dialer, seeds: &[Address]) -> Result<Self> {
        let cluster = Cluster {
            dialer: dialer.clone(),
            seeds: seeds.to_vec(),
            state: Mutex::default(),
            refreshing: tokio::sync::Mutex::default(),
        };
        for seed in seeds {
            cluster.link(seed)?;
        }
        Ok(cluster)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, address: &Address) -> Result<Arc<Link>> {
        let mut state = self.state();
        if let Some(link) = state.links.get(address) {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(Link::direct(&self.dialer, address)?);
        state.links.insert(address.clone(), Arc::clone(&link));
        Ok(link)
    }

    pub(super) async fn connect(&self) -> Result<()> {
        self.table().await.map(|_| ())
    }

    async fn table(&self) -> Result<(Arc<SlotTable>, u64)> {
        loop {
            let version = {
                let state = self.state();
                if !state.table.masters.is_empty() && !state.doubtful {
                    return Ok((Arc::clone(&state.table), state.version));
                }
                state.version
            };
            self.refresh(version).await?;
        }
    }

    /// Asks the cluster who has which slots, unless that was done since the table of this version.
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
        let mut asked: FuturesUnordered<_> = addresses
            .into_iter()
            .map(|address| async move {
                let table = self.ask_for_slots(&address).await;
                (address, table)
            })
            .collect();
        let mut failure = None;
        while let Some((address, table)) = asked.next().await {
            match table {
                Ok(table) => {
                    drop(asked);
                    self.adopt(table);
                    return Ok(());
                }
                Err(error) => failure = Some(error.on(address.to_string())),
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no node of the cluster is known")))
    }

    async fn ask_for_slots(&self, address: &Address) -> Result<SlotTable> {
        let live = self.link(address)?.live().await?;
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        match live.send(&question, self.dialer.limit).await? {
            Value::ServerError(error) => {
                let text = trouble::text_of(&error);
                if text.contains("cluster support disabled") {
                    return Err(Error::new(ErrorKind::InvalidInput, "the server is not part of a cluster")
                        .advise("connect by redis://"));
                }
                Err(trouble::refused(&text))
            }
            answer => match SlotTable::read(&answer, address) {
                Some(table) if !table.masters.is_empty() => Ok(table),
                Some(_) => Err(Error::new(ErrorKind::Unavailable, "the node knows of no slots yet")),
                None => Err(trouble::nonsense(answer)),
            },
        }
    }

    fn adopt(&self, table: SlotTable) {
        let mut state = self.state();
        // Connections to nodes that are masters no more are closed, except those of the seeds.
        state.links.retain(|address, _| table.masters.contains(address) || self.seeds.contains(address));
        state.table = Arc::new(table);
        state.version += 1;
        state.doubtful = false;
    }

    /// A node said that this slot is elsewhere now.
    fn moved(&self, slot: u16, address: &Address) {
        let mut state = self.state();
        Arc::make_mut(&mut state.table).give(slot, address);
    }

    pub(super) async fn masters(&self) -> Result<Vec<Arc<Live>>> {
        let (table, _) = self.table().await?;
        let mut found = Vec::new();
        for address in &table.masters {
            found.push(self.link(address)?.live().await?);
        }
        Ok(found)
    }

    /// A master to subscribe at: messages reach all nodes. One that is connected already, if there is one.
    pub(super) async fn any_master(&self) -> Result<Arc<Live>> {
        let (table, version) = self.table().await?;
        let mut addresses = table.masters.clone();
        fastrand::shuffle(&mut addresses);
        let links = addresses.iter().map(|address| self.link(address)).collect::<Result<Vec<_>>>()?;
        let (mut ready, rest): (Vec<_>, Vec<_>) = links.into_iter().partition(|link| link.is_connected());
        ready.extend(rest);
        let mut failure = None;
        for link in ready {
            match link.live().await {
                Ok(live) => return Ok(live),
                Err(error) => failure = Some(error),
            }
        }
        self.refresh(version).await?;
        Err(failure
            .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no master of the cluster is known")))
    }

    pub(super) async fn call(&self, request: &Request<'_>, items: &[Item<'_>]) -> Vec<Result<Answer>> {
        let begun = Instant::now();
        let mut answers: Vec<Option<Result<Answer>>> = items.iter().map(|_| None).collect();
        let mut pending = by_slot(items);
        let mut followed = 0;
        loop {
            let (table, version) = match self.table().await {
                Ok(found) => found,
                Err(error) => {
                    fail(&mut answers, pending, &error);
                    break;
                }
            };
            let next = self.round(request, items, &table, pending, &mut answers).await;
            if next.is_empty() {
                break;
            }
            followed += usize::from(next.iter().any(|next| !matches!(next, Next::Wait(..))));
            let last = followed >= ROUNDS || begun.elapsed() >= request.limit;
            let refresh = next.iter().any(|next| !matches!(next, Next::Follow(_)));
            let wait = next.iter().any(|next| matches!(next, Next::Wait(..)));
            pending = Vec::new();
            for next in next {
                match next {
                    Next::Wait(group, error) if last => fail(&mut answers, vec![group], &error),
                    Next::Follow(group) | Next::Refresh(group) if last => {
                        let what = "the slot of this name moves from node to node";
                        fail(&mut answers, vec![group], &Error::new(ErrorKind::Unavailable, what));
                    }
                    Next::Follow(group) | Next::Refresh(group) | Next::Wait(group, _) => pending.push(group),
                }
            }
            if pending.is_empty() {
                break;
            }
            if wait {
                tokio::time::sleep(PAUSE).await;
            }
            if refresh && let Err(error) = self.refresh(version).await {
                fail(&mut answers, pending, &error);
                break;
            }
        }
        let missing = || Err(Error::new(ErrorKind::Internal, "an item was never sent"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
    }

    /// Sends all groups, each node's together, and sorts what came back.
    async fn round(
        &self,
        request: &Request<'_>,
        items: &[Item<'_>],
        table: &SlotTable,
        pending: Vec<Group>,
        answers: &mut [Option<Result<Answer>>],
    ) -> Vec<Next> {
        let mut next = Vec::new();
        let mut by_node: HashMap<(Address, bool), Vec<Group>> = HashMap::new();
        for group in pending {
            let target = match &group.ask {
                Some(address) => Some((address.clone(), true)),
                None => table.master_of(group.slot).map(|address| (address.clone(), false)),
            };
            match target {
                Some(target) => by_node.entry(target).or_default().push(group),
                None => next.push(Next::Wait(group, trouble::refused("CLUSTERDOWN Hash slot not served"))),
            }
        }
        let calls = by_node.into_iter().map(|((address, asking), groups)| async move {
            let sets: Vec<Vec<&Item<'_>>> =
                groups.iter().map(|group| group.items.iter().map(|at| &items[*at]).collect()).collect();
            let outcome = match self.link(&address) {
                Ok(link) => link.call(request, &sets, asking).await,
                Err(error) => Err(error),
            };
            (address, groups, outcome)
        });
        for (address, groups, outcome) in join_all(calls).await {
            match outcome {
                Ok((replies, confirmed)) => {
                    for (group, reply) in groups.into_iter().zip(replies) {
                        if let Some(todo) = self.sort(&address, group, reply, request, confirmed, answers) {
                            next.push(todo);
                        }
                    }
                }
                // Nothing was sent: the node may have been replaced.
                Err(error) if !error.is_outcome_unknown() && error.can_retry() => {
                    next.extend(groups.into_iter().map(|group| {
                        let group = Group { ask: None, ..group };
                        Next::Wait(group, error.clone())
                    }));
                }
                Err(error) => {
                    fail(answers, groups, &error);
                    // Whoever asks next should not meet the same dead node.
                    self.state().doubtful = true;
                }
            }
        }
        next
    }

    fn sort(
        &self,
        address: &Address,
        mut group: Group,
        reply: Reply,
        request: &Request<'_>,
        confirmed: Option<u64>,
        answers: &mut [Option<Result<Answer>>],
    ) -> Option<Next> {
        if let Reply::Refused(text) = &reply {
            let code = text.split_ascii_whitespace().next().unwrap_or_default();
            match (code, redirection(text, address)) {
                ("MOVED", Some((slot, address))) => {
                    self.moved(slot, &address);
                    group.ask = None;
                    return Some(Next::Refresh(group));
                }
                ("ASK", Some((_, address))) => {
                    group.ask = Some(address);
                    return Some(Next::Follow(group));
                }
                ("CLUSTERDOWN" | "TRYAGAIN" | "MASTERDOWN" | "LOADING" | "READONLY", _) => {
                    group.ask = None;
                    return Some(Next::Wait(group, trouble::refused(text)));
                }
                _ => {}
            }
        }
        let count = group.items.len();
        for (at, answer) in group.items.into_iter().zip(answers_of(reply, request, confirmed, count)) {
            answers[at] = Some(answer);
        }
        None
    }
}

fn by_slot(items: &[Item<'_>]) -> Vec<Group> {
    let mut groups: HashMap<u16, Vec<usize>> = HashMap::new();
    for (at, item) in items.iter().enumerate() {
        groups.entry(item.keys.slot).or_default().push(at);
    }
    groups.into_iter().map(|(slot, items)| Group { slot, items, ask: None }).collect()
}

fn fail(answers: &mut [Option<Result<Answer>>], groups: Vec<Group>, error: &Error) {
    for at in groups.into_iter().flat_map(|group| group.items) {
        answers[at] = Some(Err(error.clone()));
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
