//! What operators see: holders and waiters, read from both collections at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use distlock_core::store::support::inspect::select;
use distlock_core::store::{Query, Record, Waiter};
use distlock_core::{Error, ErrorKind, Kind, Result};
use futures_util::TryStreamExt;
use futures_util::future::join;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};

use crate::commands::Namespace;
use crate::documents::{LockDocument, PoolDocument, WaitQueueDocument};
use crate::error;
use crate::pool::document_id;
use crate::state::StoreState;

const POOLS: [Kind; 3] = [Kind::RwLock, Kind::Semaphore, Kind::FairQueue];

/// The document of a mutex and its wait queue, each with the server's clock when it was read.
type MutexDocuments = (Option<(LockDocument, i64)>, Option<(WaitQueueDocument, i64)>);

/// The records that are held or waited for now. Documents that another program spoiled, and collections that the user may
/// not read, are left out with a warning, so that they do not hide the rest.
pub(crate) async fn inspect(state: &Arc<StoreState>, query: &Query) -> Result<Vec<Record>> {
    let mut unreadable = UnreadableIds(Vec::new());
    let (locks, queues) = join(locks(state, query, &mut unreadable), queues(state, query)).await;
    let names = state.commands.names();
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
    let mut mutexes: BTreeMap<String, MutexDocuments> = BTreeMap::new();
    for (name, lock, now) in locks {
        mutexes.entry(name).or_default().0 = Some((lock, now));
    }
    let mut found = Vec::new();
    for (id, document, now) in queues {
        let Some((kind, name)) = id.split_once(':').and_then(|(kind, name)| Some((Kind::parse(kind)?, name)))
        else {
            continue;
        };
        if kind == Kind::Mutex {
            mutexes.entry(name.to_owned()).or_default().1 = Some((WaitQueueDocument::read(&document), now));
        } else {
            match PoolDocument::read(&document) {
                Ok(record) => found.push(pool_record(kind, name, &record, now)),
                Err(_) => unreadable.0.push(id),
            }
        }
    }
    unreadable.warn();
    found.extend(mutexes.into_iter().map(|(name, (lock, queue))| mutex_record(name, lock, queue)));
    Ok(select(found, query))
}

fn is_denied(error: &Error) -> bool {
    error.kind() == ErrorKind::Denied
}

/// The ids of documents that cannot be read.
struct UnreadableIds(Vec<String>);

impl UnreadableIds {
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

fn mutex_record(
    name: String,
    lock: Option<(LockDocument, i64)>,
    queue: Option<(WaitQueueDocument, i64)>,
) -> Record {
    let holder = lock.as_ref().and_then(|(lock, now)| lock.holder(*now));
    let waiters = queue.map(|(queue, now)| {
        // The entries of the holder and of those before it are done.
        let done = holder.as_ref().and_then(|holder| queue.position(&holder.lock_id)).map_or(0, |at| at + 1);
        let waiting = queue.queue.into_iter().skip(done).filter(move |entry| entry.expires_at > now);
        waiting.map(|entry| Waiter::new(entry.lock_id, 1)).collect::<Vec<_>>()
    });
    Record::new(Kind::Mutex, 1)
        .with_name(name)
        .with_holders(holder.into_iter().collect::<Vec<_>>())
        .with_waiters(waiters.unwrap_or_default())
}

fn pool_record(kind: Kind, name: &str, pool: &PoolDocument, now: i64) -> Record {
    let holders: Vec<_> = pool.holders.iter().filter_map(|holder| holder.holder(now)).collect();
    let waiting = pool.queue.iter().filter(|waiter| waiter.expires_at > now);
    let waiters: Vec<_> = waiting.map(|waiter| Waiter::new(waiter.lock_id.clone(), waiter.weight)).collect();
    Record::new(kind, pool.capacity).with_name(name.to_owned()).with_holders(holders).with_waiters(waiters)
}

/// The mutexes that are held.
async fn locks(
    state: &Arc<StoreState>,
    query: &Query,
    unreadable: &mut UnreadableIds,
) -> Result<Vec<(String, LockDocument, i64)>> {
    if query.kind.is_some_and(|kind| kind != Kind::Mutex) {
        return Ok(Vec::new());
    }
    let matching = doc! {
        "_id": id_range(query, |name| name.to_owned()),
        "$expr": { "$gt": ["$expiresAt", "$$NOW"] },
    };
    let mut records = Vec::new();
    for (name, document, now) in read(state, Namespace::Locks, matching).await? {
        match LockDocument::read(&document, state.commands.collection(Namespace::Locks)) {
            Ok(record) => records.push((name, record, now)),
            Err(_) => unreadable.0.push(name),
        }
    }
    Ok(records)
}

/// Pools, and wait queues of mutexes.
async fn queues(state: &Arc<StoreState>, query: &Query) -> Result<Vec<(String, Document, i64)>> {
    let kinds = std::iter::once(Kind::Mutex).chain(POOLS);
    let ids: Vec<Bson> = kinds
        .filter(|kind| query.kind.is_none_or(|wanted| wanted == *kind))
        .map(|kind| Bson::Document(doc! { "_id": id_range(query, |name| document_id(kind, name)) }))
        .collect();
    read(state, Namespace::Queues, doc! { "$or": ids, "queue": { "$type": "array" } }).await
}

async fn read(
    state: &Arc<StoreState>,
    namespace: Namespace,
    matching: Document,
) -> Result<Vec<(String, Document, i64)>> {
    let collection = state.commands.database().collection::<Document>(state.commands.collection(namespace));
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
    let found = found.map_err(|error| error::from_driver(&error))?;
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

/// The ids that a query asks for, each made of a name. A range, since a pattern cannot contain every name.
fn id_range(query: &Query, id: impl Fn(&str) -> String) -> Document {
    if let Some(name) = &query.name {
        return doc! { "$eq": id(name) };
    }
    let prefix = id(query.prefix.as_deref().unwrap_or_default());
    let mut range = doc! { "$type": "string", "$gte": &prefix };
    if let Some(end) = prefix_end(&prefix) {
        range.insert("$lt", end);
    }
    range
}

/// The least string above all that have this prefix; `None` if there is none. The server orders strings by their bytes,
/// which in UTF-8 is the order of their characters.
fn prefix_end(prefix: &str) -> Option<String> {
    let mut head = prefix.to_owned();
    while let Some(last) = head.pop() {
        let next = match last {
            char::MAX => None,
            // The code points between are surrogates.
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
    fn a_range_contains_exactly_the_names_with_the_prefix() {
        for prefix in ["a", "orders/", "ü", "\u{D7FF}", "a\u{10FFFF}", "\0", "$x."] {
            let end = prefix_end(prefix).unwrap();
            for more in ["", "\0", "z", "\u{10FFFF}"] {
                let name = format!("{prefix}{more}");
                assert!(name.as_str() >= prefix && name < end, "{name:?} is not below {end:?}");
            }
            assert!(!end.starts_with(prefix));
        }
        assert_eq!(prefix_end(""), None);
        assert_eq!(prefix_end("\u{10FFFF}"), None);
    }
}
