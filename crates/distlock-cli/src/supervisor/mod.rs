//! The supervisor: starts the command under the lock through the watchdog, forwards signals, and ends the command when the
//! lock is lost.

mod connection;
mod event_loop;
mod lookup;
mod terminal;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use distlock::Guard;
use nix::sys::signal::Signal;

use self::connection::WatchdogConnection;
use self::event_loop::Supervisor;
pub(crate) use self::lookup::check;
pub(crate) use self::terminal::is_in_foreground;
use crate::exit::{LOST, of_signal};
use crate::signals::Signals;
use crate::stderr::Messages;

/// The command to run, and how.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) command: &'a [OsString],
    pub(crate) variables: Vec<(&'static str, String)>,
    pub(crate) grace: Duration,
    /// How often the lease is renewed.
    pub(crate) cadence: Duration,
    /// The signals to block for the command.
    pub(crate) blocked: Vec<i32>,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEnd {
    Exited(i32),
    Killed(i32),
    /// The lease ended before the command was started.
    NotStarted,
}

impl CommandEnd {
    /// The exit code, as shells count.
    pub(crate) fn code(self) -> u8 {
        match self {
            CommandEnd::Exited(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
            CommandEnd::Killed(number) => of_signal(number),
            CommandEnd::NotStarted => LOST,
        }
    }
}

/// The outcome of a supervised run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOutcome {
    pub(crate) end: CommandEnd,
    /// The lock was lost while the command ran.
    pub(crate) lost: bool,
}

/// Runs the command to its end. The lock may be released when this returns.
///
/// # Errors
/// If the command could not be started.
pub(crate) async fn run(
    guard: &Guard,
    job: &Job<'_>,
    signals: &mut Signals,
    messages: &Messages,
) -> io::Result<RunOutcome> {
    #[cfg(target_os = "linux")]
    crate::watchdog::become_subreaper();
    let watchdog = WatchdogConnection::open(job.command, &job.variables, guard.descriptor())?;
    let mut supervisor = Supervisor::start(guard, job, messages, watchdog);
    let end = supervisor.run(signals).await;
    let had_terminal = supervisor.close(matches!(end, Ok(CommandEnd::Killed(_))));
    // Ctrl-C on a terminal that the command had reached only the command. Without `distlock` it would have reached our group
    // too: the script or pipeline around us, which must not continue as if nothing was typed.
    if let (true, Ok(CommandEnd::Killed(number))) = (had_terminal, &end)
        && let Ok(signal @ (Signal::SIGINT | Signal::SIGQUIT)) = Signal::try_from(*number)
    {
        signals.send_to_group(signal).await;
    }
    end.map(|end| RunOutcome { end, lost: supervisor.is_lost() })
}
