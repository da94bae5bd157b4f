//! Holders and waiters, as the rows say and as their sessions are alive, and ending sessions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use distlock_core::store::support::inspect::select;
use distlock_core::store::{Holder, Query, Record, Waiter};
use distlock_core::{Error, ErrorKind, FencingToken, Kind, LockId, Resource, Result, WRITER_WEIGHT};
use tiberius::Row;

use crate::rows;
use crate::session::{LockSession, is_alive};
use crate::store::StoreState;

/// How long terminated sessions may take to end.
const TERMINATION_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) resource: Vec<u8>,
    pub(crate) id: Vec<u8>,
    pub(crate) session: String,
    pub(crate) hold: Duration,
    pub(crate) is_waiter: bool,
    kind: Option<Kind>,
    name: Option<String>,
    lock_id: String,
    weight: u32,
    capacity: u32,
    token: u64,
    spid: i32,
    age: u64,
}

impl Entry {
    fn read(row: &Row) -> Result<Self> {
        let row = Some(row);
        Ok(Entry {
            resource: rows::bytes(row, "resource")?,
            id: rows::bytes(row, "id")?,
            session: rows::text(row, "session")?,
            hold: Duration::from_micros(rows::number(row, "hold_us")?),
            is_waiter: rows::number::<i64>(row, "slot")? < 0,
            kind: Kind::parse(&rows::text(row, "kind")?),
            name: String::from_utf8(rows::bytes(row, "name")?).ok(),
            lock_id: String::from_utf8_lossy(&rows::bytes(row, "lock_id")?).into_owned(),
            weight: rows::number(row, "weight")?,
            capacity: rows::number(row, "capacity")?,
            token: rows::number(row, "token")?,
            spid: rows::number(row, "spid")?,
            age: u64::try_from(rows::number::<i64>(row, "age")?).unwrap_or_default(),
        })
    }

    fn resource(&self) -> Option<Resource> {
        Resource::new(self.kind?, self.name.as_deref()?).ok()
    }

    /// The holder, with what else its session holds.
    fn holder(&self, entries: &[Entry]) -> Holder {
        let others: BTreeSet<Resource> = entries
            .iter()
            .filter(|other| {
                other.session == self.session && other.resource != self.resource && !other.is_waiter
            })
            .filter_map(Entry::resource)
            .collect();
        Holder::new(LockId::from_stored(self.lock_id.as_str()), self.weight)
            .with_token(FencingToken::new(self.token))
            .with_acquired_at(SystemTime::now().checked_sub(Duration::from_secs(self.age)))
            .with_also_held(others.into_iter().collect())
    }
}

/// Every row, and the sessions that are alive.
pub(crate) async fn entries(
    state: &StoreState,
    observer: &LockSession,
) -> Result<(Vec<Entry>, HashSet<String>)> {
    let rows = observer.query(&state.statements.inspect, Vec::new()).await?;
    let entries: Vec<Entry> = rows.iter().map(Entry::read).collect::<Result<_>>()?;
    let mut sessions: HashMap<&str, bool> = HashMap::new();
    for entry in &entries {
        if !sessions.contains_key(entry.session.as_str()) {
            sessions.insert(&entry.session, is_alive(state, observer, &entry.session).await?);
        }
    }
    let alive = sessions.into_iter().filter(|(_, alive)| *alive).map(|(name, _)| name.to_owned()).collect();
    Ok((entries, alive))
}

