//! The holders of advisory locks and permits, and their waiters.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use distlock_core::store::support::inspect::select;
use distlock_core::store::{Holder, Query, Record, Waiter};
use distlock_core::{Kind, LockId, Resource, Result, WRITER_WEIGHT};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::key::AdvisoryKey;
use super::pool::session_lock;
use super::shared_session::SharedSession;
use super::store::StoreState;
use crate::config::KeyScheme;
use crate::pool_rows;
use crate::statement::Request;
use crate::tables::PoolTable;
use crate::values::{column, to_token, to_weight};

/// How long `inspect` waits for the rows of holders.
const ROWS_LIMIT: Duration = Duration::from_secs(1);
/// The interval in which it looks for them.
const ROWS_INTERVAL: Duration = Duration::from_millis(5);

/// A holder or a waiter of an advisory lock, and the server process of its session.
pub(super) struct LockEntry {
    kind: Option<Kind>,
    name: Option<String>,
    key: AdvisoryKey,
    lock_id: LockId,
    weight: u32,
    capacity: u32,
    token: Option<i64>,
    since: Option<SystemTime>,
    pub(super) granted: bool,
    pub(super) pid: i32,
    /// The lock that its session holds for as long as it lives; `None` for other programs.
    session: Option<i64>,
}

impl LockEntry {
    fn read(row: &Row) -> Result<Self> {
        let number: i64 = column(row, "key")?;
        let name: Option<Vec<u8>> = column(row, "name")?;
        let key = match column::<bool>(row, "pair")? {
            false => AdvisoryKey::One(number),
            #[allow(clippy::cast_possible_truncation)] // the two halves of one number
            true => AdvisoryKey::Pair((number >> 32) as i32, number as i32),
        };
        Ok(LockEntry {
            kind: column::<Option<&str>>(row, "kind")?.and_then(Kind::parse),
            name: name.and_then(|name| String::from_utf8(name).ok()),
            key,
            lock_id: LockId::from_stored(column::<&str>(row, "lock_id")?),
            weight: to_weight(column(row, "weight")?),
            capacity: column::<Option<i32>>(row, "capacity")?.map_or(1, to_weight),
            token: column(row, "token")?,
            since: column(row, "since")?,
            granted: column(row, "granted")?,
            pid: column(row, "pid")?,
            session: column(row, "session")?,
        })
    }

    fn holder(&self) -> Holder {
        Holder::new(self.lock_id.clone(), self.weight)
            .with_token(self.token.map(to_token))
            .with_acquired_at(self.since)
    }
}

/// The holders and waiters of all locks, or of one.
pub(super) async fn lock_entries(state: &StoreState, key: Option<AdvisoryKey>) -> Result<Vec<LockEntry>> {
    let shared = state.shared().await?;
    let (number, pair) = key.map_or((None, false), |key| (Some(key.parts().0), key.parts().1));
    until_rows_are_written(state, &shared, number, pair).await?;
    let rows = shared.session.connection.query(&Request::new(&state.lock.inspect, &[&number, &pair])).await;
    rows?.iter().map(LockEntry::read).collect()
}

/// The holders of a resource, with the locks and permits that their sessions hold beside it.
pub(super) async fn holders_with_others(
    state: &StoreState,
    resource: &Resource,
    entries: &[LockEntry],
) -> Result<Vec<Holder>> {
    let mut held: Vec<(i32, Resource)> = Vec::new();
    if entries.iter().any(|entry| entry.granted) {
        for other in lock_entries(state, None).await?.iter().filter(|other| other.granted) {
            let named = other.kind.zip(other.name.as_deref());
            held.extend(named.and_then(|(kind, name)| Some((other.pid, Resource::new(kind, name).ok()?))));
        }
        let shared = state.shared().await?;
        let prefix = pool_rows::key_and_prefix(&Query::default(), Kind::Semaphore, true)?.1;
        let connection = &shared.session.connection;
        for row in connection.query(&Request::new(&state.pool.inspect, &[&None::<String>, &prefix])).await? {
            let Some(Record { kind, name: Some(name), .. }) = pool_rows::record(&row, PoolTable::Sessions)?
            else {
                continue;
            };
            let sessions: Vec<i64> =
                pool_rows::channels(&row)?.iter().filter_map(|channel| session_lock(channel)).collect();
            for entry in
                entries.iter().filter(|entry| entry.session.is_some_and(|own| sessions.contains(&own)))
            {
                held.push((entry.pid, Resource::new(kind, name.as_str())?));
            }
        }
    }
    held.sort();
    held.dedup();
    let holder = |entry: &LockEntry| {
        let others = held.iter().filter(|(pid, other)| *pid == entry.pid && other != resource);
        entry.holder().with_also_held(others.map(|(_, other)| other.clone()).collect())
    };
    Ok(entries.iter().filter(|entry| entry.granted).map(holder).collect())
}

