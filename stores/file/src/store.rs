//! The store: the parts put together behind the traits of the core.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::store::{
    Capabilities, Claim, Fairness, Finding, Holder, Lease, Query, Record, SessionHold, SessionStore, Store,
};
use distlock_core::{Error, ErrorKind, LockId, RecordKind, Resource, Result};
use tokio_util::sync::CancellationToken;

use crate::config::FileConfig;
use crate::inspect::{Found, find};
use crate::shared::{Hold, Shared, blocking};
use crate::{doctor, mutex, pool};

/// Lock files in a folder. Cheap to clone; see the [crate documentation](crate).
#[derive(Clone, Debug)]
pub struct FileStore {
    shared: Arc<Shared>,
}

impl FileStore {
    /// Lock files in this folder, private to the user. The folder is made on first use; a relative path is taken
    /// from the current folder once and for all.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the path is empty.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        FileStore::with(FileConfig::new(dir.as_ref()))
    }

    /// Lock files as configured.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the path is empty.
    pub fn with(mut config: FileConfig) -> Result<Self> {
        config.dir = std::path::absolute(&config.dir).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("{:?} is not the path of a folder", config.dir))
                .doing("open the file store")
                .caused_by(error)
                .advise("name a folder, such as /var/lock/app")
        })?;
        Ok(FileStore { shared: Arc::new(Shared::new(config)) })
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.shared.layout.base()
    }

    async fn find(&self, query: &Query) -> Result<Vec<Found>> {
        let (shared, query) = (Arc::clone(&self.shared), query.clone());
        blocking(move || find(&shared.layout, &query)).await
    }
}

#[cfg(feature = "bench")]
impl FileStore {
    /// The bare lock, for benchmarks.
    #[doc(hidden)]
    #[must_use]
    pub fn baseline(&self) -> Box<dyn distlock_core::bench::Baseline> {
        crate::baseline::open(&self.shared)
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
            "the kernel takes a file lock from nobody but a process that ends, so end the holder",
        )];
        capabilities
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        let found = self.find(query).await.map_err(|error| error.doing("inspect").on(self.describe()))?;
        Ok(found.iter().map(Found::record).collect())
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        let query = Query::named(resource.name()).with_kind(resource.kind());
        let complete = |error: Error| error.doing("break").about(resource).on(self.describe());
        let found = self.find(&query).await.map_err(complete)?;
        let holders: Vec<_> = found.iter().flat_map(|found| &found.holders).collect();
        if holders.is_empty() {
            return Ok(Vec::new());
        }
        let who: Vec<String> = holders.iter().map(|note| note.lock_id.label().to_owned()).collect();
        let end: Vec<String> = holders
            .iter()
            .map(|note| match note.process.rsplit_once(':') {
                Some((host, pid)) => format!("process {pid} on host {host}"),
                None => format!("process {}", note.process),
            })
            .collect();
        let what = format!("kernel file locks cannot be taken away, and it is held by {}", who.join(", "));
        Err(complete(Error::new(ErrorKind::Unsupported, what).advise(format!("end {}", end.join(" and ")))))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let shared = Arc::clone(&self.shared);
        let found = blocking(move || doctor::examine(&shared)).await;
        found.map_err(|error| error.doing("examine").on(self.describe()))
    }

    fn descriptor(&self, lock_id: &LockId) -> Option<OwnedFd> {
        self.shared.holds().get(lock_id).and_then(Hold::descriptor)
    }
}

#[async_trait]
impl SessionStore for FileStore {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        let complete = |error: Error| error.doing("acquire").about(&claim.resource).on(self.describe());
        let hold = match claim.resource.kind().record() {
            RecordKind::Lock => {
                let hold = mutex::acquire(&self.shared, claim, withdraw).await.map_err(complete)?;
                hold.map(Hold::Mutex)
            }
            RecordKind::Pool => {
                claim.check_weight().map_err(complete)?;
                let hold = pool::acquire(&self.shared, claim, withdraw).await.map_err(complete)?;
                hold.map(Hold::Pool)
            }
        };
        let Some(hold) = hold else { return Ok(None) };
        let granted = hold.granted();
        self.shared.holds().insert(claim.lock_id.clone(), hold);
        Ok(Some(granted))
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        // A few system calls that wait for no disk; so also a runtime that is shutting down can do it.
        let hold = self.shared.holds().remove(&lease.lock_id);
        drop(hold);
        Ok(())
    }
}
