//! Holders and waiters. Read-only: no pool lock is taken, no file created, and no client's attempt fails because of it.

use std::path::{Path, PathBuf};

use distlock_core::store::{Query, Record};
use distlock_core::{Error, Kind, Result};

use crate::error::io_error;
use crate::format::Owner;
use crate::layout::Layout;
use crate::lock_file::read_name;
use crate::mutex;
use crate::names::original;
use crate::pool::{PoolPaths, holders_and_waiters};
use crate::waiter_files::waiters;

const KINDS: [Kind; 4] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue];

/// A resource that is held or waited for.
#[derive(Debug)]
pub(crate) struct ResourceState {
    kind: Kind,
    name: String,
    capacity: u32,
    pub(crate) holders: Vec<Owner>,
    waiters: Vec<Owner>,
}

impl ResourceState {
    pub(crate) fn record(&self) -> Record {
        Record::new(self.kind, self.capacity)
            .with_name(self.name.clone())
            .with_holders(self.holders.iter().map(Owner::holder).collect())
            .with_waiters(self.waiters.iter().map(Owner::waiter).collect())
    }
}

/// The resources that match a query. Unreadable ones are left out, with a warning in the log.
///
/// # Errors
/// If nothing can be read at all, or the query names a resource that cannot be read: it must not look free.
pub(crate) fn find(layout: &Layout, query: &Query) -> Result<Vec<ResourceState>> {
    let mut found = Vec::new();
    let mut unreadable = Vec::new();
    let mut listed = false;
    for kind in KINDS.into_iter().filter(|kind| query.kind.is_none_or(|wanted| wanted == *kind)) {
        match candidates(layout, kind, query) {
            Ok(candidates) => {
                listed = true;
                for (name, path) in candidates.into_iter().filter(|(name, _)| query.matches(kind, name)) {
                    match read(layout, kind, name, path, &mut unreadable) {
                        Ok(state) => found.extend(state),
                        Err(error) => unreadable.push(error),
                    }
                }
            }
            Err(error) => unreadable.push(error),
        }
    }
    if found.is_empty() && (!listed || query.name.is_some()) && !unreadable.is_empty() {
        return Err(unreadable.swap_remove(0));
    }
    for error in unreadable {
        tracing::warn!("unreadable, left out of the list: {error:#}");
    }
    Ok(found)
}

/// The state of one resource; `None` if it is free and has no waiters.
fn read(
    layout: &Layout,
    kind: Kind,
    name: String,
    path: PathBuf,
    unreadable: &mut Vec<Error>,
) -> Result<Option<ResourceState>> {
    let (capacity, holders, waiters) = match kind {
        Kind::Mutex => {
            let waiters = waiters(layout, &name, unreadable)
                .map_err(|error| io_error(error, "list the waiters", &layout.waiters(&name)));
            let waiters = waiters.unwrap_or_else(|error| {
                unreadable.push(error);
                Vec::new()
            });
            let holder = holder_of_mutex(layout, &path)?;
            // A waiter that is granted the lock removes its file a moment later.
            let is_waiter =
                |waiter: &Owner| holder.as_ref().is_none_or(|holder| holder.lock_id != waiter.lock_id);
            let waiters = waiters.into_iter().filter(is_waiter).collect();
            (1, holder.into_iter().collect(), waiters)
        }
        _ => {
            let (holders, waiters) = holders_and_waiters(layout, &PoolPaths::new(path), unreadable)?;
            let capacity = holders.iter().chain(&waiters).next().map_or(0, |owner| owner.capacity);
            (capacity, holders, waiters)
        }
    };
    let free = holders.is_empty() && waiters.is_empty();
    Ok((!free).then_some(ResourceState { kind, name, capacity, holders, waiters }))
}

/// The names to read, with their paths: the one of the query, or all of the kind.
fn candidates(layout: &Layout, kind: Kind, query: &Query) -> Result<Vec<(String, PathBuf)>> {
    if let Some(name) = &query.name {
        let path = if kind == Kind::Mutex { layout.mutex(name) } else { layout.pool(kind, name) };
        return Ok(vec![(name.clone(), path)]);
    }
    let all = layout.all(kind)?.into_iter().filter_map(|(escaped, path)| {
        let name = original(&escaped).or_else(|| {
            // The name was too long for a file name; the file contains it.
            let file = match kind {
                Kind::Mutex => path.clone(),
                _ => PoolPaths::new(path.clone()).gate().to_owned(),
            };
            layout.open_read_only(&file).ok().flatten().and_then(|file| read_name(&file))
        });
        name.map(|name| (name, path))
    });
    Ok(all.collect())
}

fn holder_of_mutex(layout: &Layout, path: &Path) -> Result<Option<Owner>> {
    let file = layout.open_read_only(path);
    let file = file.map_err(|error| io_error(error, "read the lock file", path))?;
    file.map_or(Ok(None), |file| mutex::holder(&file, path))
}
