//! Folders by descriptor.
//!
//! Another user may be able to write into the base folder, and may put a symbolic link there at any moment, even between two
//! steps of ours. So everything below the base is reached one component at a time, from the descriptor of the folder above,
//! and no component may be a link. Paths are used only to read metadata.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Why a file or folder is refused although it exists.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A symbolic link instead of a folder or a file.
    SymbolicLink(PathBuf),
    /// Owned by an untrusted user.
    Owner(PathBuf, u32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::SymbolicLink(path) => write!(f, "{} is a symbolic link", path.display()),
            Refusal::Owner(path, user) => write!(f, "{} belongs to user {user}", path.display()),
        }
    }
}

impl Error for Refusal {}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        io::Error::new(io::ErrorKind::PermissionDenied, refusal)
    }
}

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder(OwnedFd);

/// `O_PATH` needs no right to read the folder.
#[cfg(target_os = "linux")]
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// For files that another user may have created: links are not followed, and a pipe does not block. Child processes do not
/// inherit the lock.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

impl Folder {
    /// The folder at a path of the user's choice: links in it are followed.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Folder(rustix::fs::openat(CWD, path, FOLDER, Mode::empty())?))
    }

    /// A folder in this one. `path` is for error messages.
    pub(crate) fn sub(&self, name: &Path, path: &Path) -> io::Result<Self> {
        let opened = rustix::fs::openat(&self.0, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
        opened.map(Folder).map_err(|errno| self.refusal_or(name, path, errno))
    }

    /// Opens a file in this folder for reading and writing.
    pub(crate) fn open(&self, name: &Path, path: &Path) -> io::Result<File> {
        let opened = rustix::fs::openat(&self.0, name, OFlags::RDWR | FILE, Mode::empty());
        opened.map(File::from).map_err(|errno| self.refusal_or(name, path, errno))
    }

    /// Opens a file in this folder for reading. Closing it wakes no waiter: they watch for files that were open for writing.
    pub(crate) fn open_read_only(&self, name: &Path, path: &Path) -> io::Result<File> {
        let opened = rustix::fs::openat(&self.0, name, OFlags::RDONLY | FILE, Mode::empty());
        opened.map(File::from).map_err(|errno| self.refusal_or(name, path, errno))
    }

    /// Opens a file in this folder for reading and writing, and creates it for this user only if it is missing.
    #[cfg(feature = "bench")]
    pub(crate) fn open_or_create(&self, name: &Path, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | FILE;
        let opened = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR);
        opened.map(File::from).map_err(|errno| self.refusal_or(name, path, errno))
    }

    /// Creates a file that must not exist.
    pub(crate) fn create(&self, name: &Path, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(mode)).map(File::from)?)
    }

    /// Creates a folder that must not exist, for this user only.
    pub(crate) fn create_folder(&self, name: &Path) -> io::Result<()> {
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

    /// The metadata of a name; of a link, not of its target.
    pub(crate) fn stat(&self, name: &Path) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The metadata of the folder itself.
    pub(crate) fn metadata(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.0)?)
    }

    /// Whether this user may create files here.
    pub(crate) fn is_writable(&self) -> bool {
        use rustix::fs::{Access, accessat};
        accessat(&self.0, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    }

    /// The names in it, without those that are not UTF-8: distlock writes none.
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

    /// Makes the names in it durable.
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

    /// Recognises a symbolic link: systems report it with different errors.
    fn refusal_or(&self, name: &Path, path: &Path, errno: Errno) -> io::Error {
        let is_link = || self.stat(name).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink());
        if matches!(errno, Errno::LOOP | Errno::NOTDIR | Errno::MLINK) && is_link() {
            return Refusal::SymbolicLink(path.to_owned()).into();
        }
        errno.into()
    }
}
