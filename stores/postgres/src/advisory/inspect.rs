//! Who holds advisory locks and who waits for them; forced release; what `doctor` says.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use distlock_core::store::{Finding, Holder, Query, Record, Waiter};
use distlock_core::{Error, ErrorKind, Kind, LockId, Resource, Result, WRITER_WEIGHT};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::Inner;
use super::key::AdvisoryKey;
use crate::config::KeyScheme;
use crate::failure;
use crate::names::Key;
use crate::pools;
use crate::statement::{Statement, Tables};
use crate::values::{get, token, weight};

static LOOK: [Type; 2] = [Type::INT8, Type::BOOL];
/// How long sessions may take to end that were told to.
const ENDING: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Statements {
    native: Statement,
    pools: Statement,
}

impl Statements {
    pub(super) fn new(tables: &Tables) -> Self {
        Statements {
            native: Statement::new(5, include_str!("../sql/advisory_inspect.sql"), tables, &LOOK),
            pools: pools::look(7, tables, true),
        }
    }
}

/// One who holds or waits, and the server's process of its session.
struct Seen {
    kind: Option<Kind>,
    name: Option<String>,
    key: AdvisoryKey,
    lock_id: LockId,
    weight: u32,
    capacity: u32,
    token: Option<i64>,
    since: Option<SystemTime>,
    granted: bool,
    process: i32,
}

impl Seen {
    fn read(row: &Row) -> Result<Self> {
        let number: i64 = get(row, "key")?;
        let name: Option<Vec<u8>> = get(row, "name")?;
        let key = match get::<bool>(row, "pair")? {
            false => AdvisoryKey::One(number),
            #[allow(clippy::cast_possible_truncation)] // the two halves of one number
            true => AdvisoryKey::Pair((number >> 32) as i32, number as i32),
        };
        Ok(Seen {
            kind: get::<Option<&str>>(row, "kind")?.and_then(Kind::parse),
            name: name.and_then(|name| String::from_utf8(name).ok()),
            key,
            lock_id: LockId::from_stored(get::<&str>(row, "lock_id")?),
            weight: weight(get(row, "weight")?),
            capacity: get::<Option<i32>>(row, "capacity")?.map_or(1, weight),
            token: get(row, "token")?,
            since: get(row, "since")?,
            granted: get(row, "granted")?,
            process: get(row, "pid")?,
        })
    }

    fn holder(&self) -> Holder {
        Holder::new(self.lock_id.clone(), self.weight)
            .with_token(self.token.map(token))
            .with_acquired_at(self.since)
    }
}

async fn look(store: &Inner, key: Option<AdvisoryKey>) -> Result<Vec<Seen>> {
    let home = store.home().await?;
    let (number, pair) = key.map_or((None, false), |key| (Some(key.parts().0), key.parts().1));
    let rows = home.seat.wire.run(&store.look.native, &[&number, &pair]).await;
    rows.map_err(|error| failure::of_statement(&error))?.iter().map(Seen::read).collect()
}

pub(super) async fn find(store: &Inner, query: &Query) -> Result<Vec<Record>> {
    let mut found = Vec::new();
    let wanted = |kind: Kind| query.kind.is_none_or(|wanted| wanted == kind);
    match &query.name {
        Some(name) => {
            for kind in [Kind::Mutex, Kind::RwLock].into_iter().filter(|kind| wanted(*kind)) {
                let resource = Resource::new(kind, name.as_str())?;
                // With raw keys a name that is no number is nobody's.
                let Ok(key) = AdvisoryKey::of_resource(&resource, &store.config) else { continue };
                let mut seen = look(store, Some(key)).await?;
                // A raw key may be used as either kind; others use it as none.
                seen.retain(|seen| seen.kind.is_none_or(|theirs| theirs == kind));
                if store.config.keys == KeyScheme::Raw && seen.iter().all(|seen| seen.kind.is_none()) {
                    seen.retain(|seen| (seen.weight == 1) == (kind == Kind::Mutex));
                }
                found.extend(record(kind, Some(name.clone()), key, &seen));
            }
        }
        None => {
            let mut groups: BTreeMap<(Kind, String), Vec<Seen>> = BTreeMap::new();
            for seen in look(store, None).await? {
                if let (Some(kind), Some(name)) = (seen.kind, seen.name.clone()) {
                    groups.entry((kind, name)).or_default().push(seen);
                }
            }
            for ((kind, name), seen) in groups {
                if let Some(key) = seen.first().map(|seen| seen.key) {
                    found.extend(record(kind, Some(name), key, &seen));
                }
            }
        }
    }
    for kind in [Kind::Semaphore, Kind::FairQueue].into_iter().filter(|kind| wanted(*kind)) {
        let home = store.home().await?;
        let key = match &query.name {
            Some(name) => Some(Key::of(&Resource::new(kind, name.as_str())?, home.seat.wire.server.utf8).key),
            None => None,
        };
        let prefix = pools::prefix(kind, query);
        let rows = home.seat.wire.run(&store.look.pools, &[&key, &prefix, &true]).await;
        for row in rows.map_err(|error| failure::of_statement(&error))? {
            found.extend(pools::read(&row, true)?);
        }
    }
    found.retain(|record| {
        record.name.as_deref().is_some_and(|name| query.matches(record.kind, name))
            && !(record.holders.is_empty() && record.waiters.is_empty())
    });
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    Ok(found)
}

