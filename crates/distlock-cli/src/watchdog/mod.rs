//! The watchdog: a process between `distlock` and the command. It ends the command in time even if `distlock` is paused,
//! killed, or cannot reach the store.
//!
//! It knows nothing of locks. `distlock` sends it two moments, for SIGTERM and SIGKILL, and it acts on them unless later ones
//! arrive in time. It has its own process group, so neither Ctrl-Z nor a signal to the group of `distlock` reaches it, and it
//! blocks every signal it can. If it is killed, the kernel kills the command (PDEATHSIG) and `distlock` the rest of its
//! group. If `distlock` and the watchdog are both paused, the command keeps running. If both are killed, processes that the
//! command started keep running; so no `pkill` pattern matches both.
//!
//! Where the lock is a kernel lock, the watchdog has a copy of the lock's descriptor, which the command does not get. So the
//! lock of a killed `distlock` is not free before the command's processes are gone. On `GET_LOCK`, the descriptor is that of the
//! socket which tells the next client that `distlock` has ended.

mod boot_timer;
mod launch;
pub(crate) mod protocol;
pub(crate) mod start_message;
mod watch;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::sys::signal::{SigSet, Signal};

pub(crate) use self::launch::{LAUNCHER_ARGUMENT, cannot_run, launch, this_program};
use crate::exit::{UNAVAILABLE, USAGE};
use crate::stderr::print;

/// The argument that starts this program as a watchdog.
pub(crate) const WATCHDOG_ARGUMENT: &str = "__watchdog";

/// Runs the watchdog. Its stdin is the socket to `distlock`.
pub(crate) fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            print("this is an internal part of `distlock run`, not a command; see `distlock --help`");
            ExitCode::from(USAGE)
        }
        Err(error) => {
            print(&format!("the watchdog cannot start: {error}"));
            ExitCode::from(UNAVAILABLE)
        }
    }
}

fn run() -> io::Result<()> {
    block_signals()?;
    #[cfg(target_os = "linux")]
    {
        let _ = rustix::thread::set_name(c"lockwatch");
        become_subreaper();
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let start = start_message::receive(&socket).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let Some(start) = start else { return Ok(()) };
    socket.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch::watch(socket, start))
}

/// A process that loses its parent becomes our child instead of init's: so a double fork does not leave the process tree.
#[cfg(target_os = "linux")]
pub(crate) fn become_subreaper() {
    let _ = rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1));
}

/// `distlock` forwards the signals that are meant for the command.
fn block_signals() -> io::Result<()> {
    let mut all = SigSet::all();
    all.remove(Signal::SIGCHLD);
    all.thread_set_mask()?;
    Ok(())
}
