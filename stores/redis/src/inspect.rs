//! What is held and waited for, and taking it away.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use distlock_core::store::{Holder, Lease, Query, Record, Waiter};
use distlock_core::{FencingToken, Kind, LockId, Resource, Result};
use redis::Value;

use crate::net::{Answer, Live};
use crate::script::Item;
use crate::store::Inner;
use crate::trouble;
use crate::verbs::{KINDS, break_item, look_item, release_item};

/// How many keys one SCAN looks at.
const SCAN_COUNT: u32 = 1000;
/// How many resources one call of the script looks at: a pool with many holders is much to tell.
const LOOK_AT_ONCE: usize = 64;

/// What is held or waited for now.
pub(crate) async fn records(inner: &Inner, query: &Query) -> Result<Vec<Record>> {
    let resources = match &query.name {
        Some(name) => KINDS
            .into_iter()
            .filter(|kind| query.matches(*kind, name))
            .map(|kind| Resource::new(kind, name.as_str()))
            .collect::<Result<Vec<_>>>()?,
        None => find(inner, query).await?,
    };
    let mut found = Vec::new();
    for chunk in resources.chunks(LOOK_AT_ONCE) {
        let items: Vec<Item<'_>> =
            chunk.iter().map(|resource| look_item(&inner.config.keys, resource, 0)).collect();
        let request = inner.request(&inner.scripts.inspect, inner.config.response_timeout);
        for (resource, answer) in chunk.iter().zip(inner.fleet.call(&request, &items).await) {
            match read(resource, &answer?) {
                Ok((mut record, next)) => {
                    more_waiters(inner, resource, &mut record, next).await?;
                    found.extend(Some(record).filter(|record| is_of_use(inner, record)));
                }
                // Under our prefix, but a key of another type: none of ours, unless it was asked for by name.
                Err(error) if query.name.is_some() => return Err(error.about(resource)),
                Err(_) => {}
            }
        }
    }
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    Ok(found)
}

/// Takes a resource from all its holders.
pub(crate) async fn take(inner: &Inner, resource: &Resource) -> Result<Vec<Holder>> {
    let items = [break_item(&inner.config.keys, resource)];
    let request = inner.request(&inner.scripts.inspect, inner.config.response_timeout);
    let Some(answer) = inner.fleet.call(&request, &items).await.pop() else {
        return Err(trouble::nonsense("nothing"));
    };
    let (record, next) = read(resource, &answer?)?;
    if let (Some(_), Some(holder)) = (next, record.holders.first()) {
        // More gone waiters than one call looks at: a release continues until one is told. Nothing is left of this
        // holder that could be released.
        let lease =
            Lease::new(resource.clone(), holder.lock_id.clone(), FencingToken::new(0), Duration::ZERO)
                .with_weight(holder.weight)
                .with_capacity(record.capacity);
        let request = inner.request(&inner.scripts.release, inner.config.response_timeout);
        // What fails here costs time, not the lock: waiters ask once a second.
        let _ = inner.call(request, vec![release_item(&inner.config.keys, &lease)]).await;
    }
    Ok(record.holders)
}

/// One call looks at so many waiters only: asks for the rest.
async fn more_waiters(
    inner: &Inner,
    resource: &Resource,
    record: &mut Record,
    mut next: Option<u64>,
) -> Result<()> {
    while let Some(from) = next {
        let items = [look_item(&inner.config.keys, resource, from)];
        let request = inner.request(&inner.scripts.inspect, inner.config.response_timeout);
        let Some(answer) = inner.fleet.call(&request, &items).await.pop() else { return Ok(()) };
        let (rest, then) = read(resource, &answer?)?;
        record.waiters.extend(rest.waiters);
        // A queue that was emptied meanwhile counts from the start again.
        next = then.filter(|then| *then > from);
    }
    Ok(())
}

