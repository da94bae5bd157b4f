//! The pool: weighted holders and a first-come queue. Reader-writer locks, semaphores, and the queue of a fair mutex.
//!
//! Who holds and who waits is what stands in two folders, `hold` and `queue`: one file for each claim, locked by its
//! owner for as long as he lives, its name saying the place in the order, the weight and the capacity. There is no other
//! record that could contradict it. A claim is granted if the weights in `hold` and its own fit the capacity and nobody
//! alive stands before it in `queue`.
//!
//! Whoever makes a file there, moves one from `queue` to `hold` or clears one of a dead owner away has the gate: a short
//! kernel lock, never kept across waiting. Owners take their own files away without it: that only ever frees.
//!
//! Only the first in the queue watches the holders; everybody else watches the one before. So a release wakes one waiter,
//! however many there are.

mod door;
mod gate;
mod rooms;
mod slot;
mod step;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::store::{Claim, Session};
use distlock_core::{Error, ErrorKind, FencingToken, Result};
use tokio_util::sync::CancellationToken;

use crate::shared::{Shared, blocking};
use crate::wait::{Pace, Pause};
use crate::watch::{Kept, Scope, Watch};
pub(crate) use door::Doors;
use slot::Slot;
pub(crate) use slot::holders_and_waiters;
use step::{Entered, Moved, Step};

/// How long a step tries to pass the gate before it lets its caller see whether the claim was withdrawn.
const GATE_PATIENCE: Duration = Duration::from_millis(50);

/// How long a single attempt tries. A step inside takes a write to the disk; many in a row take this long only if one
/// of them is stopped in there.
const GATE_PATIENCE_ONCE: Duration = Duration::from_secs(2);

/// After how long a waiter says in the log that it cannot even pass the gate.
const COMPLAIN: Duration = Duration::from_secs(5);

/// The paths of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    dir: PathBuf,
    gate: PathBuf,
    queue: PathBuf,
    hold: PathBuf,
}

impl Paths {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Paths { gate: dir.join("gate"), queue: dir.join("queue"), hold: dir.join("hold"), dir }
    }

    pub(crate) fn gate(&self) -> &Path {
        &self.gate
    }
}

/// A part of a pool that is held. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct PoolHold {
    // In this order: first nobody looks after the file any more, then it goes.
    _kept: Kept,
    slot: Slot,
    pub(crate) token: FencingToken,
    pub(crate) session: Session,
}

impl PoolHold {
    pub(crate) fn file(&self) -> &File {
        self.slot.file()
    }
}

pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    claim: &Claim,
    withdraw: &CancellationToken,
) -> Result<Option<PoolHold>> {
    let once = withdraw.is_cancelled();
    let paths = Paths::new(shared.layout.pool(claim.resource.kind(), claim.resource.name()));
    let step = Step { shared: Arc::clone(shared), claim: claim.clone(), paths: paths.clone() };
    let mut pace = Pace::new();
    let mut shut = Shut::new();
    let mut in_door = None;
    loop {
        // A single attempt does not wait for anybody, nor here.
        if !once && in_door.is_none() {
            in_door = shared.doors.pass(&paths.dir, withdraw).await;
            if in_door.is_none() {
                return Ok(None);
            }
        }
        let entered = {
            let step = step.clone();
            let patience = if once { GATE_PATIENCE_ONCE } else { GATE_PATIENCE };
            blocking(move || step.enter(!once, patience)).await?
        };
        match entered {
            Entered::Granted(hold) => return Ok(Some(hold)),
            Entered::Busy => return Ok(None),
            Entered::Queued(slot) => {
                in_door = None;
                match wait(&step, slot, &mut shut, withdraw).await? {
                    Waited::Granted(hold) => return Ok(Some(hold)),
                    Waited::Withdrawn => return Ok(None),
                    // Somebody removed our place from the folder: stand in line again.
                    Waited::Displaced => {}
                }
            }
            Entered::GateShut if once => return Err(stuck(&paths.gate)),
            Entered::GateShut => {
                shut.complain(&paths.gate);
                if pace.pause(None, withdraw).await == Pause::Withdrawn {
                    return Ok(None);
                }
            }
        }
    }
}

enum Waited {
    Granted(PoolHold),
    Withdrawn,
    Displaced,
}

/// What a waiter watches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// The one before.
    Predecessor(PathBuf),
    /// All who hold.
    Holders,
}

async fn wait(step: &Step, mut slot: Slot, shut: &mut Shut, withdraw: &CancellationToken) -> Result<Waited> {
    let mut pace = Pace::new();
    let mut watched: Option<(Target, Option<Watch>)> = None;
    loop {
        let moved = {
            let step = step.clone();
            blocking(move || step.advance(slot, GATE_PATIENCE)).await?
        };
        match moved {
            Moved::Granted(hold) => return Ok(Waited::Granted(hold)),
            Moved::Displaced => return Ok(Waited::Displaced),
            Moved::GateShut(same) => {
                slot = same;
                shut.complain(&step.paths.gate);
                pace.hurry();
            }
            Moved::Waits(same, target) => {
                slot = same;
                shut.reset();
                if watched.as_ref().is_none_or(|(watched, _)| *watched != target) {
                    let watcher = &step.shared.watcher;
                    let watch = match &target {
                        Target::Predecessor(path) => watcher.watch(path, Scope::File),
                        Target::Holders => watcher.watch(&step.paths.hold, Scope::Folder),
                    };
                    watched = Some((target, watch));
                    // What happened before the watch began would not be told.
                    continue;
                }
            }
        }
        let watch = watched.as_ref().and_then(|(_, watch)| watch.as_ref());
        if pace.pause(watch, withdraw).await == Pause::Withdrawn {
            return Ok(Waited::Withdrawn);
        }
    }
}

/// Since when the gate could not be passed.
struct Shut(Option<Instant>);

impl Shut {
    fn new() -> Self {
        Shut(Some(Instant::now()))
    }

    fn reset(&mut self) {
        self.0 = Some(Instant::now());
    }

    fn complain(&mut self, gate: &Path) {
        if self.0.is_some_and(|since| since.elapsed() > COMPLAIN) {
            tracing::warn!(gate = %gate.display(), "the gate of a pool stays locked: is a process stopped in it?");
            self.0 = None;
        }
    }
}

fn stuck(gate: &Path) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{} stays locked by another process", gate.display()))
        .advise("a process is stopped in the middle of a step (see fuser or lsof): continue it or end it")
}
