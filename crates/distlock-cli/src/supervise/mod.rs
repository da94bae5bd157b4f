//! The command under the lock: started through the watchdog, told of signals, ended when the lock is lost.

mod course;
mod line;
mod lookup;
mod terminal;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use distlock::Guard;
use nix::sys::signal::Signal;

use self::course::Course;
use self::line::Line;
pub(crate) use self::lookup::check;
pub(crate) use self::terminal::has_terminal;
use crate::exit::{LOST, of_signal};
use crate::notes::Notes;
use crate::signals::Signals;

/// What is to run, and how it is to be treated.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) command: &'a [OsString],
    pub(crate) variables: Vec<(&'static str, String)>,
    pub(crate) grace: Duration,
    /// How often the lease is extended.
    pub(crate) cadence: Duration,
    /// The signals to be blocked for the command.
    pub(crate) blocked: Vec<i32>,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    Killed(i32),
    /// It was never started: the lease was over before.
    NotStarted,
}

impl End {
    /// As shells count.
    pub(crate) fn code(self) -> u8 {
        match self {
            End::Exited(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
            End::Killed(number) => of_signal(number),
            End::NotStarted => LOST,
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    /// The lock was lost while it ran.
    pub(crate) lost: bool,
}

/// Runs the command to its end, whatever that end may be. The lock may be given back when this returns.
///
/// # Errors
/// If the command could not even be started.
pub(crate) async fn run(
    guard: &Guard,
    job: &Job<'_>,
    signals: &mut Signals,
    notes: &Notes,
) -> io::Result<Outcome> {
    #[cfg(target_os = "linux")]
    crate::watchdog::become_subreaper();
    let line = Line::open(job.command, &job.variables, guard.descriptor())?;
    let mut course = Course::begin(guard, job, notes, line);
    let end = course.until_the_end(signals).await;
    let had_terminal = course.close(matches!(end, Ok(End::Killed(_))));
    // Ctrl-C on a terminal that was lent reached the command alone. Had it not been lent, our group would have been
    // told too: the script or the pipeline that we are a part of, which otherwise goes on as if nothing was typed.
    if let (true, Ok(End::Killed(number))) = (had_terminal, &end)
        && let Ok(signal @ (Signal::SIGINT | Signal::SIGQUIT)) = Signal::try_from(*number)
    {
        signals.send_to_group(signal).await;
    }
    end.map(|end| Outcome { end, lost: course.is_lost() })
}
