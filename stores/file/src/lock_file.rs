//! A file with a token counter and a kernel lock: the lock file of a mutex, and the `gate` file of a pool.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use distlock_core::{Error, ErrorKind, FencingToken, Result};

use crate::error::io_error;
use crate::folder::Folder;
use crate::format::{self, Counter, NAME_AT, OWNER, OWNER_AT, Owner};
use crate::layout::{FileId, Layout, is_absent, sync_dir};
use crate::names;
use crate::watch::Watcher;

/// An open lock file. The kernel lock belongs to the open file, not to the process: two of them exclude each other in one
/// process too. Closing the file releases the lock, also when the process dies.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    path: PathBuf,
    id: FileId,
}

impl LockFile {
    /// Opens it for reading and writing, and creates it if it is missing.
    pub(crate) fn open(layout: &Layout, path: &Path) -> Result<Self> {
        let opened = layout.open(path).map(|(file, id)| LockFile { file, path: path.to_owned(), id });
        opened.map_err(|error| io_error(error, "open the lock file", path))
    }

    /// The same in an open folder.
    pub(crate) fn open_in(layout: &Layout, folder: &Folder, path: &Path) -> io::Result<Self> {
        let opened = match layout.open_in(folder, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match layout.create_in(folder, path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => layout.open_in(folder, path),
                made => made.and_then(|file| FileId::of(&file).map(|id| (file, id))),
            },
            opened => opened,
        };
        opened.map(|(file, id)| LockFile { file, path: path.to_owned(), id })
    }

    /// The same file under a descriptor that the kernel closes early when this process dies.
    pub(crate) fn with_high_descriptor(self, watcher: &Watcher) -> Self {
        LockFile { file: watcher.raise_descriptor(self.file), ..self }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    fn failed(&self, error: io::Error, action: &'static str) -> Error {
        io_error(error, action, &self.path)
    }

    /// Tries to take the exclusive lock. `false`: it is locked.
    pub(crate) fn try_lock(&self) -> Result<bool> {
        self.tried(self.file.try_lock())
    }

    /// Tries to take a shared lock. `false`: another client has the exclusive one.
    pub(crate) fn try_lock_shared(&self) -> Result<bool> {
        self.tried(self.file.try_lock_shared())
    }

    fn tried(&self, tried: Result<(), TryLockError>) -> Result<bool> {
        could_lock(tried).map_err(|error| self.failed(error, "lock the file"))
    }

    /// Releases the lock and keeps the file open.
    pub(crate) fn unlock(&self) {
        // This cannot fail on an open file that supports locks, and closing unlocks in any case.
        let _ = self.file.unlock();
    }

    /// Whether its path still leads to this file. After an unlink or a replacement, a lock on this file no longer excludes
    /// new clients.
    pub(crate) fn is_in_place(&self) -> Result<bool> {
        let there = FileId::at(&self.path).map_err(|error| self.failed(error, "check the lock file"))?;
        Ok(there == Some(self.id))
    }

    /// The owner that is written in it.
    pub(crate) fn owner(&self) -> Option<Owner> {
        read_owner(&self.file)
    }

    /// The next token, on disk when this returns, with the block of its owner. The caller must have the lock.
    ///
    /// A new file starts at the time of day in microseconds, so tokens keep rising after the file was unlinked; from there
    /// they rise by one. (A grant takes longer than a microsecond, so the count never gets ahead of the clock.)
    ///
    /// # Errors
    /// If the token cannot be written or made durable; then nothing may be granted. The token may have been written, and
    /// is skipped then.
    pub(crate) fn next_token(
        &self,
        name: &str,
        owner: impl FnOnce(FencingToken) -> Vec<u8>,
    ) -> Result<FencingToken> {
        let mut start = [0; 2 * format::COUNTER];
        let read = read_full(&self.file, &mut start, 0).map_err(|e| self.failed(e, "read the lock file"))?;
        let token = match format::read_counter(&start[..read]) {
            Counter::New => {
                let token =
                    FencingToken::new(u64::try_from(format::time_of_day().as_micros()).unwrap_or(1).max(1));
                self.initialize(name, token, owner(token))
                    .map_err(|error| self.failed(error, "write the lock file"))?;
                return Ok(token);
            }
            Counter::Last(last) if last < i64::MAX.unsigned_abs() => FencingToken::new(last + 1),
            Counter::Last(_) | Counter::Broken => {
                return Err(self.foreign("its counter was not written by distlock"));
            }
        };
        self.check_name(name)?;
        let written = self
            .file
            .write_all_at(&format::counter_block(token.get()), format::counter_at(token.get()))
            .and_then(|()| self.file.write_all_at(&owner(token), OWNER_AT))
            .and_then(|()| self.file.sync_data());
        written.map_err(|error| self.failed(error, "write the token"))?;
        Ok(token)
    }

    /// Writes a new file in full, so that no later grant needs more disk space. The counter comes last: if the disk fills up
    /// before, the file still counts as new.
    fn initialize(&self, name: &str, token: FencingToken, mut owner: Vec<u8>) -> io::Result<()> {
        owner.extend(format::name_text(name));
        self.file.write_all_at(&owner, OWNER_AT)?;
        let mut counters = vec![b' '; 2 * format::COUNTER];
        let at = usize::try_from(format::counter_at(token.get())).unwrap_or(0);
        counters[at..at + format::COUNTER].copy_from_slice(&format::counter_block(token.get()));
        self.file.write_all_at(&counters, 0)?;
        self.file.sync_all()?;
        match self.path.parent().map_or(Ok(()), sync_dir) {
            // The folder was removed meanwhile: then the file is not in place, which the caller checks.
            Err(error) if is_absent(&error) => Ok(()),
            synced => synced,
        }
    }

    /// Refuses the file of another name. Two long names share a file name only if another program copied the file.
    fn check_name(&self, name: &str) -> Result<()> {
        if !names::is_hashed(&names::file_name(name)) {
            return Ok(());
        }
        match self.name() {
            Some(there) if there == name => Ok(()),
            Some(_) => Err(self.foreign("it belongs to another name")),
            // A power failure during the first grant may keep the counter and lose the name.
            None => {
                let written = self.file.write_all_at(&format::name_text(name), NAME_AT);
                written.map_err(|error| self.failed(error, "write the name"))
            }
        }
    }

    /// The whole name, from the file's content.
    pub(crate) fn name(&self) -> Option<String> {
        read_name(&self.file)
    }

    fn foreign(&self, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("{}: {what}", self.path.display()))
            .doing("read the lock file")
            .advise("stop all users of this lock, then remove the file: tokens continue from the time of day")
    }

