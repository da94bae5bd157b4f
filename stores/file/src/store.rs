//! The store: the traits of the core, and the state behind them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::store::support::inspect::select;
use distlock_core::store::{
    Capabilities, Claim, Fairness, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore, Store,
};
use distlock_core::{Error, ErrorKind, FencingToken, LockId, LockIds, RecordKind, Resource, Result};
use tokio_util::sync::CancellationToken;

use crate::config::{FileConfig, Wakeups};
use crate::doctor;
use crate::file_threads::FileThreads;
use crate::format::{Owner, time_of_day};
use crate::holds::{HeldLock, Holds};
use crate::inspect::{ResourceState, find};
use crate::layout::Layout;
use crate::mutex;
use crate::pool::{self, LocalFifo};
use crate::tokens::BootId;
use crate::watch::Watcher;

/// Lock files in a folder. Cheap to clone; see the [crate documentation](crate).
#[derive(Clone, Debug)]
pub struct FileStore {
    state: Arc<StoreState>,
}

/// What all claims of one store share.
#[derive(Debug)]
pub(crate) struct StoreState {
    pub(crate) layout: Arc<Layout>,
    pub(crate) watcher: Watcher,
    pub(crate) local_fifo: LocalFifo,
    /// `host:pid`, for the files.
    process: Arc<str>,
    /// The running kernel, if it keeps what is written until it ends: not on a network file system, whose server may end alone.
    pub(crate) boot: Option<BootId>,
    pub(crate) holds: Arc<Holds>,
    pub(crate) threads: FileThreads,
}

impl StoreState {
    /// `is_local`: whether the folder is on a local file system.
    pub(crate) fn new(config: FileConfig, is_local: bool) -> Self {
        let layout = Arc::new(Layout::new(config.dir, config.access));
        let holds = Holds::new();
        // inotify does not see what other machines do.
        let use_inotify = is_local && config.wakeups == Wakeups::Auto;
        StoreState {
            watcher: Watcher::new(use_inotify, &layout, &holds),
            boot: BootId::current().filter(|_| is_local),
            layout,
            local_fifo: LocalFifo::default(),
            process: LockIds::default_label().into(),
            holds,
            threads: FileThreads::default(),
        }
    }

    /// What the files say about a claim of this process. Without a token it is a waiter.
    pub(crate) fn owner(&self, claim: &Claim, token: Option<FencingToken>) -> Owner {
        Owner {
            lock_id: claim.lock_id.clone(),
            process: Arc::clone(&self.process),
            token: token.map(FencingToken::get),
            since: time_of_day(),
            weight: claim.weight,
            capacity: claim.capacity,
            least: claim.hold_at_least,
        }
    }
}

/// The locks that are left are freed here, and not when the watcher's thread lets go of them.
impl Drop for StoreState {
    fn drop(&mut self) {
        self.holds.clear();
    }
}

impl FileStore {
    pub(crate) fn from_state(state: StoreState) -> Self {
        FileStore { state: Arc::new(state) }
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.state.layout.base()
    }

    async fn find(&self, query: &Query) -> Result<Vec<ResourceState>> {
        let (state, query) = (Arc::clone(&self.state), query.clone());
        blocking(move || find(&state.layout, &query)).await
    }
}

#[cfg(feature = "bench")]
impl FileStore {
    /// The baseline for benchmarks.
    #[doc(hidden)]
    #[must_use]
    pub fn baseline(&self) -> Box<dyn distlock_core::bench::Baseline> {
        crate::baseline::open(&self.state)
    }
}

#[async_trait]
impl Store for FileStore {
    fn describe(&self) -> String {
        format!("file store {}", self.dir().display())
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.fairness = Fairness::Queue;
        capabilities.frees_on_crash = true;
        capabilities.forced_release = false;
        capabilities.reasons = &[(
            "forced releases",
            "the kernel takes a file lock only from a process that ends, so end the holder",
        )];
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        let found = self.find(query).await.map_err(|error| error.doing("inspect").on(self.describe()))?;
        Ok(select(found.iter().map(ResourceState::record).collect(), query))
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        let query = Query::named(resource.name()).with_kind(resource.kind());
        let complete = |error: Error| error.doing("break").about(resource).on(self.describe());
        let found = self.find(&query).await.map_err(complete)?;
        let holders: Vec<&Owner> = found.iter().flat_map(|found| &found.holders).collect();
        if holders.is_empty() {
            return Ok(Vec::new());
        }
        let labels: Vec<&str> = holders.iter().map(|owner| owner.lock_id.label()).collect();
        let processes: Vec<String> = holders
            .iter()
            .map(|owner| match owner.process.rsplit_once(':') {
                Some((host, pid)) => format!("process {pid} on host {host}"),
                None => format!("process {}", owner.process),
            })
            .collect();
        let what = format!("held by {}; a kernel file lock cannot be taken from it", labels.join(", "));
        let advice = format!("end {}", processes.join(" and "));
        Err(complete(Error::new(ErrorKind::Unsupported, what).advise(advice)))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let state = Arc::clone(&self.state);
        let found = blocking(move || doctor::examine(&state)).await;
        found.map_err(|error| error.doing("examine").on(self.describe()))
    }

    fn descriptor(&self, lock_id: &LockId) -> Option<OwnedFd> {
        self.state.holds.descriptor(lock_id)
    }
}

#[async_trait]
impl SessionStore for FileStore {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        let complete = |error: Error| error.doing("acquire").about(&claim.resource).on(self.describe());
        let acquired = match claim.resource.kind().record() {
            RecordKind::Lock => {
                let hold = mutex::acquire(&self.state, claim, withdraw).await.map_err(complete)?;
                hold.map(HeldLock::Mutex)
            }
            RecordKind::Pool => {
                claim.check_weight().map_err(complete)?;
                let hold = pool::acquire(&self.state, claim, withdraw).await.map_err(complete)?;
                hold.map(|hold| HeldLock::Pool(Box::new(hold)))
            }
        };
        let Some(lock) = acquired else { return Ok(None) };
        let hold = lock.session_hold();
        if self.state.holds.insert(&claim.lock_id, lock) {
            self.state.watcher.wake();
        }
        Ok(Some(hold))
    }

    /// Between two polls a claim of a mutex keeps only files of its own, and work that a thread completes by itself. A claim of a
    /// pool joins in the order of this process and then must advance by itself: waiters behind it depend on that.
    fn runs_in_callers_task(&self, resource: &Resource) -> bool {
        resource.kind().record() == RecordKind::Lock
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        // A few system calls that never wait for a disk, made here so that a runtime that shuts down can make them too.
        let released = self.state.holds.remove(&lease.lock_id);
        if let Some(released) = released {
            released.free();
        }
        Ok(())
    }

    async fn leave(&self, lease: &Lease) -> Result<()> {
        let left = self.state.holds.remove(&lease.lock_id);
        drop(left);
        Ok(())
    }
}

/// Runs file work on a thread of its own. If the caller is dropped, the work still runs to its end; its result is
/// then dropped, which releases a lock.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_cancelled() => {
            Err(Error::new(ErrorKind::ShutDown, "the runtime is shutting down"))
        }
        Err(error) => Err(Error::new(ErrorKind::Internal, "the file store panicked").caused_by(error)),
    }
}
