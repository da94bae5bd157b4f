//! Lists holders and waiters, and releases locks by force.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use distlock_core::store::support::errors::{too_few_answers, unexpected_reply};
use distlock_core::store::support::inspect::select;
use distlock_core::store::{Holder, Lease, Query, Record, Waiter};
use distlock_core::{FencingToken, Kind, LockId, Resource, Result};
use redis::Value;

use crate::error;
use crate::keys::{Keys, ParsedKey};
use crate::net::ServerConnection;
use crate::protocol::ScriptItem;
use crate::scripts::{ItemReply, ScriptVerb};
use crate::store::Shared;

/// How many keys one SCAN examines.
const SCAN_COUNT: u32 = 1000;
/// How many resources one call of the script inspects: the reply for a pool with many holders is long.
const RESOURCES_PER_CALL: usize = 64;
/// The kinds that have keys.
const KINDS: [Kind; 4] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue];

/// The resources that a query selects and that have holders or waiters.
pub(crate) async fn records(shared: &Shared, query: &Query) -> Result<Vec<Record>> {
    let resources = match &query.name {
        Some(name) => KINDS
            .into_iter()
            .filter(|kind| query.matches(*kind, name))
            .map(|kind| Resource::new(kind, name.as_str()))
            .collect::<Result<BTreeSet<_>>>()?,
        None => find(shared, query).await?,
    };
    let mut found = Vec::new();
    let (locks, pools): (Vec<_>, Vec<_>) =
        resources.into_iter().partition(|resource| resource.kind() == Kind::Mutex);
    for part in locks.chunks(RESOURCES_PER_CALL).chain(pools.chunks(RESOURCES_PER_CALL)) {
        let items = part.iter().map(|resource| ScriptItem::inspection(&shared.config.keys, resource, 0));
        let replies = call(shared, ScriptVerb::Inspect, &part[0], items.collect()).await;
        for (resource, reply) in part.iter().zip(replies) {
            match parse(resource, &reply?) {
                Ok((mut record, next)) => {
                    add_waiters(shared, resource, &mut record, next).await?;
                    found.extend(Some(record).filter(|record| !is_foreign(&shared.config.keys, record)));
                }
                // A key of another type under our prefix is ignored, unless the query names it.
                Err(error) if query.name.is_some() => return Err(error.about(resource)),
                Err(_) => {}
            }
        }
    }
    Ok(select(found, query))
}

async fn call(
    shared: &Shared,
    verb: ScriptVerb,
    resource: &Resource,
    items: Vec<ScriptItem<'_>>,
) -> Vec<Result<ItemReply>> {
    shared.call(verb, resource.kind().record(), shared.config.response_timeout, items).await
}

async fn call_one(
    shared: &Shared,
    verb: ScriptVerb,
    resource: &Resource,
    item: ScriptItem<'_>,
) -> Result<(Record, Option<u64>)> {
    let reply = call(shared, verb, resource, vec![item]).await.pop().ok_or_else(too_few_answers)??;
    parse(resource, &reply)
}

/// Takes a resource from all its holders.
pub(crate) async fn break_lock(shared: &Shared, resource: &Resource) -> Result<Vec<Holder>> {
    let keys = &shared.config.keys;
    let item = ScriptItem::forced_release(keys, resource);
    let (record, next) = call_one(shared, ScriptVerb::Break, resource, item).await?;
    if let (Some(_), Some(holder)) = (next, record.holders.first()) {
        // One call could not pass all absent waiters. A release under the lock id of the former holder continues until a waiter
        // is notified. If it fails, waiters ask by themselves within a second.
        let lease =
            Lease::new(resource.clone(), holder.lock_id.clone(), FencingToken::new(0), Duration::ZERO);
        let _ = call(shared, ScriptVerb::Release, resource, vec![ScriptItem::release(keys, &lease)]).await;
    }
    Ok(record.holders)
}

/// Adds the waiters from this queue entry on: one call examines a limited number.
async fn add_waiters(
    shared: &Shared,
    resource: &Resource,
    record: &mut Record,
    mut next: Option<u64>,
) -> Result<()> {
    while let Some(from) = next {
        let item = ScriptItem::inspection(&shared.config.keys, resource, from);
        let (rest, then) = call_one(shared, ScriptVerb::Inspect, resource, item).await?;
        record.waiters.extend(rest.waiters);
        // A queue that was emptied meanwhile starts at 0 again.
        next = then.filter(|then| *then > from);
    }
    Ok(())
}