/// With an empty prefix every key of the database looks like a mutex; of those that are not ours, only such as
/// expire are shown.
fn is_of_use(inner: &Inner, record: &Record) -> bool {
    let foreign = |holder: &Holder| holder.token.is_none() && holder.expires_in.is_none();
    let bare = inner.config.keys.prefix().is_empty() && record.kind == Kind::Mutex;
    let somebody = !record.holders.is_empty() || !record.waiters.is_empty();
    somebody && !(bare && record.waiters.is_empty() && record.holders.iter().all(foreign))
}

/// The resources that have keys, on all masters.
async fn find(inner: &Inner, query: &Query) -> Result<Vec<Resource>> {
    let mut found = BTreeSet::new();
    for live in inner.fleet.masters().await? {
        scan(inner, &live, query, &mut found).await?;
    }
    Ok(found.into_iter().collect())
}

/// SCAN and not KEYS: it never holds the server up. It may show a key twice.
async fn scan(inner: &Inner, live: &Live, query: &Query, found: &mut BTreeSet<Resource>) -> Result<()> {
    let keys = &inner.config.keys;
    let pattern = keys.pattern();
    let mut cursor = 0_u64;
    loop {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
        let answer = live.send(&command, inner.config.response_timeout).await?;
        if let Value::ServerError(error) = &answer {
            return Err(trouble::refused(&trouble::text_of(error)));
        }
        let (next, page): (u64, Vec<Vec<u8>>) = redis::from_redis_value(answer).map_err(trouble::nonsense)?;
        for key in page {
            if let Some(key) = keys.parse(&key)
                && query.matches(key.kind, &key.name)
                && let Ok(resource) = Resource::new(key.kind, key.name)
            {
                found.insert(resource);
            }
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// What the script found, and the number of the waiter from which on it has to look again.
fn read(resource: &Resource, answer: &Answer) -> Result<(Record, Option<u64>)> {
    let parts = match &answer.values[0] {
        Value::Array(parts) => parts.as_slice(),
        Value::BulkString(text) => return Err(trouble::refused(&String::from_utf8_lossy(text))),
        other => return Err(trouble::nonsense(other)),
    };
    let [Value::Int(capacity), Value::Array(holders), Value::Array(waiters), Value::Int(next)] = parts else {
        return Err(trouble::nonsense(parts));
    };
    let holders = holders.chunks(5).map(holder).collect::<Option<Vec<_>>>();
    let waiters = waiters.chunks(2).map(waiter).collect::<Option<Vec<_>>>();
    let (Some(holders), Some(waiters)) = (holders, waiters) else {
        return Err(trouble::nonsense(parts));
    };
    let record = Record::new(resource.kind(), u32::try_from(*capacity).unwrap_or(u32::MAX))
        .with_name(resource.name().to_owned())
        .with_holders(holders)
        .with_waiters(waiters);
    Ok((record, u64::try_from(*next).ok()))
}

fn lock_id(value: &Value) -> Option<LockId> {
    match value {
        // What another program wrote need not be UTF-8.
        Value::BulkString(bytes) => Some(LockId::from_stored(String::from_utf8_lossy(bytes).as_ref())),
        _ => None,
    }
}

fn holder(values: &[Value]) -> Option<Holder> {
    let [id, Value::Int(token), Value::Int(at), Value::Int(left), Value::Int(weight)] = values else {
        return None;
    };
    let known = |number: &i64| u64::try_from(*number).ok();
    Some(
        Holder::new(lock_id(id)?, u32::try_from(*weight).ok()?)
            .with_token(known(token).map(FencingToken::new))
            .with_acquired_at(
                known(at).and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))),
            )
            .with_expires_in(known(left).map(Duration::from_millis)),
    )
}

fn waiter(values: &[Value]) -> Option<Waiter> {
    let [id, Value::Int(weight)] = values else { return None };
    Some(Waiter::new(lock_id(id)?, u32::try_from(*weight).ok()?))
}
