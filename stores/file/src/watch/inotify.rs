//! inotify on Linux.
//!
//! What the kernel does, and the consequence:
//!
//! * `IN_CLOSE_WRITE` comes from `__fput`, **before** it drops the file's locks. A waiter that the death of a holder wakes may
//!   still find the lock taken, and must retry. A release unlocks before it closes.
//! * Unlinking an open file changes its link count, which is `IN_ATTRIB`; `IN_DELETE_SELF` comes only when the last
//!   descriptor is closed.
//! * A folder's watch reports the closing of a file also after the file was unlinked (unless `IN_EXCL_UNLINK` is set), so one
//!   event serves for a release and for a crash.
//! * A dying process closes its files from the highest descriptor down, and closing an inotify instance takes the kernel 10 to
//!   20 ms (it waits for readers of its lists). So locks need higher descriptors than the instance, or they are freed that
//!   much later.
//! * Adding a watch on the same inode returns the same number and replaces its mask; so the masks are constant.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::{WatchEvent, WatchScope};

/// An inotify instance, and an eventfd to interrupt a wait for it.
#[derive(Debug)]
pub(super) struct Inotify {
    inotify: OwnedFd,
    interrupt: OwnedFd,
}

impl Inotify {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Inotify {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            interrupt: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// An instance that refuses every watch, as one does whose user has none left.
    #[cfg(test)]
    pub(super) fn without_watches() -> io::Result<Self> {
        let descriptor = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Inotify { inotify: descriptor()?, interrupt: descriptor()? })
    }

    pub(super) fn add(&self, path: &Path, scope: WatchScope) -> io::Result<i32> {
        let moves = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let mask = match scope {
            WatchScope::File => WatchFlags::CLOSE_WRITE | moves | WatchFlags::DONT_FOLLOW,
            WatchScope::Folder => {
                WatchFlags::CLOSE_WRITE
                    | WatchFlags::DELETE_SELF
                    | WatchFlags::MOVE_SELF
                    | WatchFlags::ONLYDIR
                    | WatchFlags::DONT_FOLLOW
            }
            WatchScope::Names => {
                WatchFlags::DELETE
                    | WatchFlags::MOVE
                    | WatchFlags::DELETE_SELF
                    | WatchFlags::MOVE_SELF
                    | WatchFlags::ONLYDIR
                    | WatchFlags::DONT_FOLLOW
            }
            // The user's own path, which may be a link.
            WatchScope::Place => WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR,
        };
        Ok(inotify::add_watch(&self.inotify, path, mask)?)
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.inotify.as_raw_fd()
    }

    pub(super) fn remove(&self, key: i32) {
        // Fails only for a watch that the kernel removed already.
        let _ = inotify::remove_watch(&self.inotify, key);
    }

    /// Ends the wait of another thread.
    pub(super) fn interrupt(&self) {
        let _ = rustix::io::write(&self.interrupt, &1_u64.to_ne_bytes());
    }

    /// Waits for events within the time limit, and returns all that are pending.
    pub(super) fn wait(&self, limit: Duration) -> Vec<WatchEvent> {
        let timeout = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut sources =
            [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.interrupt, PollFlags::IN)];
        // A signal may end the wait early, which is harmless.
        let _ = poll(&mut sources, Some(&timeout));
        let _ = rustix::io::read(&self.interrupt, &mut [0; 8]);
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.inotify.as_fd(), &mut buffer);
        let mut events = Vec::new();
        // Ends with "would block" when no events are left.
        while let Ok(event) = reader.next() {
            let flags = event.events();
            let lost = flags.contains(ReadFlags::QUEUE_OVERFLOW);
            let moves =
                ReadFlags::ATTRIB | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED;
            let names = ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO;
            events.push(WatchEvent {
                key: (!lost).then_some(event.wd()),
                is_move: lost || flags.intersects(moves),
                is_end: flags.contains(ReadFlags::IGNORED),
                name: event
                    .file_name()
                    .filter(|_| flags.intersects(names))
                    .map(|name| name.to_bytes().to_vec()),
            });
        }
        events
    }
}