fn record(kind: Kind, name: Option<String>, key: AdvisoryKey, seen: &[Seen]) -> Option<Record> {
    let capacity = match kind {
        Kind::RwLock => WRITER_WEIGHT,
        _ => seen.iter().map(|seen| seen.capacity).max().unwrap_or(1),
    };
    let holders = seen.iter().filter(|seen| seen.granted).map(Seen::holder).collect();
    let waiters = seen
        .iter()
        .filter(|seen| !seen.granted)
        .map(|seen| Waiter::new(seen.lock_id.clone(), seen.weight))
        .collect();
    Some(
        Record::new(kind, capacity)
            .with_name(name)
            .with_key(key.to_string())
            .with_holders(holders)
            .with_waiters(waiters),
    )
}

/// Ends the sessions that hold it, and waits until they are gone.
pub(super) async fn break_lock(store: &Inner, resource: &Resource) -> Result<Vec<Holder>> {
    let key = AdvisoryKey::of_resource(resource, &store.config)?;
    let mut holding = look(store, Some(key)).await?;
    holding.retain(|seen| seen.granted);
    let home = store.home().await?;
    for seen in &holding {
        let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&seen.process, Type::INT4)];
        let ended =
            home.seat.wire.client().query_typed("SELECT pg_catalog.pg_terminate_backend($1)", typed).await;
        // Our own session may be among them: then there is no answer.
        if let Err(error) = ended.as_ref()
            && error.code().is_some()
        {
            return Err(failure::of_statement(error).doing("end the session of a holder"));
        }
    }
    let begun = Instant::now();
    let gone = |left: &[Seen]| {
        !left.iter().any(|left| left.granted && holding.iter().any(|held| held.process == left.process))
    };
    loop {
        match look(store, Some(key)).await {
            Ok(left) if gone(&left) => return Ok(holding.iter().map(Seen::holder).collect()),
            Err(error) if !error.can_retry() => return Err(error),
            _ if begun.elapsed() > ENDING => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "a session that was told to end is still there",
                ));
            }
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

pub(super) async fn doctor(store: &Inner) -> Result<Vec<Finding>> {
    let home = store.home().await?;
    let tables = store.schema.tables();
    let names = [tables.named("_session"), tables.named("_session_pool")];
    let client = home.seat.wire.client();
    let mut found = crate::doctor::examine(client, &names).await?;
    found.push(Finding::ok("the connection leads to the server itself, so that sessions are ours"));
    if !home.seat.ends_when_silent {
        found.push(Finding::warning(
            "this server does not end sessions of clients that fell silent: a machine that is cut off keeps its locks for \
             as long as TCP takes to notice",
            "use PostgreSQL 14 or later",
        ));
    }
    let token = tables.named("_token");
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&token, Type::TEXT)];
    let rows = client
        .query_typed("SELECT s.seqcache FROM pg_catalog.pg_sequence s WHERE s.seqrelid = pg_catalog.to_regclass($1)::oid", typed)
        .await
        .map_err(|error| failure::of_statement(&error))?;
    if rows.first().is_some_and(|row| row.try_get::<_, i64>(0).unwrap_or(1) != 1) {
        found.push(Finding::warning(
            format!("the sequence {token} hands numbers out in advance: tokens may go back"),
            format!("ALTER SEQUENCE {token} CACHE 1"),
        ));
    }
    Ok(found)
}
