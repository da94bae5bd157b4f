//! What is held and waited for, and taking it away.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use distlock_core::store::{Holder, Query, Record, Waiter};
use distlock_core::{FencingToken, Kind, LockId, Resource, Result};
use redis::Value;

use crate::net::{Answer, Live};
use crate::script::Item;
use crate::store::Inner;
use crate::trouble;
use crate::verbs::{KINDS, look_item};

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
            chunk.iter().map(|resource| look_item(&inner.config.keys, resource, false)).collect();
        let request = inner.request(&inner.scripts.inspect, inner.config.response_timeout);
        for (resource, answer) in chunk.iter().zip(inner.fleet.call(&request, &items).await) {
            match read(resource, &answer?) {
                Ok(record) => found.extend(Some(record).filter(|record| is_of_use(inner, record))),
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
    let items = [look_item(&inner.config.keys, resource, true)];
    let request = inner.request(&inner.scripts.inspect, inner.config.response_timeout);
    match inner.fleet.call(&request, &items).await.pop() {
        Some(answer) => Ok(read(resource, &answer?)?.holders),
        None => Err(trouble::nonsense("nothing")),
    }
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

fn read(resource: &Resource, answer: &Answer) -> Result<Record> {
    let parts = match &answer.values[0] {
        Value::Array(parts) => parts.as_slice(),
        Value::BulkString(text) => return Err(trouble::refused(&String::from_utf8_lossy(text))),
        other => return Err(trouble::nonsense(other)),
    };
    let [Value::Int(capacity), Value::Array(holders), Value::Array(waiters)] = parts else {
        return Err(trouble::nonsense(parts));
    };
    let holders = holders.chunks(5).map(holder).collect::<Option<Vec<_>>>();
    let waiters = waiters.chunks(2).map(waiter).collect::<Option<Vec<_>>>();
    let (Some(holders), Some(waiters)) = (holders, waiters) else {
        return Err(trouble::nonsense(parts));
    };
    Ok(Record {
        kind: resource.kind(),
        name: Some(resource.name().to_owned()),
        key: None,
        capacity: u32::try_from(*capacity).unwrap_or(u32::MAX),
        holders,
        waiters,
    })
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
    Some(Holder {
        lock_id: lock_id(id)?,
        token: known(token).map(FencingToken::new),
        acquired_at: known(at).and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))),
        expires_in: known(left).map(Duration::from_millis),
        weight: u32::try_from(*weight).ok()?,
    })
}

fn waiter(values: &[Value]) -> Option<Waiter> {
    let [id, Value::Int(weight)] = values else { return None };
    Some(Waiter { lock_id: lock_id(id)?, weight: u32::try_from(*weight).ok()? })
}
