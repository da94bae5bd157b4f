//! The watchdog: a process between `distlock` and its command that ends the command when it must end, whatever happens
//! to `distlock`: frozen, killed, or without word from the store.
//!
//! It knows nothing of locks. It is told two moments, SIGTERM and SIGKILL, and acts on them unless it is told later
//! ones in time. It stands in a process group of its own, so that neither Ctrl-Z nor a signal to the group of
//! `distlock` reaches it, and it hears no signal but SIGKILL and SIGSTOP. If it is killed all the same, the kernel
//! kills the command (PDEATHSIG) and `distlock` the rest of its group. If both are frozen, by name, nobody is left to act.

mod alarm;
mod launch;
mod watch;

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::sys::signal::{SigSet, Signal};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

pub(crate) use self::launch::{LAUNCH_WORD, cannot_run, launch, this_program};
use crate::exit::{UNAVAILABLE, USAGE};
use crate::notes::say;

/// The word that makes this program a watchdog.
pub(crate) const WORD: &str = "__watchdog";

/// Watches over the command given as arguments. Our stdin is the line to `distlock`; what comes first over it is the
/// stdin of the command.
pub(crate) fn main(command: impl Iterator<Item = OsString>) -> ExitCode {
    let command: Vec<OsString> = command.collect();
    match begin(&command) {
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

fn begin(command: &[OsString]) -> io::Result<()> {
    block_everything()?;
    #[cfg(target_os = "linux")]
    {
        let _ = rustix::thread::set_name(c"distlock-watch");
        become_subreaper();
    }
    let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive_stdin(&line).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let Some(stdin) = stdin else { return Ok(()) };
    line.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch::watch(line, stdin, command))
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

/// The command's stdin, sent along with one byte. `None`: `distlock` is gone already.
fn receive_stdin(line: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(line, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::empty())?;
    if got.bytes == 0 {
        return Ok(None);
    }
    let mut files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let stdin = files.next().ok_or(io::ErrorKind::InvalidInput)?;
    // The command gets it as its stdin, and not a second time. Not every system can do this while receiving.
    fcntl_setfd(&stdin, FdFlags::CLOEXEC)?;
    Ok(Some(stdin))
}
