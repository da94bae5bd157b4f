//! Folders by their descriptors.
//!
//! Another user may be able to write into the base folder, and may put a symbolic link there at any moment, also between
//! two steps of ours. So everything below the base is reached one component at a time, from the descriptor of the folder
//! above, and no component may be a link. A path is only used to look at metadata.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Something that is not used although it could be opened.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A symbolic link stands where a folder or a file should be.
    Link(PathBuf),
    /// It belongs to a user who has no business there.
    Owner(PathBuf, u32),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Link(path) => write!(f, "{} is a symbolic link", path.display()),
            Refused::Owner(path, user) => write!(f, "{} belongs to user {user}", path.display()),
        }
    }
}

impl Error for Refused {}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        io::Error::new(io::ErrorKind::PermissionDenied, refused)
    }
}

/// A folder that was opened to reach what is in it.
#[derive(Debug)]
pub(crate) struct Folder(OwnedFd);

/// The right to read a folder is not needed to reach what is in it.
#[cfg(target_os = "linux")]
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// Opening of files that others may have put there: links are not followed, and a pipe does not block. No child process
/// inherits a lock.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

impl Folder {
    /// The folder at a path that the user named: links in it are the user's.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Folder(rustix::fs::openat(CWD, path, FOLDER, Mode::empty())?))
    }

    /// A folder in this one. `path` is for messages.
    pub(crate) fn sub(&self, name: &Path, path: &Path) -> io::Result<Self> {
        let opened = rustix::fs::openat(&self.0, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
        opened.map(Folder).map_err(|errno| self.refused(name, path, errno))
    }

    /// Opens a file in this folder for reading and writing.
    pub(crate) fn open(&self, name: &Path, path: &Path) -> io::Result<File> {
        let opened = rustix::fs::openat(&self.0, name, OFlags::RDWR | FILE, Mode::empty());
        opened.map(File::from).map_err(|errno| self.refused(name, path, errno))
    }

    /// Opens a file in this folder only to look. Closing it wakes no waiter: they listen for the closing of files that were
    /// open for writing.
    pub(crate) fn look(&self, name: &Path, path: &Path) -> io::Result<File> {
        let opened = rustix::fs::openat(&self.0, name, OFlags::RDONLY | FILE, Mode::empty());
        opened.map(File::from).map_err(|errno| self.refused(name, path, errno))
    }

    /// The same, made for this user alone if need be.
    #[cfg(feature = "bench")]
    pub(crate) fn open_or_create(&self, name: &Path, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | FILE;
        let opened = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR);
        opened.map(File::from).map_err(|errno| self.refused(name, path, errno))
    }

    /// Makes a file that must not be there yet.
    pub(crate) fn create(&self, name: &Path, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(mode)).map(File::from)?)
    }

    /// Makes a folder that must not be there yet, for this user alone.
    pub(crate) fn make(&self, name: &Path) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.0, name, Mode::RWXU)?)
    }

    pub(crate) fn remove(&self, name: &Path) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Removes a folder if it is empty.
    pub(crate) fn remove_folder(&self, name: &Path) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Moves a file into another folder, or under another name in this one.
    pub(crate) fn rename(&self, name: &Path, to: &Folder, new: &Path) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, name, &to.0, new)?)
    }

    /// What stands under a name; a link itself, not where it leads.
    pub(crate) fn stat(&self, name: &Path) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The folder's own rights and owner.
    pub(crate) fn own(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.0)?)
    }

    /// Whether this user may make files here.
    pub(crate) fn may_write(&self) -> bool {
        use rustix::fs::{Access, accessat};
        accessat(&self.0, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    }

    /// The names in it. What is not UTF-8 is none of ours.
    pub(crate) fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.readable()?)? {
            if let Ok(name) = entry?.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Makes the names in it survive a power failure.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.readable()?.sync_all()
    }

    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(self.readable()?, Mode::from_raw_mode(mode))?)
    }

    fn readable(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, ".", flags, Mode::empty()).map(File::from)?)
    }

    /// Systems do not agree on the error for a link where a folder should be.
    fn refused(&self, name: &Path, path: &Path, errno: Errno) -> io::Error {
        let is_link = || self.stat(name).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink());
        if matches!(errno, Errno::LOOP | Errno::NOTDIR | Errno::MLINK) && is_link() {
            return Refused::Link(path.to_owned()).into();
        }
        errno.into()
    }
}
