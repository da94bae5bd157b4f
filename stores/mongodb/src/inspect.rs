//! What operators see: who holds and who waits, read from both collections at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use distlock_core::store::{Query, Record, Waiter};
use distlock_core::{Error, ErrorKind, Kind, Result};
use futures_util::TryStreamExt;
use futures_util::future::join;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};

use crate::core::Core;
use crate::failure;
use crate::pool::document_id;
use crate::record::{LineRecord, LockRecord, PoolRecord};
use crate::wire::Place;

const POOLS: [Kind; 3] = [Kind::RwLock, Kind::Semaphore, Kind::FairQueue];

/// The record of a mutex and the line before it, each with the server's time when it was read.
type Mutex = (Option<(LockRecord, i64)>, Option<(LineRecord, i64)>);

/// What is held or waited for now. What cannot be read is left out with a warning: one document that another program
/// spoiled, or a collection that the user has no right to, must not hide the rest.
pub(crate) async fn inspect(core: &Arc<Core>, query: &Query) -> Result<Vec<Record>> {
    let mut unreadable = Unreadable(Vec::new());
    let (locks, queues) = join(locks(core, query, &mut unreadable), queues(core, query)).await;
    let names = core.wire.names();
    let (locks, queues) = match (locks, queues) {
        (Ok(locks), Err(error)) if is_denied(&error) && query.kind.is_none_or(|kind| kind == Kind::Mutex) => {
            tracing::warn!(
                "waiters, reader-writer locks and semaphores cannot be shown: no right to read {}.{}",
                names.database,
                names.queues
            );
            (locks, Vec::new())
        }
        (Err(error), Ok(queues)) if is_denied(&error) && query.kind.is_none() => {
            tracing::warn!("mutexes cannot be shown: no right to read {}.{}", names.database, names.locks);
            (Vec::new(), queues)
        }
        (locks, queues) => (locks?, queues?),
    };
    let mut mutexes: BTreeMap<String, Mutex> = BTreeMap::new();
    for (name, lock, now) in locks {
        mutexes.entry(name).or_default().0 = Some((lock, now));
    }
    let mut found = Vec::new();
    for (id, document, now) in queues {
        let Some((kind, name)) = id.split_once(':').and_then(|(kind, name)| Some((Kind::parse(kind)?, name)))
        else {
            continue;
        };
        if !query.matches(kind, name) {
            continue;
        }
        if kind == Kind::Mutex {
            mutexes.entry(name.to_owned()).or_default().1 = Some((LineRecord::read(&document), now));
        } else {
            match PoolRecord::read(&document) {
                Ok(record) => found.extend(pool(kind, name, &record, now)),
                Err(_) => unreadable.0.push(id),
            }
        }
    }
    unreadable.warn();
    found.extend(mutexes.into_iter().filter_map(|(name, (lock, line))| mutex(name, lock, line)));
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    Ok(found)
}

fn is_denied(error: &Error) -> bool {
    error.kind() == ErrorKind::Denied
}

/// The ids of documents that cannot be read.
struct Unreadable(Vec<String>);

impl Unreadable {
    fn warn(&self) {
        const NAMED: usize = 10;
        let named: Vec<String> = self.0.iter().take(NAMED).map(|id| format!("{id:?}")).collect();
        let others = self.0.len() - named.len();
        match (named.is_empty(), others) {
            (true, _) => {}
            (false, 0) => {
                tracing::warn!("documents that cannot be read are not shown: {}", named.join(", "));
            }
            (false, others) => {
                let named = named.join(", ");
                tracing::warn!("documents that cannot be read are not shown: {named} and {others} others");
            }
        }
    }
}

fn mutex(name: String, lock: Option<(LockRecord, i64)>, line: Option<(LineRecord, i64)>) -> Option<Record> {
    let holder = lock.as_ref().and_then(|(lock, now)| lock.holder(*now));
    let waiters = line.map(|(line, now)| {
        // Whoever stands in front of the holder, and the holder itself, waits no more.
        let behind = holder.as_ref().and_then(|holder| line.place(&holder.lock_id)).map_or(0, |at| at + 1);
        let waiting = line.queue.into_iter().skip(behind).filter(move |entry| entry.expires_at > now);
        waiting.map(|entry| Waiter::new(entry.lock_id, 1)).collect()
    });
    let holders: Vec<_> = holder.into_iter().collect();
    let waiters: Vec<_> = waiters.unwrap_or_default();
    let is_used = !(holders.is_empty() && waiters.is_empty());
    is_used.then_some(Record::new(Kind::Mutex, 1).with_name(name).with_holders(holders).with_waiters(waiters))
}

