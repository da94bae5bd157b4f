//! inotify, as far as we need it.
//!
//! What the kernel really does, and what follows from it:
//!
//! * `IN_CLOSE_WRITE` comes from `__fput`, **before** that drops the file's locks. Who is woken by the death of a
//!   holder may still find the lock taken, and must try a few times. An orderly release unlocks first and closes then.
//! * Removing a file that somebody has open changes its link count, which is `IN_ATTRIB`; `IN_DELETE_SELF` comes only
//!   when the last one closes it.
//! * A folder's watch tells of the closing of a file that was in it also after the file was unlinked (unless
//!   `IN_EXCL_UNLINK` is asked for), so that one event serves for a release and for a crash.
//! * A process that dies gives its files up from the highest descriptor down, and giving up an inotify instance takes
//!   the kernel 10 to 20 ms (it waits for readers of its lists). So locks must have higher descriptors than the instance,
//!   or they are freed that much later.
//! * Adding a watch on the same inode gives the same number again and replaces its mask; so the masks are constant.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::Scope;

/// An inotify instance, and a way to interrupt who waits for it.
#[derive(Debug)]
pub(super) struct Kernel {
    inotify: OwnedFd,
    bell: OwnedFd,
}

/// Something happened.
#[derive(Debug)]
pub(super) struct Event {
    /// To which watch; `None`: events were lost, it may be any.
    pub(super) key: Option<i32>,
    /// The path may stand for another file now.
    pub(super) is_move: bool,
    /// The watch is gone.
    pub(super) is_end: bool,
}

impl Kernel {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Kernel {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(super) fn add(&self, path: &Path, scope: Scope) -> io::Result<i32> {
        let moves = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let mask = match scope {
            Scope::File => WatchFlags::CLOSE_WRITE | moves | WatchFlags::DONT_FOLLOW,
            Scope::Folder => {
                WatchFlags::CLOSE_WRITE
                    | WatchFlags::DELETE_SELF
                    | WatchFlags::MOVE_SELF
                    | WatchFlags::ONLYDIR
                    | WatchFlags::DONT_FOLLOW
            }
        };
        Ok(inotify::add_watch(&self.inotify, path, mask)?)
    }

    /// The same open file, under a higher descriptor than ours.
    pub(super) fn raise(&self, file: File) -> File {
        let least = self.inotify.as_raw_fd() + 1;
        if file.as_raw_fd() >= least {
            return file;
        }
        // The lock belongs to the open file, not to the descriptor. If there is no free one, it stays as it is.
        rustix::io::fcntl_dupfd_cloexec(&file, least).map_or(file, File::from)
    }

    /// Fails only for a watch that the kernel took away already.
    pub(super) fn remove(&self, key: i32) {
        let _ = inotify::remove_watch(&self.inotify, key);
    }

    /// Ends the wait of another thread.
    pub(super) fn interrupt(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Waits for events, at most this long, and returns all there are.
    pub(super) fn wait(&self, at_most: Duration) -> Vec<Event> {
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        let mut either = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        // A wait that a signal cut short is a short one.
        let _ = poll(&mut either, Some(&timeout));
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.inotify.as_fd(), &mut buffer);
        let mut events = Vec::new();
        // It ends with "would block" when there are no more.
        while let Ok(event) = reader.next() {
            let flags = event.events();
            let lost = flags.contains(ReadFlags::QUEUE_OVERFLOW);
            let moves =
                ReadFlags::ATTRIB | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED;
            events.push(Event {
                key: (!lost).then_some(event.wd()),
                is_move: lost || flags.intersects(moves),
                is_end: flags.contains(ReadFlags::IGNORED),
            });
        }
        events
    }
}
