//! Holders and waiters of a resource, and forced release.

use std::sync::Arc;

use distlock_core::store::{Holder, Query, Record, Waiter};
use distlock_core::{Error, Kind, LockId, Resource, Result};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use zookeeper_client::Error as DriverError;

use crate::ZookeeperStore;
use crate::contender::token;
use crate::error::driver_error;
use crate::names::{KINDS, kind_path, original, resource_path};
use crate::queue::{Entry, Queue};
use crate::session::KeptSession;

/// Resources that are read at the same time, on one connection.
const PIPELINED: usize = 64;

/// The resources that match a query, and some that do not.
///
/// # Errors
/// If the ensemble cannot be reached or refuses.
pub(crate) async fn find(store: &ZookeeperStore, query: &Query) -> Result<Vec<Record>> {
    let chroot = store.config().chroot.as_str();
    let mut resources = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| query.kind.is_none_or(|wanted| wanted == *kind)) {
        match &query.name {
            Some(name) => resources.push(Resource::new(kind, name.as_str())?),
            None => resources.extend(names(store, chroot, kind, query).await?),
        }
    }
    let read = resources.into_iter().map(|resource| read(store, resource));
    let records: Vec<Result<Option<Record>>> = stream::iter(read).buffered(PIPELINED).collect().await;
    records.into_iter().filter_map(Result::transpose).collect()
}

/// All resources of a kind that ever had a node and were not cleaned up.
async fn names(store: &ZookeeperStore, chroot: &str, kind: Kind, query: &Query) -> Result<Vec<Resource>> {
    let children = children(store, &kind_path(chroot, kind)).await?;
    let names = children.iter().filter_map(|child| original(child));
    names.filter(|name| query.matches(kind, name)).map(|name| Resource::new(kind, name)).collect()
}

/// The children of a node, as the leader knows them; none if it does not exist.
async fn children(store: &ZookeeperStore, path: &str) -> Result<Vec<String>> {
    let listed = store.sessions.read(|session: Arc<KeptSession>| async move {
        let both = || async {
            let synced = session.client.sync(path);
            let listed = session.client.list_children(path);
            synced.await?;
            listed.await
        };
        match session.repeat(both).await {
            Err(DriverError::NoNode) => Ok(Vec::new()),
            other => other,
        }
    });
    listed.await
}

/// What a node says about its owner.
struct Owner {
    lock_id: LockId,
    czxid: i64,
    /// When the grant was announced, if it was.
    announced_at: Option<i64>,
}

async fn owner(session: &KeptSession, parent: &str, entry: &Entry) -> Result<Option<Owner>, DriverError> {
    let path = format!("{parent}/{}", entry.name);
    match session.repeat(|| session.client.get_data(&path)).await {
        Ok((data, stat)) => {
            let text = String::from_utf8(data).ok().filter(|text| !text.is_empty());
            let lock_id = LockId::from_stored(text.unwrap_or_else(|| entry.name.clone()));
            let announced_at = (stat.version > 0).then_some(stat.mtime);
            Ok(Some(Owner { lock_id, czxid: stat.czxid, announced_at }))
        }
        Err(DriverError::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The owners of entries; those that are gone meanwhile are left out.
async fn owners<'a>(
    store: &ZookeeperStore,
    parent: &str,
    entries: &'a [Entry],
) -> Result<Vec<(&'a Entry, Owner)>> {
    let read = store.sessions.read(|session: Arc<KeptSession>| async move {
        let owners = join_all(entries.iter().map(|entry| owner(&session, parent, entry))).await;
        owners.into_iter().collect::<Result<Vec<_>, _>>()
    });
    let owners = read.await?;
    Ok(entries.iter().zip(owners).filter_map(|(entry, owner)| Some((entry, owner?))).collect())
}

fn holder(entry: &Entry, owner: Owner) -> Holder {
    let since = owner.announced_at.and_then(|ms| u64::try_from(ms).ok());
    let since = since.map(|ms| std::time::UNIX_EPOCH + std::time::Duration::from_millis(ms));
    Holder::new(owner.lock_id, entry.weight).with_token(token(owner.czxid).ok()).with_acquired_at(since)
}

async fn read(store: &ZookeeperStore, resource: Resource) -> Result<Option<Record>> {
    let parent = resource_path(&store.config().chroot, &resource);
    let queue = Queue::parse(resource.kind(), &children(store, &parent).await?);
    let Some(capacity) = queue.capacity() else { return Ok(None) };
    let (holding, waiting) = queue.split();
    let holders = owners(store, &parent, holding).await?;
    let waiters = owners(store, &parent, waiting).await?;
    let holders = holders.into_iter().map(|(entry, owner)| holder(entry, owner)).collect();
    let waiters =
        waiters.into_iter().map(|(entry, owner)| Waiter::new(owner.lock_id, entry.weight)).collect();
    let record = Record::new(resource.kind(), capacity).with_name(resource.name().to_owned());
    Ok(Some(record.with_holders(holders).with_waiters(waiters)))
}

/// Deletes the nodes of all holders, and returns those that it found. Their guards watch their nodes.
///
/// # Errors
/// If the ensemble cannot be reached or refuses.
pub(crate) async fn delete_holders(store: &ZookeeperStore, resource: &Resource) -> Result<Vec<Holder>> {
    let parent = resource_path(&store.config().chroot, resource);
    let queue = Queue::parse(resource.kind(), &children(store, &parent).await?);
    let (holding, _) = queue.split();
    let mut broken = Vec::new();
    for (entry, owner) in owners(store, &parent, holding).await? {
        let session = store.sessions.any().await?;
        let path = format!("{parent}/{}", entry.name);
        match session.repeat(|| session.client.delete(&path, None)).await {
            // Gone: released meanwhile, or deleted by an attempt of ours whose reply was lost.
            Ok(()) | Err(DriverError::NoNode) => broken.push(holder(entry, owner)),
            Err(error) => return Err(partly(driver_error(&error), &broken)),
        }
    }
    Ok(broken)
}

fn partly(error: Error, broken: &[Holder]) -> Error {
    if broken.is_empty() { error } else { error.with_unknown_outcome() }
}
