//! The baseline for benchmarks: open, lock, unlock and close a file, as a program does with `flock(2)` alone.

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use async_trait::async_trait;
use distlock_core::bench::{BareNotification, Baseline};
use distlock_core::{Kind, Result};
use futures_core::future::BoxFuture;

use crate::error::io_error;
use crate::folder::Folder;
use crate::layout::split;
use crate::names;
use crate::store::{StoreState, blocking};

struct FileBaseline {
    state: Arc<StoreState>,
    folder: PathBuf,
    /// Opened once: a link put there later is not followed.
    opened: Arc<OnceLock<Folder>>,
}

pub(crate) fn open(state: &Arc<StoreState>) -> Box<dyn Baseline> {
    let folder = state.layout.base().join(format!("bench-{:08x}", fastrand::u32(..)));
    Box::new(FileBaseline { state: Arc::clone(state), folder, opened: Arc::default() })
}

/// A file that one open file description unlocks, and for which another one waits on a thread that may block.
struct UnlockNotification {
    files: Arc<[File; 2]>,
    path: PathBuf,
}

#[async_trait]
impl BareNotification for UnlockNotification {
    async fn receive(&mut self) -> Result<BoxFuture<'static, Result<Instant>>> {
        let (files, path) = (Arc::clone(&self.files), self.path.clone());
        files[0].lock().map_err(|error| io_error(error, "lock the baseline's file", &path))?;
        Ok(Box::pin(async move {
            blocking(move || {
                files[1].lock().map_err(|error| io_error(error, "lock the baseline's file", &path))?;
                let _ = files[1].unlock();
                Ok(())
            })
            .await
            .map(|()| Instant::now())
        }))
    }

    async fn send(&mut self) -> Result<()> {
        self.files[0].unlock().map_err(|error| io_error(error, "unlock the baseline's file", &self.path))
    }
}

#[async_trait]
impl Baseline for FileBaseline {
    async fn cycle(&self, name: &str) -> Result<()> {
        let path = self.folder.join(names::file_name(name));
        let (state, opened) = (Arc::clone(&self.state), Arc::clone(&self.opened));
        // On a thread that may block: opening a file may, releasing does not.
        let file = blocking(move || {
            let failed = |error| io_error(error, "open the baseline's file", &path);
            let (dir, name) = split(&path).map_err(failed)?;
            let folder = match opened.get() {
                Some(folder) => folder,
                None => {
                    let created = state.layout.create_folder(dir).map_err(failed)?;
                    opened.get_or_init(|| created)
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

    async fn notifications(&self, name: &str) -> Result<Option<Box<dyn BareNotification>>> {
        let path = self.folder.join(names::file_name(name));
        let (state, shown) = (Arc::clone(&self.state), path.clone());
        let files = blocking(move || {
            let failed = |error| io_error(error, "open the baseline's file", &path);
            let (dir, name) = split(&path).map_err(failed)?;
            let folder = state.layout.create_folder(dir).map_err(failed)?;
            let open = || folder.open_or_create(name, &path).map_err(failed);
            Ok([open()?, open()?])
        })
        .await?;
        Ok(Some(Box::new(UnlockNotification { files: Arc::new(files), path: shown })))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        let (state, folder, prefix) = (Arc::clone(&self.state), self.folder.clone(), prefix.to_owned());
        blocking(move || {
            let _ = std::fs::remove_dir_all(&folder);
            // Unlinking a lock file is safe here only: no client uses the benchmark's names any more.
            for (escaped, path) in state.layout.all(Kind::Mutex)? {
                if names::original(&escaped).is_some_and(|name| name.starts_with(&prefix)) {
                    let removed = state.layout.remove(&path);
                    removed.map_err(|error| io_error(error, "remove the lock file", &path))?;
                }
            }
            Ok(())
        })
        .await
    }
}
