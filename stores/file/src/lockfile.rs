//! A file with a counter and a kernel lock: the lock file of a mutex, and the gate of a pool.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use distlock_core::{Error, ErrorKind, FencingToken, Result};

use crate::failure::failure;
use crate::folder::Folder;
use crate::layout::{FileId, Layout, sync_dir};
use crate::names;
use crate::record::{self, Count, NAME_AT, NOTE, NOTE_AT, Note};
use crate::watch::Watcher;

/// An open lock file. The kernel lock belongs to the open file, not to the process: two of them exclude each
/// other inside one process as well, and closing, by death of the process too, gives it back.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    path: PathBuf,
    id: FileId,
}

impl LockFile {
    /// Opens it for reading and writing, and makes it if need be.
    pub(crate) fn open(layout: &Layout, path: &Path) -> Result<Self> {
        let opened = layout.open(path).map(|(file, id)| LockFile { file, path: path.to_owned(), id });
        opened.map_err(|error| failure(error, "open the lock file", path))
    }

    /// The same in a folder that was opened before.
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

    /// The same, in the place among our files that a held one should have.
    pub(crate) fn raised(self, watcher: &Watcher) -> Self {
        LockFile { file: watcher.raise(self.file), ..self }
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
        failure(error, action, &self.path)
    }

    /// Tries to lock it for us alone. `false`: somebody has it.
    pub(crate) fn try_lock(&self) -> Result<bool> {
        self.tried(self.file.try_lock())
    }

    /// Tries to lock it together with others who only look. `false`: somebody has it alone.
    pub(crate) fn try_lock_shared(&self) -> Result<bool> {
        self.tried(self.file.try_lock_shared())
    }

    fn tried(&self, tried: Result<(), TryLockError>) -> Result<bool> {
        could_lock(tried).map_err(|error| self.failed(error, "lock the file"))
    }

    /// Gives the lock back and keeps the file open.
    pub(crate) fn unlock(&self) {
        // It cannot fail on an open file that supports locks, and closing unlocks in any case.
        let _ = self.file.unlock();
    }

    /// Whether its path still stands for this file. If somebody removed or replaced it, a lock on this one
    /// excludes nobody who comes later.
    pub(crate) fn is_in_place(&self) -> Result<bool> {
        let there = FileId::at(&self.path).map_err(|error| self.failed(error, "look at the lock file"))?;
        Ok(there == Some(self.id))
    }

    /// What its note says now.
    pub(crate) fn note(&self) -> Option<Note> {
        read_note(&self.file)
    }

    /// Counts one further: the token is on the disk when this returns. Only for the one who has the lock.
    ///
    /// A new file starts at the time of day in microseconds, so that tokens go on rising also after somebody
    /// removed it; from there they rise by one. (Nobody grants more than one in a microsecond, so that a count never
    /// gets ahead of the clock.)
    ///
    /// # Errors
    /// If it cannot be written or made durable; then nothing may be granted. The token may have been counted all
    /// the same, and is skipped then.
    pub(crate) fn count(
        &self,
        name: &str,
        note: impl FnOnce(FencingToken) -> Vec<u8>,
    ) -> Result<FencingToken> {
        let mut start = [0; 2 * record::COUNTER];
        let read = read_full(&self.file, &mut start, 0).map_err(|e| self.failed(e, "read the lock file"))?;
        let token = match record::read_count(&start[..read]) {
            Count::New => {
                let token =
                    FencingToken::new(u64::try_from(record::since_1970().as_micros()).unwrap_or(1).max(1));
                self.begin(name, token, note(token))
                    .map_err(|error| self.failed(error, "write the lock file"))?;
                return Ok(token);
            }
            Count::Last(last) if last < i64::MAX.unsigned_abs() => FencingToken::new(last + 1),
            Count::Last(_) | Count::Broken => {
                return Err(self.foreign("its counter was not written by distlock"));
            }
        };
        self.check_name(name)?;
        let written = self
            .file
            .write_all_at(&record::counter_block(token.get()), record::counter_at(token.get()))
            .and_then(|()| self.file.write_all_at(&note(token), NOTE_AT))
            .and_then(|()| self.file.sync_data());
        written.map_err(|error| self.failed(error, "write the token"))?;
        Ok(token)
    }

    /// Writes a new file as a whole, so that no later grant needs more space on the disk. The counter comes last: if
    /// the disk is full on the way, the file still counts as new.
    fn begin(&self, name: &str, token: FencingToken, mut note: Vec<u8>) -> io::Result<()> {
        note.extend(record::name_text(name));
        self.file.write_all_at(&note, NOTE_AT)?;
        let mut counters = vec![b' '; 2 * record::COUNTER];
        let at = usize::try_from(record::counter_at(token.get())).unwrap_or(0);
        counters[at..at + record::COUNTER].copy_from_slice(&record::counter_block(token.get()));
        self.file.write_all_at(&counters, 0)?;
        self.file.sync_all()?;
        self.path.parent().map_or(Ok(()), sync_dir)
    }

