//! Where things are in the folder, and how folders and files are made there.
//!
//! ```text
//! DIR/mutex/NAME.lock             one for each mutex that was ever used, never removed
//! DIR/rwlock/NAME/gate            one folder for each pool that was ever used, never removed
//!                 queue/SLOT      one for each claim that waits
//!                 hold/SLOT       one for each claim that holds
//! DIR/semaphore/NAME/…            the same
//! DIR/turn/NAME/…                 the same: the queue of a fair mutex
//! DIR/waiting/HASH/…              one for each claim that waits for a mutex, in the order of their names
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use distlock_core::{Kind, Result};
use rustix::fs::OFlags;

use crate::config::Access;
use crate::failure::failure;
use crate::names;

/// Which file it is, whatever its path: a path may come to stand for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|meta| FileId { device: meta.dev(), inode: meta.ino() })
    }

    /// Which file stands at the path now, if any.
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        match fs::symlink_metadata(path) {
            Ok(meta) => Ok(Some(FileId { device: meta.dev(), inode: meta.ino() })),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether an error says that there is no such file.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The folder and the rights within it.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    base: PathBuf,
    access: Access,
}

const LOCK: &str = ".lock";
const WAITING: &str = "waiting";

impl Layout {
    pub(crate) fn new(base: PathBuf, access: Access) -> Self {
        Layout { base, access }
    }

    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    /// Whether it is shared by a group of users.
    pub(crate) fn is_for_group(&self) -> bool {
        self.access == Access::Group
    }

    /// The folders in which everything else is, those included that are not there yet.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let kinds = [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::Turn].map(|kind| self.of_kind(kind));
        kinds.into_iter().chain([self.base.join(WAITING)]).collect()
    }

    /// The lock file of a mutex.
    pub(crate) fn mutex(&self, name: &str) -> PathBuf {
        self.of_kind(Kind::Mutex).join(names::file_name(name) + LOCK)
    }

    /// The folder of a pool.
    pub(crate) fn pool(&self, kind: Kind, name: &str) -> PathBuf {
        self.of_kind(kind).join(names::file_name(name))
    }

    /// The folder in which the waiters for a mutex show themselves. It comes and goes with them.
    pub(crate) fn waiting(&self, name: &str) -> PathBuf {
        self.base.join(WAITING).join(names::short_hash(name))
    }

    fn of_kind(&self, kind: Kind) -> PathBuf {
        self.base.join(kind.as_str())
    }

    /// Everything of a kind that was ever used: the escaped name, and the lock file or the folder of the pool.
    pub(crate) fn all(&self, kind: Kind) -> Result<Vec<(String, PathBuf)>> {
        let suffix = if kind == Kind::Mutex { LOCK } else { "" };
        let dir = self.of_kind(kind);
        let names = list(&dir).map_err(|error| failure(error, "list the locks", &dir))?;
        let ours = names.into_iter().filter_map(|name| {
            let path = dir.join(&name);
            name.strip_suffix(suffix).map(|escaped| (escaped.to_owned(), path))
        });
        Ok(ours.collect())
    }

    /// Opens a file for reading and writing, and makes it and its folders if need be.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        loop {
            // Almost always it is there, and then nothing but this one call is made.
            match options().write(true).open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => return done,
            }
            match self.create(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                done => return done,
            }
        }
    }

    /// Makes a file that must not be there yet, and its folders if need be.
    pub(crate) fn create(&self, path: &Path) -> io::Result<File> {
        let mode = if self.access == Access::Group { 0o660 } else { 0o600 };
        let mut create = options();
        create.write(true).create_new(true).mode(mode);
        let file = match create.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                path.parent().map_or(Ok(()), |parent| self.make_dir(parent))?;
                create.open(path)?
            }
            done => done?,
        };
        if self.access == Access::Group {
            // The umask usually takes the group's right to write away.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(file)
    }

    /// Makes a folder, and those above it if need be. That somebody else made it meanwhile is no error.
    pub(crate) fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let make = || DirBuilder::new().mode(0o700).create(dir);
        let made = match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                dir.parent().map_or(Ok(()), |parent| self.make_dir(parent))?;
                make()
            }
            made => made,
        };
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => return Ok(()),
            made => made?,
        }
        if self.access == Access::Group && dir.starts_with(&self.base) {
            fs::set_permissions(dir, Permissions::from_mode(0o2770))?;
        }
        match dir.parent() {
            // What waiters show of themselves need not survive a power failure.
            Some(parent) if !dir.starts_with(self.base.join(WAITING)) => sync_dir(parent),
            _ => Ok(()),
        }
    }
}

/// Opening of files that others may have put there: links are not followed, and a pipe does not block. The
/// standard library adds `O_CLOEXEC`, so that no child process inherits a lock.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

/// Opens a file only to look. Closing it wakes nobody: waiters listen for the closing of files that were open for
/// writing.
pub(crate) fn look(path: &Path) -> io::Result<Option<File>> {
    match options().open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names in a folder; none if there is no such folder. What is not UTF-8 is none of ours.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(dir) {
        Ok(entries) => {
            let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
            names.filter_map(io::Result::transpose).collect()
        }
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Makes the names in a folder survive a power failure.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_are_private_unless_a_group_is_to_share_them() {
        let dir = tempfile::tempdir().unwrap();
        for (access, folders, files) in [(Access::Private, 0o700, 0o600), (Access::Group, 0o2770, 0o660)] {
            let base = dir.path().join(format!("deep/er/{access:?}"));
            let layout = Layout::new(base.clone(), access);
            let path = layout.mutex("a");
            layout.open(&path).unwrap();
            assert_eq!((mode(&base), mode(path.parent().unwrap()), mode(&path)), (folders, folders, files));
        }
    }

    #[test]
    fn a_symbolic_link_is_not_followed_and_a_pipe_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path().to_owned(), Access::Private);
        let victim = dir.path().join("victim");
        fs::write(&victim, "x").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("link")).unwrap();
        assert!(layout.open(&dir.path().join("link")).is_err());
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(look(&pipe).is_ok());
    }

    #[test]
    fn kinds_of_one_name_never_share_a_path() {
        let layout = Layout::new("/d".into(), Access::Private);
        let kinds = [Kind::RwLock, Kind::Semaphore, Kind::Turn];
        let mut paths: Vec<PathBuf> = kinds.iter().map(|kind| layout.pool(*kind, "../x")).collect();
        paths.push(layout.mutex("../x"));
        assert!(
            paths.iter().all(|path| path.starts_with("/d") && path.components().count() == 4),
            "{paths:?}"
        );
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 4);
    }
}