pub(crate) async fn inspect(state: &StoreState, query: &Query) -> Result<Vec<Record>> {
    if !state.config.tokens {
        return Err(Error::new(ErrorKind::Unsupported, "holders are not recorded (distlock.tokens=off)")
            .advise("look at sys.dm_tran_locks (resource_type = 'APPLICATION'), or use tokens"));
    }
    let observer = state.sessions.observer().await?;
    let (entries, alive) = entries(state, &observer).await?;
    let all = if query.also_held { &entries[..] } else { &[] };
    let mut groups: BTreeMap<(Kind, String), Vec<&Entry>> = BTreeMap::new();
    for entry in &entries {
        if let (true, Some(kind), Some(name)) =
            (alive.contains(&entry.session), entry.kind, entry.name.clone())
        {
            groups.entry((kind, name)).or_default().push(entry);
        }
    }
    Ok(select(
        groups.into_iter().map(|((kind, name), of_name)| record(kind, name, &of_name, all)).collect(),
        query,
    ))
}

fn record(kind: Kind, name: String, entries: &[&Entry], all: &[Entry]) -> Record {
    let capacity = match kind {
        Kind::RwLock => WRITER_WEIGHT,
        _ => entries.iter().map(|entry| entry.capacity).max().unwrap_or(1),
    };
    // A permit of several has a row for each slot; the head of the queue may have some of them already.
    let mut seen = HashSet::new();
    let waiting: HashSet<&[u8]> =
        entries.iter().filter(|entry| entry.is_waiter).map(|entry| &entry.id[..]).collect();
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for entry in entries {
        if entry.is_waiter {
            waiters.push((entry.age, Waiter::new(LockId::from_stored(entry.lock_id.as_str()), entry.weight)));
        } else if !waiting.contains(&entry.id[..]) && seen.insert(&entry.id) {
            holders.push(entry.holder(all));
        }
    }
    waiters.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
    Record::new(kind, capacity)
        .with_name(name)
        .with_holders(holders)
        .with_waiters(waiters.into_iter().map(|(_, waiter)| waiter).collect())
}

/// Ends the sessions that hold a resource.
pub(crate) async fn break_lock(state: &StoreState, resource: &Resource) -> Result<Vec<Holder>> {
    if !state.config.tokens {
        return Err(Error::new(ErrorKind::Unsupported, "holders are not recorded (distlock.tokens=off)")
            .about(resource)
            .advise("find the session in sys.dm_tran_locks (resource_type = 'APPLICATION') and KILL it"));
    }
    let session = state.sessions.observer().await?;
    let observer = &session;
    let (entries, alive) = entries(state, observer).await?;
    let of_resource = |entry: &&Entry| {
        entry.kind == Some(resource.kind()) && entry.name.as_deref() == Some(resource.name())
    };
    let held: Vec<&Entry> = entries
        .iter()
        .filter(of_resource)
        .filter(|entry| !entry.is_waiter && alive.contains(&entry.session))
        .collect();
    let sessions: HashMap<&str, i32> =
        held.iter().map(|entry| (entry.session.as_str(), entry.spid)).collect();
    for (session, spid) in &sessions {
        // The number may be another session's by now.
        if !is_alive(state, observer, session).await? {
            continue;
        }
        let kill = format!("KILL {spid}").into();
        if let Err(failure) = observer.query(&kill, Vec::new()).await
            // Otherwise it ends by itself, and its locks with it.
            && !failure.error.to_string().contains("not an active process ID")
            && is_alive(state, observer, session).await?
        {
            let what = format!("the session {spid} that holds it cannot be ended: {}", failure.error);
            return Err(Error::new(ErrorKind::Denied, what).about(resource).advise(
                "use a login with the right ALTER ANY CONNECTION (Azure SQL: KILL DATABASE CONNECTION)",
            ));
        }
    }
    let begun = Instant::now();
    for session in sessions.keys() {
        while is_alive(state, observer, session).await? {
            if begun.elapsed() > TERMINATION_LIMIT {
                return Err(Error::new(ErrorKind::Unavailable, "a session that was killed has not ended")
                    .about(resource)
                    .advise("look at its state: KILL … WITH STATUSONLY"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    let mut seen = HashSet::new();
    let holders =
        held.into_iter().filter(|entry| seen.insert(&entry.id)).map(|entry| entry.holder(&entries)).collect();
    Ok(holders)
}