    /// Two names have one hash only if somebody put the file there.
    fn check_name(&self, name: &str) -> Result<()> {
        if !names::is_hashed(&names::file_name(name)) {
            return Ok(());
        }
        match self.name() {
            Some(there) if there == name => Ok(()),
            Some(_) => Err(self.foreign("it belongs to another name")),
            // A power failure during the first grant may have kept the counter and lost the name.
            None => {
                let written = self.file.write_all_at(&record::name_text(name), NAME_AT);
                written.map_err(|error| self.failed(error, "write the name"))
            }
        }
    }

    /// The whole name, from inside the file.
    pub(crate) fn name(&self) -> Option<String> {
        read_name(&self.file)
    }

    fn foreign(&self, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("{}: {what}", self.path.display()))
            .doing("read the lock file")
            .advise(
                "end everything that uses this lock, then remove the file: tokens go on from the time of day",
            )
    }

    /// Writes that nobody holds. It is for people only: failing changes nothing.
    pub(crate) fn clear_note(&self) {
        let _ = self.file.write_all_at(&Note::blank(), NOTE_AT);
    }
}

/// What an attempt to lock says: `false` if somebody has it.
pub(crate) fn could_lock(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether somebody has a file locked for himself alone: the only sign of life there is, and the only one needed.
///
/// It asks for a shared lock, and gives it back at once. Two who look never meet, and those who want to lock a file
/// alone know how to tell somebody who looks from somebody who holds.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    let free = could_lock(file.try_lock_shared())?;
    if free {
        let _ = file.unlock();
    }
    Ok(!free)
}

/// The note of a lock file that was opened only to look.
pub(crate) fn read_note(file: &File) -> Option<Note> {
    read_note_at(file, NOTE_AT)
}

/// Whether the note of a lock file says that it is free, or nothing was ever written there.
pub(crate) fn says_free(file: &File) -> bool {
    let mut block = [0; NOTE];
    let read = read_full(file, &mut block, NOTE_AT);
    read.is_ok_and(|read| Note::is_blank(&block[..read]))
}

/// A note may be read while it is being written: then it is broken, and a moment later it is not.
pub(crate) fn read_note_at(file: &File, at: u64) -> Option<Note> {
    let mut block = [0; NOTE];
    (0..3).find_map(|_| {
        let read = read_full(file, &mut block, at).ok()?;
        Note::read(&block[..read])
    })
}

/// The name of a lock file that was opened only to look.
pub(crate) fn read_name(file: &File) -> Option<String> {
    let mut text = vec![0; distlock_core::MAX_NAME_BYTES + 32];
    let read = read_full(file, &mut text, NAME_AT).ok()?;
    record::read_name(&text[..read])
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

    fn count(file: &LockFile, name: &str) -> Result<u64> {
        file.count(name, |_| Note::blank()).map(FencingToken::get)
    }

    #[test]
    fn tokens_rise_by_one_and_go_on_rising_after_the_file_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(dir.path(), "a");
        let first = count(&file, "a").unwrap();
        for next in first + 1..first + 20 {
            assert_eq!(count(&open(dir.path(), "a"), "a").unwrap(), next);
        }
        std::fs::remove_file(file.path()).unwrap();
        assert!(!file.is_in_place().unwrap());
        assert!(count(&open(dir.path(), "a"), "a").unwrap() > first + 19);
    }

    #[test]
    fn a_file_that_is_not_ours_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = open(dir.path(), "a").path().to_owned();
        let precious = vec![b'#'; 5000];
        std::fs::write(&path, &precious).unwrap();
        let error = count(&open(dir.path(), "a"), "a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(std::fs::read(&path).unwrap(), precious);
    }

    #[test]
    fn the_file_of_another_long_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = ("x".repeat(500), "y".repeat(500));
        let file = open(dir.path(), &one);
        count(&file, &one).unwrap();
        count(&file, &one).unwrap();
        assert_eq!(file.name().as_deref(), Some(&*one));
        let other = open(dir.path(), &two);
        std::fs::copy(file.path(), other.path()).unwrap();
        assert_eq!(count(&open(dir.path(), &two), &two).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_first_grant_that_was_cut_short_does_not_spoil_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let name = "x".repeat(3000);
        let file = open(dir.path(), &name);
        let token = count(&file, &name).unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        for length in [0, 1, 100, 511, 512, 700, 1024, 1500, 2048, 2060, whole.len() - 1] {
            std::fs::write(file.path(), &whole[..length]).unwrap();
            let next = count(&file, &name).unwrap();
            assert!(next > token, "{next} after {token}, cut at {length}");
            count(&file, &name).unwrap();
            assert_eq!(file.name().as_deref(), Some(&*name), "cut at {length}");
        }
    }

    #[test]
    fn somebody_who_looks_does_not_look_like_somebody_who_holds() {
        let dir = tempfile::tempdir().unwrap();
        let (holder, other) = (open(dir.path(), "a"), open(dir.path(), "a"));
        let looks = File::open(holder.path()).unwrap();
        assert!(!is_locked(&looks).unwrap());
        assert!(holder.try_lock().unwrap());
        assert!(
            is_locked(&looks).unwrap() && !other.try_lock().unwrap() && !other.try_lock_shared().unwrap()
        );
        holder.unlock();
        looks.try_lock_shared().unwrap();
        assert!(!other.try_lock().unwrap() && other.try_lock_shared().unwrap());
    }
}
