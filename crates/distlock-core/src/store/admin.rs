//! What every store tells about itself, and what operators may ask of it.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Capabilities, Holder, Query, Record};
use crate::clock::Clock;
use crate::error::Result;
use crate::resource::{LockId, Resource};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// All is well.
    Ok,
    /// Dangerous or slow; `advice` says how to mend it.
    Warning,
}

/// One thing that `doctor` found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// How bad.
    pub level: Level,
    /// What was found, in one line.
    pub what: String,
    /// How to mend it.
    pub advice: Option<String>,
}

impl Finding {
    /// Something that is as it should be.
    #[must_use]
    pub fn ok(what: impl Into<String>) -> Self {
        Finding { level: Level::Ok, what: what.into(), advice: None }
    }

    /// Something dangerous, and how to mend it.
    #[must_use]
    pub fn warning(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { level: Level::Warning, what: what.into(), advice: Some(advice.into()) }
    }
}

/// What every store has, whichever way it keeps its locks.
#[async_trait]
pub trait Store: Send + Sync + Debug + 'static {
    /// What and where, without secrets: `redis 10.0.0.7:6379`.
    fn describe(&self) -> String;

    /// What it can do. The answer must not change during the life of the store.
    fn capabilities(&self) -> Capabilities;

    /// What is held or waited for now. Expired holders are left out.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn inspect(&self, query: &Query) -> Result<Vec<Record>>;

    /// Takes the resource from all its holders and returns them. The next token is still
    /// higher; the holders' guards turn lost at their next renewal. Where that ends their sessions, the holders say what else
    /// they held ([`Holder::also_held`]).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), naming the holder and what to do, where the store has no such thing.
    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>>;

    /// Connects, and says what was found and what is dangerous there.
    ///
    /// # Errors
    /// If the store cannot be reached at all.
    async fn doctor(&self) -> Result<Vec<Finding>>;

    /// A copy of the open file that a held lock lives with, where locks are the kernel's: the lock stays held for as long
    /// as any copy is open, also if this process dies, and a release frees it whatever copies there are. Where the kernel only
    /// tells the next client that this process has ended, it does not as long as any copy is open. `None` for locks that live
    /// elsewhere, and for a lock id that holds nothing.
    #[cfg(unix)]
    fn descriptor(&self, lock_id: &LockId) -> Option<std::os::fd::OwnedFd> {
        let _ = lock_id;
        None
    }

    /// Gives the store the engine's clock, once, before the first request. A store that sets deadlines of its own
    /// ([`Session::until`](super::Session::until)) measures them with it.
    fn use_clock(&self, clock: Arc<dyn Clock>) {
        let _ = clock;
    }
}
