//! The watchdog: a process between `distlock` and its command that ends the command when it must end, whatever happens
//! to `distlock`: frozen, killed, or without word from the store.
//!
//! It knows nothing of locks. It is told two moments, SIGTERM and SIGKILL, and acts on them unless it is told later
//! ones in time. It stands in a process group of its own, so that neither Ctrl-Z nor a signal to the group of
//! `distlock` reaches it, and it hears no signal but SIGKILL and SIGSTOP. If it is killed all the same, the kernel
//! kills the command (PDEATHSIG) and `distlock` the rest of its group. If both are frozen, by name, nobody is left to act.
//! If both are killed, what the command started runs on: so no pattern that `pkill` knows matches both.
//!
//! Where the lock is the kernel's, it has a copy of the lock's descriptor, which the command does not get: so the lock of
//! a `distlock` that was killed is not free before the command's processes are gone.

mod alarm;
mod launch;
mod watch;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::sys::signal::{SigSet, Signal};

pub(crate) use self::launch::{LAUNCH_WORD, cannot_run, launch, this_program};
use crate::exit::{UNAVAILABLE, USAGE};
use crate::notes::say;
use crate::startup;

/// The word that makes this program a watchdog.
pub(crate) const WORD: &str = "__watchdog";

/// Watches over a command. Our stdin is the line to `distlock`; what comes first over it is the command.
pub(crate) fn main() -> ExitCode {
    match begin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            say("this is a part of `distlock run` and no command; see `distlock --help`");
            ExitCode::from(USAGE)
        }
        Err(error) => {
            say(&format!("cannot watch over the command: {error}"));
            ExitCode::from(UNAVAILABLE)
        }
    }
}

fn begin() -> io::Result<()> {
    block_everything()?;
    #[cfg(target_os = "linux")]
    {
        let _ = rustix::thread::set_name(c"lockwatch");
        become_subreaper();
    }
    let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let given = startup::receive(&line).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let Some(given) = given else { return Ok(()) };
    line.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch::watch(line, given))
}

/// Who loses its parent becomes our child instead of init's: so nobody leaves the family by a double fork.
#[cfg(target_os = "linux")]
pub(crate) fn become_subreaper() {
    let _ = rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1));
}

/// Signals are for `distlock`, which passes on what is meant for the command.
fn block_everything() -> io::Result<()> {
    let mut all = SigSet::all();
    all.remove(Signal::SIGCHLD);
    all.thread_set_mask()?;
    Ok(())
}
