//! Who holds and who waits. Only looks: it takes no gate, makes no file, and makes nobody's attempt fail.

use std::path::{Path, PathBuf};

use distlock_core::store::{Query, Record};
use distlock_core::{Kind, Result};

use crate::failure::failure;
use crate::layout::{Layout, look};
use crate::lockfile::read_name;
use crate::mutex;
use crate::names::original;
use crate::pool::{Paths, holders_and_waiters};
use crate::record::Note;
use crate::waiting::waiters;

const KINDS: [Kind; 4] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::Turn];

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
        Record {
            kind: self.kind,
            name: Some(self.name.clone()),
            key: None,
            capacity: self.capacity,
            holders: self.holders.iter().map(Note::holder).collect(),
            waiters: self.waiters.iter().map(Note::waiter).collect(),
        }
    }
}

/// Everything that is asked for, sorted by name.
pub(crate) fn find(layout: &Layout, query: &Query) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| query.kind.is_none_or(|wanted| wanted == *kind)) {
        for (name, path) in candidates(layout, kind, query)? {
            if !query.matches(kind, &name) {
                continue;
            }
            let (capacity, holders, waiters) = match kind {
                Kind::Mutex => {
                    let waiters =
                        waiters(layout, &name).map_err(|error| failure(error, "list the waiters", &path))?;
                    (1, holder_of_mutex(&path)?.into_iter().collect(), waiters)
                }
                _ => {
                    let (holders, waiters) = holders_and_waiters(&Paths::new(path))?;
                    let capacity = holders.iter().chain(&waiters).next().map_or(0, |note| note.capacity);
                    (capacity, holders, waiters)
                }
            };
            if !(holders.is_empty() && waiters.is_empty()) {
                found.push(Found { kind, name, capacity, holders, waiters });
            }
        }
    }
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    Ok(found)
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
            look(&inside).ok().flatten().and_then(|file| read_name(&file))
        });
        name.map(|name| (name, path))
    });
    Ok(all.collect())
}

fn holder_of_mutex(path: &Path) -> Result<Option<Note>> {
    let looked = look(path).and_then(|file| file.map_or(Ok(None), |file| mutex::holder(&file)));
    looked.map_err(|error| failure(error, "look at the lock file", path))
}