fn pool(kind: Kind, name: &str, pool: &PoolRecord, now: i64) -> Option<Record> {
    let holders: Vec<_> = pool.holders.iter().filter_map(|holder| holder.show(now)).collect();
    let waiting = pool.queue.iter().filter(|waiter| waiter.expires_at > now);
    let waiters: Vec<_> = waiting.map(|waiter| Waiter::new(waiter.lock_id.clone(), waiter.weight)).collect();
    let is_used = !(holders.is_empty() && waiters.is_empty());
    let name = Some(name.to_owned());
    is_used.then_some(
        Record::new(kind, pool.capacity).with_name(name).with_holders(holders).with_waiters(waiters),
    )
}

/// The mutexes that are held.
async fn locks(
    core: &Arc<Core>,
    query: &Query,
    unreadable: &mut Unreadable,
) -> Result<Vec<(String, LockRecord, i64)>> {
    if query.kind.is_some_and(|kind| kind != Kind::Mutex) {
        return Ok(Vec::new());
    }
    let matching = doc! {
        "_id": between(query, |name| name.to_owned()),
        "$expr": { "$gt": ["$expiresAt", "$$NOW"] },
    };
    let mut records = Vec::new();
    for (name, document, now) in read(core, Place::Locks, matching).await? {
        match LockRecord::read(&document, core.wire.collection(Place::Locks)) {
            Ok(record) => records.push((name, record, now)),
            Err(_) => unreadable.0.push(name),
        }
    }
    Ok(records)
}

/// Pools, and lines of mutexes.
async fn queues(core: &Arc<Core>, query: &Query) -> Result<Vec<(String, Document, i64)>> {
    let kinds = std::iter::once(Kind::Mutex).chain(POOLS);
    let ids: Vec<Bson> = kinds
        .filter(|kind| query.kind.is_none_or(|wanted| wanted == *kind))
        .map(|kind| Bson::Document(doc! { "_id": between(query, |name| document_id(kind, name)) }))
        .collect();
    read(core, Place::Queues, doc! { "$or": ids, "queue": { "$type": "array" } }).await
}

async fn read(core: &Arc<Core>, place: Place, matching: Document) -> Result<Vec<(String, Document, i64)>> {
    let collection = core.wire.database().collection::<Document>(core.wire.collection(place));
    let pipeline = [doc! { "$match": matching }, doc! { "$project": { "now": "$$NOW", "doc": "$$ROOT" } }];
    let found: mongodb::error::Result<Vec<Document>> = async {
        collection
            .aggregate(pipeline)
            .read_concern(ReadConcern::local())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await?
            .try_collect()
            .await
    }
    .await;
    let found = found.map_err(|error| failure::from_driver(&error))?;
    Ok(found
        .into_iter()
        .filter_map(|mut found| {
            let now = found.get_datetime("now").ok()?.timestamp_millis();
            let id = found.get_str("_id").ok()?.to_owned();
            match found.remove("doc") {
                Some(Bson::Document(document)) => Some((id, document, now)),
                _ => None,
            }
        })
        .collect())
}

/// The ids that a query asks for, each made of a name: a range, since a pattern cannot hold every name.
fn between(query: &Query, id: impl Fn(&str) -> String) -> Document {
    if let Some(name) = &query.name {
        return doc! { "$eq": id(name) };
    }
    let prefix = id(query.prefix.as_deref().unwrap_or_default());
    let mut range = doc! { "$type": "string", "$gte": &prefix };
    if let Some(end) = after_all(&prefix) {
        range.insert("$lt", end);
    }
    range
}

/// The first text behind all that begin like this; `None` if there is none. Texts are ordered by their bytes, which in
/// UTF-8 is the order of their characters.
fn after_all(prefix: &str) -> Option<String> {
    let mut head = prefix.to_owned();
    while let Some(last) = head.pop() {
        let next = match last {
            char::MAX => None,
            // What lies between are no characters.
            '\u{D7FF}' => Some('\u{E000}'),
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            head.push(next);
            return Some(head);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_exactly_the_names_that_begin_like_this() {
        for prefix in ["a", "orders/", "ü", "\u{D7FF}", "a\u{10FFFF}", "\0", "$x."] {
            let end = after_all(prefix).unwrap();
            for more in ["", "\0", "z", "\u{10FFFF}"] {
                let name = format!("{prefix}{more}");
                assert!(name.as_str() >= prefix && name < end, "{name:?} is not below {end:?}");
            }
            assert!(!end.starts_with(prefix));
        }
        assert_eq!(after_all(""), None);
        assert_eq!(after_all("\u{10FFFF}"), None);
    }
}
