//! The file store of [distlock](distlock_core): kernel file locks in a folder. It needs no server and no set-up, and is
//! what the `distlock` command uses unless it is told otherwise.
//!
//! ```
//! use distlock_core::store::{Claim, Lease, SessionStore};
//! use distlock_core::{Kind, LockIds, Resource};
//! use distlock_file::FileStore;
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> distlock_core::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let store = FileStore::open(dir.path())?;
//! let resource = Resource::new(Kind::Mutex, "nightly")?;
//! let claim = Claim::new(resource, LockIds::new("me").next(), std::time::Duration::from_secs(30));
//! let hold = store.acquire(&claim, &CancellationToken::new()).await?.expect("nobody withdrew");
//! store.release(&Lease::of(&claim, hold.token)).await?;
//! # Ok(()) }
//! ```
//!
//! # What holds
//! * **Exclusion** is the kernel's: `flock(2)` through the standard library. The lock belongs to an open file, so two
//!   stores in one process exclude each other like two processes.
//! * **A holder that dies frees its locks at once**, whatever it died of. A holder that is stopped (SIGSTOP, a suspended
//!   laptop) keeps them; nobody can take them from it, so it loses nothing.
//! * **Tokens** are counted in the lock file and are on the disk before a grant is returned. Each is one more than the
//!   one before; after a crash in the middle of a grant one may be left out. A new lock file begins at the time of day
//!   in microseconds, so that tokens go on rising also if somebody removed the folder.
//! * **Lock files are never removed**, so that no holder is lost to unlinking. If another program removes or replaces
//!   one, waiters open the path again and the holder's session ends: see below for how soon.
//! * **Waiters are woken** by the kernel when a holder closes its file (inotify); elsewhere, and on network file
//!   systems, they poll with growing pauses.
//! * **Pools** (reader-writer locks, semaphores) are served strictly first come, first served across all processes. A
//!   stopped process at the head of a queue therefore stops those behind it. A mutex has no queue: ask for a fair one,
//!   and the engine puts a queue in front of it.
//! * **To look disturbs nobody**: `inspect` never makes another one's attempt fail.
//! * **Children inherit nothing**: files are opened with `O_CLOEXEC`. A process that forks and does
//!   not execute another program shares its locks with the child until both are gone. A supervisor may be given a copy
//!   of a lock's descriptor on purpose (`Guard::descriptor`): the lock is then held until both are gone or it is released.
//! * **Files are private** (folders 0700, files 0600) unless [`Access::Group`] is asked for.
//! * **Symbolic links are not followed** below the folder, also if one is put there between two steps. What is there and
//!   belongs neither to this user nor to root nor to the owner of the folder is refused, unless the folder is for a group.
//! * **A record that cannot be read** hides no other from `inspect`: it is left out, with a warning in the log.
//!
//! # What it costs
//! One open file for each claim that holds, one for each that waits in a pool, two for each that waits for a mutex; two
//! (inotify and the bell of its thread) and one thread for each store. On disk 4 KiB for each mutex that was ever used (8 KiB if its name is
//! long), 16 KiB for each pool. One write to the disk (`fdatasync`) for each grant, none for a release.
//!
//! # What it cannot do
//! * Forced release: the kernel takes a lock from no process that lives.
//! * Locks across machines: NFS and the like have file locks of a sort, but neither crashes nor replaced files are seen
//!   reliably; `doctor` warns.
//! * Exclude two holders while another program removes or replaces a lock file: the kernel lock is on the file, and who
//!   comes next locks the new one. The old holder is told within milliseconds (a hold younger than 20 ms: when it is that
//!   old; without inotify: within half a second), and there are two until it has stopped. `distlock run` stops its command
//!   within a second. A resource that refuses old tokens is safe: the token of the new file is higher.
//! * End what a killed holder started. The kernel frees the lock of a process that is killed, whatever its children still
//!   do. `distlock run` leaves a copy of the descriptor to its watchdog, which ends the command's processes first; if both
//!   are killed with SIGKILL (by process ids, by the path of their program, or by the kernel when memory is short), the lock
//!   is free while grandchildren of the command may run.
//!
//! # On disk
//! ```text
//! DIR/mutex/NAME.lock             one for each mutex that was ever used
//! DIR/rwlock/NAME/gate            one folder for each pool that was ever used; the gate has the counter
//!                 queue/SLOT      one for each claim that waits, in the order of their names
//!                 hold/SLOT       one for each claim that holds
//! DIR/semaphore/NAME/…            the same
//! DIR/turn/NAME/…                 the same: the queue of a fair mutex
//! DIR/waiting/HASH/…              one for each claim that waits for a mutex, in the order of their names
//! ```
//! NAME is the name with everything but `a-z 0-9 - _ .` as `%xx`, or `~` and its SHA-256 if that is too long. Files are
//! text in checksummed blocks of a fixed size, overwritten in place; `cat` shows who holds.

#[cfg(not(unix))]
compile_error!("the file store needs a Unix system: it tells files apart by their inodes");

#[cfg(feature = "bench")]
mod baseline;
mod config;
mod doctor;
mod failure;
mod folder;
mod inspect;
mod layout;
mod lockfile;
mod mutex;
mod names;
mod pool;
mod record;
mod shared;
mod store;
mod wait;
mod waiting;
mod watch;

pub use config::{Access, DRIVER, FileConfig, Wakeups};
pub use store::FileStore;
