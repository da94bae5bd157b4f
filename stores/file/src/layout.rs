//! The paths in the folder, and how folders and files are opened and created there.
//!
//! ```text
//! DIR/mutex/NAME.lock             one for each mutex ever used, never unlinked
//! DIR/rwlock/NAME/gate            one folder for each pool ever used, never removed
//!                 queue/SLOT      one for each waiter
//!                 hold/SLOT       one for each holder
//! DIR/semaphore/NAME/…            the same
//! DIR/turn/NAME/…                 the same: the queue of a fair mutex
//! DIR/waiting/HASH/…              one for each waiter of a mutex, in the order of their names
//! ```

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::{Kind, Result};
use rustix::fs::OFlags;

use crate::config::Access;
use crate::error::io_error;
use crate::folder::{Folder, Refusal};
use crate::names;

/// The identity of a file. A path may lead to another file later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    /// Linux gives devices numbers of 32 bits. Those of a system that does not are folded.
    pub(crate) device: u32,
    pub(crate) inode: u64,
}

impl FileId {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|meta| FileId::in_meta(&meta))
    }

    fn in_meta(meta: &Metadata) -> Self {
        FileId { device: (meta.dev() ^ (meta.dev() >> 32)) as u32, inode: meta.ino() }
    }

    /// The file that the path leads to now, if any.
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        match fs::symlink_metadata(path) {
            Ok(meta) => Ok(Some(FileId::in_meta(&meta))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether an error means that the file does not exist.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The base folder and its access rights.
#[derive(Debug)]
pub(crate) struct Layout {
    base: PathBuf,
    access: Access,
    /// The folder of the mutexes as it was last found. Another one may be in its place.
    mutexes: Mutex<Option<Arc<Folder>>>,
}

const LOCK: &str = ".lock";
const WAITERS: &str = "waiting";

impl Layout {
    pub(crate) fn new(base: PathBuf, access: Access) -> Self {
        Layout { base, access, mutexes: Mutex::default() }
    }

    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    /// Whether a group of users shares it.
    pub(crate) fn is_for_group(&self) -> bool {
        self.access == Access::Group
    }

    /// All folders directly below the base, whether they exist or not.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let kinds =
            [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue].map(|kind| self.of_kind(kind));
        kinds.into_iter().chain([self.base.join(WAITERS)]).collect()
    }

    /// The folder of the mutexes.
    pub(crate) fn mutexes(&self) -> PathBuf {
        self.of_kind(Kind::Mutex)
    }

    /// The lock file of a mutex.
    pub(crate) fn mutex(&self, name: &str) -> PathBuf {
        let file = names::file_name(name) + LOCK;
        let folder = Kind::Mutex.as_str();
        let mut path = PathBuf::with_capacity(self.base.as_os_str().len() + folder.len() + file.len() + 2);
        path.push(&self.base);
        path.push(folder);
        path.push(file);
        path
    }

    /// The folder of a pool.
    pub(crate) fn pool(&self, kind: Kind, name: &str) -> PathBuf {
        self.of_kind(kind).join(names::file_name(name))
    }

    /// The folder of the waiter files of a mutex. It exists only while there are waiters.
    pub(crate) fn waiters(&self, name: &str) -> PathBuf {
        self.base.join(WAITERS).join(names::short_hash(name))
    }

    fn of_kind(&self, kind: Kind) -> PathBuf {
        self.base.join(kind.as_str())
    }

    /// Every resource of a kind that was ever used: the escaped name, and the lock file or the folder of the pool.
    pub(crate) fn all(&self, kind: Kind) -> Result<Vec<(String, PathBuf)>> {
        let suffix = if kind == Kind::Mutex { LOCK } else { "" };
        let dir = self.of_kind(kind);
        let names = self.list(&dir).map_err(|error| io_error(error, "list the locks", &dir))?;
        let all = names.into_iter().filter_map(|name| {
            let path = dir.join(&name);
            name.strip_suffix(suffix).map(|escaped| (escaped.to_owned(), path))
        });
        Ok(all.collect())
    }

    /// Opens the base folder, or one below it.
    ///
    /// # Errors
    /// A [`Refusal`] if a component is a link, or belongs neither to this user nor to root nor to the owner of the base
    /// folder. A folder for a group may have many owners.
    pub(crate) fn folder(&self, dir: &Path) -> io::Result<Folder> {
        self.walk(dir, |base, sub, path| self.check_owner(base, sub.metadata()?.st_uid, path))
    }

    fn walk(
        &self,
        dir: &Path,
        check: impl Fn(&Folder, &Folder, &Path) -> io::Result<()>,
    ) -> io::Result<Folder> {
        let base = Folder::at(&self.base)?;
        let mut path = self.base.clone();
        let mut at: Option<Folder> = None;
        for name in self.below(dir)? {
            path.push(name);
            let sub = at.as_ref().unwrap_or(&base).sub(name, &path)?;
            check(&base, &sub, &path)?;
            at = Some(sub);
        }
        Ok(at.unwrap_or(base))
    }

    /// Opens a folder in an open one.
    pub(crate) fn sub(&self, folder: &Folder, dir: &Path) -> io::Result<Folder> {
        let sub = folder.sub(split(dir)?.1, dir)?;
        let owner = sub.metadata()?.st_uid;
        if !self.is_for_group() && owner != rustix::process::geteuid().as_raw() {
            self.check_owner(&Folder::at(&self.base)?, owner, dir)?;
        }
        Ok(sub)
    }

    /// The components of a path below the base.
    fn below<'a>(&self, path: &'a Path) -> io::Result<impl Iterator<Item = &'a Path>> {
        let below = path.strip_prefix(&self.base).map_err(|_| io::ErrorKind::InvalidInput)?;
        if below.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(below.iter().map(Path::new))
    }

    fn check_owner(&self, base: &Folder, owner: u32, path: &Path) -> io::Result<()> {
        let me = rustix::process::geteuid().as_raw();
        // A user who names the folder trusts its owner.
        if self.is_for_group() || owner == me || owner == 0 || owner == base.metadata()?.st_uid {
            return Ok(());
        }
        Err(Refusal::Owner(path.to_owned(), owner).into())
    }

    /// Opens a file for reading and writing, and creates it and its folders if they are missing.
    pub(crate) fn open(&self, path: &Path) -> io::Result<(File, FileId)> {
        let (dir, _) = split(path)?;
        recreating(|| {
            // It nearly always exists.
            match self.folder(dir).and_then(|folder| self.open_in(&folder, path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
            match self.create(path) {
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.folder(dir).and_then(|folder| self.open_in(&folder, path))
                }
                made => made.and_then(|file| FileId::of(&file).map(|id| (file, id))),
            }
        })
    }

    /// Opens the lock file of a mutex, and creates it if it is missing. The file may be in a folder that was moved or removed: the
    /// caller must check whether it is in place, and if not [`open`](Layout::open) it.
    pub(crate) fn open_mutex(&self, path: &Path) -> io::Result<(File, FileId)> {
        match self.known_mutexes().map(|folder| self.open_in(&folder, path)) {
            None | Some(Err(_)) => {}
            Some(opened) => return opened,
        }
        let opened = self.open(path)?;
        let folder = self.folder(split(path)?.0).ok().map(Arc::new);
        *self.mutexes.lock().unwrap_or_else(PoisonError::into_inner) = folder;
        Ok(opened)
    }

    /// The folder of the mutexes as it was last found, if it was. Another one may be in its place.
    pub(crate) fn known_mutexes(&self) -> Option<Arc<Folder>> {
        self.mutexes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets the folder of the mutexes, because a file in it is not in place.
    pub(crate) fn forget_mutexes(&self) {
        *self.mutexes.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Opens a file in an open folder for reading and writing.
    pub(crate) fn open_in(&self, folder: &Folder, path: &Path) -> io::Result<(File, FileId)> {
        let file = folder.open(split(path)?.1, path)?;
        let meta = file.metadata()?;
        if !self.is_for_group() && meta.uid() != rustix::process::geteuid().as_raw() {
            self.check_owner(&Folder::at(&self.base)?, meta.uid(), path)?;
        }
        let id = FileId::in_meta(&meta);
        Ok((file, id))
    }

    /// Creates a file that must not exist, and its folders if they are missing.
    fn create(&self, path: &Path) -> io::Result<File> {
        self.create_in(&self.create_folder(split(path)?.0)?, path)
    }

    /// Creates a file that must not exist in an open folder.
    pub(crate) fn create_in(&self, folder: &Folder, path: &Path) -> io::Result<File> {
        let mode = if self.is_for_group() { 0o660 } else { 0o600 };
        let file = folder.create(split(path)?.1, mode)?;
        if self.is_for_group() {
            // The umask usually removes the group's right to write.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(file)
    }

    /// Opens a folder, and creates it and its parents if they are missing. Another process may create it at the same time.
    pub(crate) fn create_folder(&self, dir: &Path) -> io::Result<Folder> {
        match self.folder(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        if dir == self.base {
            let made = create_base(dir)?;
            let base = Folder::at(dir)?;
            if made && self.is_for_group() {
                base.set_mode(0o2770)?;
            }
            return Ok(base);
        }
        let (parent, name) = split(dir)?;
        let above = self.create_folder(parent)?;
        let made = match above.create_folder(name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            made => made.map(|()| true)?,
        };
        let folder = self.folder(dir)?;
        if made && self.is_for_group() {
            folder.set_mode(0o2770)?;
        }
        // Waiter files need not survive a power failure.
        if made && !dir.starts_with(self.base.join(WAITERS)) {
            above.sync()?;
        }
        Ok(folder)
    }

    /// Opens a file for reading. `None` if it does not exist.
    pub(crate) fn open_read_only(&self, path: &Path) -> io::Result<Option<File>> {
        let (dir, name) = split(path)?;
        if_present(self.folder(dir).and_then(|folder| folder.open_read_only(name, path)))
    }

    /// The names in a folder; none if it does not exist.
    pub(crate) fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        if_present(self.folder(dir).and_then(|folder| folder.list())).map(Option::unwrap_or_default)
    }

    /// Removes a file. The owner of its folder is not checked.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = split(path)?;
        self.walk(dir, |_, _, _| Ok(()))?.remove(name)
    }

    /// Removes a folder if it is empty.
    pub(crate) fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let (parent, name) = split(dir)?;
        self.folder(parent)?.remove_folder(name)
    }
}

/// How often in a row another program may remove a folder while it is used.
pub(crate) const RECREATIONS: u32 = 100;

/// Does something that creates the folders it needs. Another program, such as a clean-up of temporary files, may remove them
/// between two steps: then it is done again.
pub(crate) fn recreating<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut done = work();
    for _ in 0..RECREATIONS {
        match &done {
            Err(error) if error.kind() == io::ErrorKind::NotFound => done = work(),
            _ => break,
        }
    }
    done
}

/// The folder and the name of a path.
pub(crate) fn split(path: &Path) -> io::Result<(&Path, &Path)> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => Ok((dir, Path::new(name))),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Turns "does not exist" into `None`.
pub(crate) fn if_present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    File::options().read(true).custom_flags(flags.bits().cast_signed()).open(dir)?.sync_all()
}

/// Creates the base folder and its parents. True if this call created it.
fn create_base(dir: &Path) -> io::Result<bool> {
    let create = || DirBuilder::new().mode(0o700).create(dir);
    let made = match create() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            dir.parent().map_or(Ok(()), |parent| create_base(parent).map(drop))?;
            create()
        }
        made => made,
    };
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => return Ok(false),
        made => made?,
    }
    dir.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())?;
    Ok(true)
}

#[cfg(test)]
mod tests;
