//! The file store of [distlock](distlock_core): kernel file locks in a folder. It needs no server and no set-up, and is
//! the default store of the `distlock` command.
//!
//! ```
//! use distlock_core::Locks;
//! use distlock_core::store::Backend;
//! use distlock_file::{FileConfig, FileStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> distlock_core::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let store = FileStore::connect(FileConfig::new(dir.path())).await?;
//! let locks = Locks::new(Backend::session(store))?;
//! let guard = locks.mutex("nightly").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//! * **Exclusion** is the kernel's: `flock(2)` through the standard library. The lock belongs to an open file, so two
//!   stores in one process exclude each other like two processes.
//! * **A holder that dies frees its locks at once**, whatever the cause. A paused holder (SIGSTOP, a suspended laptop)
//!   keeps them: the kernel never takes a lock from a live process.
//! * **Fencing tokens** are counted in the lock file: the time of day in microseconds, or one more than the last token. A
//!   ceiling is on disk before a token up to it is granted. After a power failure tokens continue above it; so some are
//!   skipped, and none is repeated. A new lock file starts at the time of day, so tokens keep rising even if the folder is
//!   removed (but not if it is removed within a second after a restart of the machine that took less than a second, or after an
//!   earlier version of distlock used the lock too: tokens may be up to a second ahead of the clock then).
//! * **Lock files are never unlinked.** If another program unlinks or replaces one, waiters reopen the path and the
//!   holder's session ends: see the limits below for how soon.
//! * **Waiters are woken** by the kernel when a holder closes its file (inotify). Elsewhere, and on network file systems,
//!   they poll with growing backoff.
//! * **Pools** (reader-writer locks, semaphores) are served strictly first come, first served across all processes. A
//!   paused process at the queue head therefore blocks the waiters behind it. A mutex has no queue; a fair mutex gets
//!   one from the engine.
//! * **`inspect` has no side effects**: it never makes another client's attempt fail.
//! * **Children inherit nothing**: files are opened with `O_CLOEXEC`. A process that forks without executing another
//!   program shares its locks with the child until both exit. A supervisor may be given a copy of a lock's descriptor on
//!   purpose (`Guard::descriptor`): the lock is then held until both copies are closed or it is released.
//! * **Files are private** (folders 0700, files 0600) unless [`Access::Group`] is set.
//! * **Symbolic links are not followed** below the folder, even if one appears between two steps. A file or folder that
//!   belongs neither to this user nor to root nor to the owner of the base folder is refused, unless the folder is for a
//!   group.
//! * **An unreadable record** hides no other from `inspect`: it is left out, with a warning in the log.
//!
//! # Costs
//! One open file for each held claim, one for each waiter of a pool, two for each waiter of a mutex; one thread and three
//! descriptors (inotify, an eventfd and the folder of the mutexes) for each store, so a file system cannot be unmounted while a
//! store on it is in use. A mutex that was used before and is free is granted in the calling thread, by a few system calls that
//! wait for no disk; all else, and always a mutex on a network file system, runs on threads that may block. While the file system
//! is frozen (`fsfreeze`) or its disk hangs, those calls block the calling thread, as does a release.
//!
//! On disk: 4 KiB for each mutex ever used (8 KiB if its name is long), 16 KiB for each pool. One `fdatasync` a second for each
//! lock in use; on a network file system, or where the kernel has no boot id, one for each grant.
//!
//! # Limits
//! * No forced release: the kernel never takes a lock from a live process.
//! * No locks across machines: network file systems have file locks of a sort, but crashes and replaced files are not
//!   detected reliably; `doctor` warns.
//! * No exclusion while another program unlinks or replaces a lock file: the kernel lock is on the old file, and the next
//!   client locks the new one. The old holder is told within milliseconds (a hold younger than 40 ms: at that age at the latest;
//!   without inotify, or when the user has no watch left: within half a second; if a folder above the base folder is moved: within
//!   five seconds), and there are two holders until it has stopped. `distlock run` stops its command within a second. A
//!   resource that refuses old tokens is safe: the token of the new file is higher.
//! * No end for the children of a killed holder. The kernel frees the lock of a killed process, whatever its children
//!   still do. `distlock run` leaves a copy of the descriptor to its watchdog, which ends the command's processes first;
//!   if both are killed with SIGKILL (by process id, by the path of the program, or by the kernel when memory is short),
//!   the lock is free while grandchildren of the command may still run.
//!
//! # On disk
//! ```text
//! DIR/mutex/NAME.lock             one for each mutex ever used
//! DIR/rwlock/NAME/gate            one folder for each pool ever used; `gate` is its lock and token counter
//!                 queue/SLOT      one for each waiter, in the order of their names
//!                 hold/SLOT       one for each holder
//! DIR/semaphore/NAME/…            the same
//! DIR/turn/NAME/…                 the same: the queue of a fair mutex
//! DIR/waiting/HASH/…              one for each waiter of a mutex, in the order of their names
//! ```
//! NAME is the name with everything but `a-z 0-9 - _ .` as `%xx`, or `~` and its SHA-256 if that is too long. Files are
//! text in checksummed blocks of a fixed size, overwritten in place; `cat` shows the holder.

#[cfg(not(unix))]
compile_error!("the file store needs a Unix system: it tells files apart by their inodes");

mod backoff;
#[cfg(feature = "bench")]
mod baseline;
mod config;
mod connect;
mod doctor;
mod error;
mod file_threads;
mod folder;
mod format;
mod holds;
mod inspect;
mod layout;
mod lock_file;
mod mutex;
mod names;
mod pool;
mod store;
mod tokens;
mod waiter_files;
mod watch;

pub use config::{Access, FileConfig, Wakeups};
pub use connect::DRIVER;
pub use store::FileStore;