    /// Writes that the lock is free. This is for people only, so a failure is ignored.
    pub(crate) fn mark_free(&self) {
        let _ = self.file.write_all_at(&Owner::free_block(), OWNER_AT);
    }
}

/// The outcome of an attempt to lock: `false` if the file is locked.
pub(crate) fn could_lock(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether a file is locked exclusively, which means that its owner lives.
///
/// Takes a shared lock and releases it at once. Two inspections do not conflict, and a client that wants the exclusive lock
/// tells an inspection from a holder by trying a shared lock.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    let free = could_lock(file.try_lock_shared())?;
    if free {
        let _ = file.unlock();
    }
    Ok(!free)
}

/// The owner in a lock file.
pub(crate) fn read_owner(file: &File) -> Option<Owner> {
    read_owner_at(file, OWNER_AT)
}

/// Whether a lock file is marked free, or has no owner block yet.
pub(crate) fn is_marked_free(file: &File) -> bool {
    let mut block = [0; OWNER];
    let read = read_full(file, &mut block, OWNER_AT);
    read.is_ok_and(|read| Owner::is_free_block(&block[..read]))
}

/// The owner block at this position. A read may overlap a write and see a torn block, so it is repeated.
pub(crate) fn read_owner_at(file: &File, at: u64) -> Option<Owner> {
    let mut block = [0; OWNER];
    (0..3).find_map(|_| {
        let read = read_full(file, &mut block, at).ok()?;
        Owner::read(&block[..read])
    })
}

/// The whole name in a lock file.
pub(crate) fn read_name(file: &File) -> Option<String> {
    let mut text = vec![0; distlock_core::MAX_NAME_BYTES + 32];
    let read = read_full(file, &mut text, NAME_AT).ok()?;
    format::read_name(&text[..read])
}

fn read_full(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Access;

    fn open(dir: &Path, name: &str) -> LockFile {
        let layout = Layout::new(dir.to_owned(), Access::Private);
        LockFile::open(&layout, &layout.mutex(name)).unwrap()
    }

    fn next_token(file: &LockFile, name: &str) -> Result<u64> {
        file.next_token(name, |_| Owner::free_block()).map(FencingToken::get)
    }

    #[test]
    fn tokens_rise_by_one_and_keep_rising_after_the_file_was_unlinked() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(dir.path(), "a");
        let first = next_token(&file, "a").unwrap();
        for next in first + 1..first + 20 {
            assert_eq!(next_token(&open(dir.path(), "a"), "a").unwrap(), next);
        }
        std::fs::remove_file(file.path()).unwrap();
        assert!(!file.is_in_place().unwrap());
        assert!(next_token(&open(dir.path(), "a"), "a").unwrap() > first + 19);
    }

    #[test]
    fn a_foreign_file_is_refused_and_left_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = open(dir.path(), "a").path().to_owned();
        let precious = vec![b'#'; 5000];
        std::fs::write(&path, &precious).unwrap();
        let error = next_token(&open(dir.path(), "a"), "a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(std::fs::read(&path).unwrap(), precious);
    }

    #[test]
    fn the_file_of_another_long_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = ("x".repeat(500), "y".repeat(500));
        let file = open(dir.path(), &one);
        next_token(&file, &one).unwrap();
        next_token(&file, &one).unwrap();
        assert_eq!(file.name().as_deref(), Some(&*one));
        let other = open(dir.path(), &two);
        std::fs::copy(file.path(), other.path()).unwrap();
        assert_eq!(next_token(&open(dir.path(), &two), &two).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn an_interrupted_first_grant_does_not_corrupt_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let name = "x".repeat(3000);
        let file = open(dir.path(), &name);
        let token = next_token(&file, &name).unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        for length in [0, 1, 100, 511, 512, 700, 1024, 1500, 2048, 2060, whole.len() - 1] {
            std::fs::write(file.path(), &whole[..length]).unwrap();
            let next = next_token(&file, &name).unwrap();
            assert!(next > token, "{next} after {token}, cut at {length}");
            next_token(&file, &name).unwrap();
            assert_eq!(file.name().as_deref(), Some(&*name), "cut at {length}");
        }
    }

    #[test]
    fn an_inspection_is_not_taken_for_a_holder() {
        let dir = tempfile::tempdir().unwrap();
        let (holder, other) = (open(dir.path(), "a"), open(dir.path(), "a"));
        let inspects = File::open(holder.path()).unwrap();
        assert!(!is_locked(&inspects).unwrap());
        assert!(holder.try_lock().unwrap());
        assert!(
            is_locked(&inspects).unwrap() && !other.try_lock().unwrap() && !other.try_lock_shared().unwrap()
        );
        holder.unlock();
        inspects.try_lock_shared().unwrap();
        assert!(!other.try_lock().unwrap() && other.try_lock_shared().unwrap());
    }
}