/// Waits until the locks that are held now have their rows, or are released. A client that is stalled writes none: its locks are
/// shown like those of other programs.
async fn until_rows_are_written(
    state: &StoreState,
    shared: &SharedSession,
    key: Option<i64>,
    pair: bool,
) -> Result<()> {
    type Lock = (i32, i64, bool);
    let started = Instant::now();
    let mut first: Option<HashSet<Lock>> = None;
    loop {
        let request: [&(dyn ToSql + Sync); 2] = [&key, &pair];
        let rows = shared.session.connection.query(&Request::new(&state.lock.without_row, &request)).await?;
        let read = |row: &Row| -> Result<Lock> {
            Ok((column(row, "pid")?, column(row, "key")?, column(row, "pair")?))
        };
        let now: HashSet<Lock> = rows.iter().map(read).collect::<Result<_>>()?;
        let left: HashSet<Lock> = first.take().map_or(now.clone(), |first| &first & &now);
        // Where all locks are asked for, one of each session is its session lock.
        let sessions: HashSet<i32> = left.iter().map(|(pid, ..)| *pid).collect();
        let never = if key.is_some() { 0 } else { sessions.len() };
        if left.len() <= never || started.elapsed() > ROWS_LIMIT {
            return Ok(());
        }
        first = Some(left);
        tokio::time::sleep(ROWS_INTERVAL).await;
    }
}

pub(super) async fn records(state: &StoreState, query: &Query) -> Result<Vec<Record>> {
    let mut records = match &query.name {
        Some(name) => named_locks(state, query, name).await?,
        None => all_locks(state).await?,
    };
    for kind in [Kind::Semaphore, Kind::FairQueue] {
        if query.kind.is_some_and(|wanted| wanted != kind) {
            continue;
        }
        let shared = state.shared().await?;
        let connection = &shared.session.connection;
        let (key, prefix) = pool_rows::key_and_prefix(query, kind, connection.server.utf8)?;
        for row in connection.query(&Request::new(&state.pool.inspect, &[&key, &prefix])).await? {
            records.extend(pool_rows::record(&row, PoolTable::Sessions)?);
        }
    }
    Ok(select(records, query))
}

/// The advisory locks of one name.
async fn named_locks(state: &StoreState, query: &Query, name: &str) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for kind in [Kind::Mutex, Kind::RwLock] {
        if query.kind.is_some_and(|wanted| wanted != kind) {
            continue;
        }
        let resource = Resource::new(kind, name)?;
        // With raw keys a name that is no number names no lock.
        let Ok(key) = AdvisoryKey::of_resource(&resource, &state.config) else { continue };
        let mut entries = lock_entries(state, Some(key)).await?;
        // A raw key may be used as either kind; other programs use it as none.
        entries.retain(|entry| entry.kind.is_none_or(|theirs| theirs == kind));
        if state.config.keys == KeyScheme::Raw && entries.iter().all(|entry| entry.kind.is_none()) {
            entries.retain(|entry| (entry.weight == 1) == (kind == Kind::Mutex));
        }
        let record = record(kind, name.to_owned(), key, &entries);
        records.push(match query.also_held {
            true => record.with_holders(holders_with_others(state, &resource, &entries).await?),
            false => record,
        });
    }
    Ok(records)
}

/// All advisory locks that this library holds.
async fn all_locks(state: &StoreState) -> Result<Vec<Record>> {
    let mut groups: BTreeMap<(Kind, String), Vec<LockEntry>> = BTreeMap::new();
    for entry in lock_entries(state, None).await? {
        if let (Some(kind), Some(name)) = (entry.kind, entry.name.clone()) {
            groups.entry((kind, name)).or_default().push(entry);
        }
    }
    let record_of = |((kind, name), entries): ((Kind, String), Vec<LockEntry>)| {
        let key = entries.first()?.key;
        Some(record(kind, name, key, &entries))
    };
    Ok(groups.into_iter().filter_map(record_of).collect())
}

fn record(kind: Kind, name: String, key: AdvisoryKey, entries: &[LockEntry]) -> Record {
    let capacity = match kind {
        Kind::RwLock => WRITER_WEIGHT,
        _ => entries.iter().map(|entry| entry.capacity).max().unwrap_or(1),
    };
    let (holders, waiters): (Vec<&LockEntry>, Vec<&LockEntry>) =
        entries.iter().partition(|entry| entry.granted);
    let waiter = |entry: &LockEntry| Waiter::new(entry.lock_id.clone(), entry.weight);
    Record::new(kind, capacity)
        .with_name(name)
        .with_key(key.to_string())
        .with_holders(holders.into_iter().map(LockEntry::holder).collect())
        .with_waiters(waiters.into_iter().map(waiter).collect())
}
