//! Temporary folders for servers' data, removed after the test, or by a later one if the test was killed.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Once;

use tempfile::TempDir;

use super::postgres::shared_memory;
use super::spawn;

const PREFIX: &str = "distlock-kit-";
const OWNER: &str = "owner";

/// The data folder of one server, owned by the user that the server runs as.
#[derive(Debug)]
pub struct DataFolder {
    folder: TempDir,
    /// Locked during our lifetime: tells [`sweep`] in other processes that the folder is in use.
    _owner: File,
}

impl DataFolder {
    /// Creates an empty folder.
    ///
    /// # Panics
    /// If it cannot be created.
    #[must_use]
    pub fn create() -> Self {
        static SWEEP: Once = Once::new();
        let base = base();
        SWEEP.call_once(|| sweep(&base));
        let sweep_lock = sweep_lock(&base);
        sweep_lock.lock_shared().expect("cannot lock against the removal of old data folders");
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(&base)
            .unwrap_or_else(|e| panic!("cannot create a data folder in {}: {e}", base.display()));
        let owner = File::create(folder.path().join(OWNER)).expect("cannot mark the data folder as ours");
        owner.lock().expect("cannot lock the data folder's mark");
        if let Some(user) = spawn::server_user() {
            chown(folder.path(), Some(user), Some(user))
                .expect("cannot give the data folder to the server's user");
        }
        Self { folder, _owner: owner }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file that the server can read, atomically: a reader sees the old content or the new.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path().join(name);
        let new = self.path().join(format!("{name}.new"));
        fs::write(&new, content).unwrap_or_else(|e| panic!("cannot write {}: {e}", new.display()));
        if let Some(user) = spawn::server_user() {
            chown(&new, Some(user), Some(user)).expect("cannot give a file to the server's user");
        }
        fs::rename(&new, &path).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
        path
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        shared_memory::release(self.path());
    }
}

/// The variable that says where the data folders of servers are created.
const BASE: &str = "DISTLOCK_TEST_DATA";

/// The folder that the variable [`BASE`] names, else the temporary folder, unless the servers' user cannot reach it.
fn base() -> PathBuf {
    if let Some(chosen) = std::env::var_os(BASE).filter(|chosen| !chosen.is_empty()) {
        return PathBuf::from(chosen);
    }
    let usual = std::env::temp_dir();
    if spawn::server_user().is_none() || all_users_can_reach(&usual) { usual } else { PathBuf::from("/tmp") }
}

/// Whether every user may traverse all folders down to `path`, and enter or execute it.
pub(super) fn all_users_can_reach(path: &Path) -> bool {
    let Ok(real) = path.canonicalize() else { return false };
    real.ancestors().all(|p| fs::metadata(p).is_ok_and(|m| m.permissions().mode() & 0o001 != 0))
}

/// The file whose lock protects creation and removal of folders, so that no folder is removed before it is marked as in use.
fn sweep_lock(base: &Path) -> File {
    let path = base.join(format!("distlock-testkit-{}.lock", me()));
    let file = File::options().create(true).append(true).open(&path);
    file.unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()))
}

/// Removes the folders of ended test processes, which were killed or kept their server in a `static`.
fn sweep(base: &Path) {
    let sweep_lock = sweep_lock(base);
    let Ok(entries) = fs::read_dir(base) else { return };
    sweep_lock.lock().expect("cannot lock against the creation of data folders");
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let mark = entry.path().join(OWNER);
        let mine = fs::metadata(&mark).is_ok_and(|file| file.uid() == me());
        if mine && File::open(&mark).is_ok_and(|file| file.try_lock().is_ok()) {
            shared_memory::release(&entry.path());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}
