//! A file with a token counter and a kernel lock: the lock file of a mutex, and the `gate` file of a pool.

use std::fs::{File, TryLockError};
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use distlock_core::{Error, ErrorKind, FencingToken, Result};

use crate::error::io_error;
use crate::folder::Folder;
use crate::format::{self, Counter, NAME_AT, OWNER, OWNER_AT, Owner, OwnerBlock};
use crate::layout::{FileId, Layout, is_absent, sync_dir};
use crate::names;
use crate::tokens::{self, BootId, LastToken, NextToken};
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
    /// Opens one that exists, in an open folder.
    pub(crate) fn open_existing(layout: &Layout, folder: &Folder, path: &Path) -> io::Result<Self> {
        layout.open_in(folder, path).map(|(file, id)| LockFile { file, path: path.to_owned(), id })
    }

    /// Opens it for reading and writing, and creates it if it is missing.
    pub(crate) fn open(layout: &Layout, path: &Path) -> Result<Self> {
        let opened = layout.open(path).map(|(file, id)| LockFile { file, path: path.to_owned(), id });
        opened.map_err(|error| io_error(error, "open the lock file", path))
    }

    /// The same for a mutex; it may not be in place.
    pub(crate) fn open_mutex(layout: &Layout, path: &Path) -> Result<Self> {
        let opened = layout.open_mutex(path).map(|(file, id)| LockFile { file, path: path.to_owned(), id });
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

    pub(crate) fn into_file(self) -> File {
        self.file
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

    /// Its counter and its owner, read at once. The caller must have the lock.
    pub(crate) fn content(&self) -> Result<Content> {
        let mut bytes = [0; NAME_AT as usize];
        let read = read_full(&self.file, &mut bytes, 0).map_err(|e| self.failed(e, "read the lock file"))?;
        let (counters, owner) = bytes[..read].split_at(read.min(2 * format::COUNTER));
        let (owner, last) = Owner::read_with_last(owner);
        Ok(Content { counter: format::read_counter(counters), owner, last })
    }

    /// Counts the next token, and writes the block of its owner. A power failure after this returns repeats no token: see
    /// `tokens`. The caller must have the lock.
    ///
    /// A new file starts at the time of day in microseconds, so tokens keep rising after the file was unlinked.
    ///
    /// # Errors
    /// If the token cannot be written, or the ceiling cannot be made durable; then nothing may be granted. Tokens may be
    /// skipped then.
    pub(crate) fn next_token(
        &self,
        name: &str,
        content: &Content,
        boot: Option<BootId>,
        owner: impl FnOnce(FencingToken, Option<&LastToken>) -> OwnerBlock,
    ) -> Result<CountedToken> {
        let next = self.plan_token(content, boot)?;
        let NextToken { ceiling, moves_ceiling, .. } = next;
        let counted = CountedToken::of(next);
        let block = owner(counted.token, counted.last(boot).as_ref());
        let is_new = content.counter == Counter::New;
        if is_new {
            self.initialize(name, ceiling).map_err(|error| self.failed(error, "write the lock file"))?;
        } else {
            self.check_name(name)?;
        }
        let written = || {
            if moves_ceiling && !is_new {
                self.file.write_all_at(&format::counter_block(ceiling), format::counter_at(ceiling))?;
                self.file.sync_data()?;
            }
            // Not before: the last token counts only under a ceiling that is on disk.
            self.file.write_all_at(&block, OWNER_AT)
        };
        written().map_err(|error| self.failed(error, "write the token"))?;
        Ok(counted)
    }

    /// The same for a token that needs no disk. `None`, and nothing is written, if this one does.
    pub(crate) fn next_token_below_ceiling(
        &self,
        content: &Content,
        boot: Option<BootId>,
        owner: impl FnOnce(FencingToken, Option<&LastToken>) -> OwnerBlock,
    ) -> Result<Option<CountedToken>> {
        let next = self.plan_token(content, boot)?;
        if next.moves_ceiling || content.counter == Counter::New {
            return Ok(None);
        }
        let counted = CountedToken::of(next);
        let block = owner(counted.token, counted.last(boot).as_ref());
        self.file.write_all_at(&block, OWNER_AT).map_err(|error| self.failed(error, "write the token"))?;
        Ok(Some(counted))
    }

    fn plan_token(&self, content: &Content, boot: Option<BootId>) -> Result<NextToken> {
        let now = u64::try_from(format::time_of_day().as_micros()).unwrap_or(u64::MAX);
        tokens::next(content.counter, content.last, boot, now)
            .ok_or_else(|| self.foreign("its counter was not written by distlock"))
    }

    /// Writes a new file in full, so that no later grant needs more disk space. The counter comes last: if the disk fills up
    /// before, the file still counts as new. Without a last token: if this process dies before the ceiling is on disk, the next
    /// client must not count below it.
    fn initialize(&self, name: &str, ceiling: u64) -> io::Result<()> {
        let mut owner = Owner::free_block(None).to_vec();
        owner.extend(format::name_text(name));
        self.file.write_all_at(&owner, OWNER_AT)?;
        let mut counters = vec![b' '; 2 * format::COUNTER];
        let at = usize::try_from(format::counter_at(ceiling)).unwrap_or(0);
        counters[at..at + format::COUNTER].copy_from_slice(&format::counter_block(ceiling));
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
}

/// Writes that the lock of a file is free, and keeps its last token. The first is for people only, and tokens are skipped without
/// the second, so a failure is ignored.
pub(crate) fn mark_free(file: &File, last: Option<&LastToken>) {
    let _ = file.write_all_at(&Owner::free_block(last), OWNER_AT);
}

/// The counter and the owner block of a lock file.
#[derive(Debug)]
pub(crate) struct Content {
    counter: Counter,
    pub(crate) owner: Option<Owner>,
    last: Option<LastToken>,
}

/// A token that was counted, and the ceiling then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedToken {
    pub(crate) token: FencingToken,
    /// How far the ceiling is above it. Tokens are skipped if that is not known.
    pub(crate) ahead: Option<NonZeroU32>,
}

impl CountedToken {
    fn of(next: NextToken) -> Self {
        // One more, so that zero is none. The ceiling is at most a second of microseconds above a token.
        let ahead = next.ceiling.checked_sub(next.token).and_then(|ahead| u32::try_from(ahead + 1).ok());
        CountedToken { token: FencingToken::new(next.token), ahead: ahead.and_then(NonZeroU32::new) }
    }

    /// What the file says about it.
    pub(crate) fn last(&self, boot: Option<BootId>) -> Option<LastToken> {
        let (token, ahead) = (self.token.get(), u64::from(self.ahead?.get()) - 1);
        boot.map(|boot| LastToken { token, ceiling: token + ahead, boot })
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
mod tests;