/// With an empty prefix every key of the database looks like a mutex. Keys of other programs are shown only if they expire.
fn is_foreign(keys: &Keys, record: &Record) -> bool {
    let is_foreign = |holder: &Holder| holder.token.is_none() && holder.expires_in.is_none();
    let has_bare_name = keys.prefix().is_empty() && record.kind == Kind::Mutex;
    has_bare_name && record.waiters.is_empty() && record.holders.iter().all(is_foreign)
}

/// The resources that have keys, on all masters.
async fn find(shared: &Shared, query: &Query) -> Result<BTreeSet<Resource>> {
    let mut found = BTreeSet::new();
    for connection in shared.servers.masters().await? {
        let add = |_: Vec<u8>, key: ParsedKey| {
            if query.matches(key.kind, &key.name)
                && let Ok(resource) = Resource::new(key.kind, key.name)
            {
                found.insert(resource);
            }
        };
        scan(&connection, &shared.config.keys, shared.config.response_timeout, add).await?;
    }
    Ok(found)
}

/// Visits all our keys of a server, some perhaps twice. SCAN and not KEYS, which would block the server.
pub(crate) async fn scan(
    connection: &ServerConnection,
    keys: &Keys,
    limit: Duration,
    mut visit: impl FnMut(Vec<u8>, ParsedKey),
) -> Result<()> {
    let pattern = keys.pattern();
    let mut cursor = 0_u64;
    loop {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
        let reply = error::accepted(connection.send(&command, limit).await?)?;
        let (next, page): (u64, Vec<Vec<u8>>) = redis::from_redis_value(reply).map_err(unexpected_reply)?;
        for key in page {
            if let Some(parsed) = keys.parse(&key) {
                visit(key, parsed);
            }
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// The reply of the script, and the queue entry at which the next call must continue.
fn parse(resource: &Resource, reply: &ItemReply) -> Result<(Record, Option<u64>)> {
    let parts = match &reply.values[0] {
        Value::Array(parts) => parts.as_slice(),
        Value::BulkString(text) => return Err(error::refused(&String::from_utf8_lossy(text))),
        other => return Err(unexpected_reply(other)),
    };
    let [Value::Int(capacity), Value::Array(holders), Value::Array(waiters), Value::Int(next)] = parts else {
        return Err(unexpected_reply(parts));
    };
    let holders = holders.chunks(5).map(holder).collect::<Option<Vec<_>>>();
    let waiters = waiters.chunks(2).map(waiter).collect::<Option<Vec<_>>>();
    let (Some(holders), Some(waiters)) = (holders, waiters) else {
        return Err(unexpected_reply(parts));
    };
    let record = Record::new(resource.kind(), u32::try_from(*capacity).unwrap_or(u32::MAX))
        .with_name(resource.name().to_owned())
        .with_holders(holders)
        .with_waiters(waiters);
    Ok((record, u64::try_from(*next).ok()))
}

fn lock_id(value: &Value) -> Option<LockId> {
    match value {
        // Another program's value need not be UTF-8.
        Value::BulkString(bytes) => Some(LockId::from_stored(String::from_utf8_lossy(bytes).as_ref())),
        _ => None,
    }
}

fn holder(values: &[Value]) -> Option<Holder> {
    let [id, Value::Int(token), Value::Int(at), Value::Int(left), Value::Int(weight)] = values else {
        return None;
    };
    let known = |number: &i64| u64::try_from(*number).ok();
    let acquired_at = known(at).and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
    Some(
        Holder::new(lock_id(id)?, u32::try_from(*weight).ok()?)
            .with_token(known(token).map(FencingToken::new))
            .with_acquired_at(acquired_at)
            .with_expires_in(known(left).map(Duration::from_millis)),
    )
}

fn waiter(values: &[Value]) -> Option<Waiter> {
    let [id, Value::Int(weight)] = values else { return None };
    Some(Waiter::new(lock_id(id)?, u32::try_from(*weight).ok()?))
}
