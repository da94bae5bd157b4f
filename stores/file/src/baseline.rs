//! The kernel's lock alone, for benchmarks: open, lock, unlock, close, as a program does that has nothing but `flock`.

use std::fs::TryLockError;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use distlock_core::bench::Baseline;
use distlock_core::{Kind, Result};

use crate::failure::failure;
use crate::folder::Folder;
use crate::layout::split;
use crate::names;
use crate::shared::{Shared, blocking};

pub(crate) struct BaselineDriver {
    shared: Arc<Shared>,
    folder: PathBuf,
    /// Opened once: what a name in it leads to depends on no link.
    opened: Arc<OnceLock<Folder>>,
}

pub(crate) fn open(shared: &Arc<Shared>) -> Box<dyn Baseline> {
    let folder = shared.layout.base().join(format!("bench-{:08x}", fastrand::u32(..)));
    Box::new(BaselineDriver { shared: Arc::clone(shared), folder, opened: Arc::default() })
}

#[async_trait]
impl Baseline for BaselineDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let path = self.folder.join(names::file_name(name));
        let (shared, opened) = (Arc::clone(&self.shared), Arc::clone(&self.opened));
        // On a thread that may block, since that is what opening a file may do; giving back does not.
        let file = blocking(move || {
            let failed = |error| failure(error, "open the file of the bare lock", &path);
            let (dir, name) = split(&path).map_err(failed)?;
            let folder = match opened.get() {
                Some(folder) => folder,
                None => {
                    let made = shared.layout.make_dir(dir).map_err(failed)?;
                    opened.get_or_init(|| made)
                }
            };
            let file = folder.open_or_create(name, &path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) | Err(TryLockError::WouldBlock) => Ok(file),
                Err(TryLockError::Error(error)) => Err(failed(error)),
            }
        })
        .await?;
        let _ = file.unlock();
        Ok(())
    }

    /// There is no server.
    async fn server_requests(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        let (shared, folder, prefix) = (Arc::clone(&self.shared), self.folder.clone(), prefix.to_owned());
        blocking(move || {
            let _ = std::fs::remove_dir_all(&folder);
            // Lock files are never removed elsewhere, since somebody may be about to lock one. Of these names nobody is.
            for (escaped, path) in shared.layout.all(Kind::Mutex)? {
                if names::original(&escaped).is_some_and(|name| name.starts_with(&prefix)) {
                    let removed = shared.layout.remove(&path);
                    removed.map_err(|error| failure(error, "remove the lock file", &path))?;
                }
            }
            Ok(())
        })
        .await
    }
}
