//! Who holds and who waits. Only looks: it takes no gate, makes no file, and makes nobody's attempt fail.

use std::path::{Path, PathBuf};

use distlock_core::store::{Query, Record};
use distlock_core::{Error, Kind, Result};

use crate::failure::failure;
use crate::layout::Layout;
use crate::lockfile::read_name;
use crate::mutex;
use crate::names::original;
use crate::pool::{Paths, holders_and_waiters};
use crate::record::Note;
use crate::waiting::waiters;

const KINDS: [Kind; 4] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue];

/// A resource that somebody holds or waits for, and the notes of those who do.
#[derive(Debug)]
pub(crate) struct Found {
    kind: Kind,
    name: String,
    capacity: u32,
    pub(crate) holders: Vec<Note>,
    waiters: Vec<Note>,
}

impl Found {
    pub(crate) fn record(&self) -> Record {
        Record::new(self.kind, self.capacity)
            .with_name(self.name.clone())
            .with_holders(self.holders.iter().map(Note::holder).collect())
            .with_waiters(self.waiters.iter().map(Note::waiter).collect())
    }
}

/// Everything that is asked for, sorted by name. What cannot be read is left out and told in the log.
///
/// # Errors
/// If nothing can be read at all, or what was asked for by name cannot be: neither may look free.
pub(crate) fn find(layout: &Layout, query: &Query) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut unreadable = Vec::new();
    let mut listed = false;
    for kind in KINDS.into_iter().filter(|kind| query.kind.is_none_or(|wanted| wanted == *kind)) {
        match candidates(layout, kind, query) {
            Ok(candidates) => {
                listed = true;
                for (name, path) in candidates.into_iter().filter(|(name, _)| query.matches(kind, name)) {
                    match one(layout, kind, name, path, &mut unreadable) {
                        Ok(one) => found.extend(one),
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
        tracing::warn!("left out of the list: {error}");
    }
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    Ok(found)
}

/// One resource, if it is held or waited for.
fn one(
    layout: &Layout,
    kind: Kind,
    name: String,
    path: PathBuf,
    unreadable: &mut Vec<Error>,
) -> Result<Option<Found>> {
    let (capacity, holders, waiters) = match kind {
        Kind::Mutex => {
            let waiters = waiters(layout, &name, unreadable)
                .map_err(|error| failure(error, "list the waiters", &layout.waiting(&name)));
            let waiters = waiters.unwrap_or_else(|error| {
                unreadable.push(error);
                Vec::new()
            });
            (1, holder_of_mutex(layout, &path)?.into_iter().collect(), waiters)
        }
        _ => {
            let (holders, waiters) = holders_and_waiters(layout, &Paths::new(path), unreadable)?;
            let capacity = holders.iter().chain(&waiters).next().map_or(0, |note| note.capacity);
            (capacity, holders, waiters)
        }
    };
    let free = holders.is_empty() && waiters.is_empty();
    Ok((!free).then_some(Found { kind, name, capacity, holders, waiters }))
}

/// The names to look at, with their paths: one if it is known, all of the kind otherwise.
fn candidates(layout: &Layout, kind: Kind, query: &Query) -> Result<Vec<(String, PathBuf)>> {
    if let Some(name) = &query.name {
        let path = if kind == Kind::Mutex { layout.mutex(name) } else { layout.pool(kind, name) };
        return Ok(vec![(name.clone(), path)]);
    }
    let all = layout.all(kind)?.into_iter().filter_map(|(escaped, path)| {
        let name = original(&escaped).or_else(|| {
            // Too long for a file name: the whole name is inside.
            let inside =
                if kind == Kind::Mutex { path.clone() } else { Paths::new(path.clone()).gate().to_owned() };
            layout.look(&inside).ok().flatten().and_then(|file| read_name(&file))
        });
        name.map(|name| (name, path))
    });
    Ok(all.collect())
}

fn holder_of_mutex(layout: &Layout, path: &Path) -> Result<Option<Note>> {
    let looked = layout.look(path).map_err(|error| failure(error, "look at the lock file", path))?;
    looked.map_or(Ok(None), |file| mutex::holder(&file, path))
}
