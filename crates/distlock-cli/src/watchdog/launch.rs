//! The launcher: a process that asks the kernel to be killed with the watchdog, and then becomes the command.
//!
//! It is this program started again, and not a closure between fork and exec: there, only async-signal-safe calls are
//! allowed, and no compiler checks them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sys::signal::{SigSet, Signal};

use crate::exit::{NOT_EXECUTABLE, NOT_FOUND, USAGE, of_signal};
use crate::stderr::print;

/// The argument that starts this program as the launcher.
pub(crate) const LAUNCHER_ARGUMENT: &str = "__launch";

/// This program, even if its file was replaced or deleted since the start. It gets another name: a signal to all processes
/// called `distlock` must not hit the watchdog.
pub(crate) fn this_program() -> io::Result<Command> {
    let mut command = if cfg!(target_os = "linux") && std::path::Path::new("/proc/self/exe").exists() {
        Command::new("/proc/self/exe")
    } else {
        Command::new(std::env::current_exe()?)
    };
    command.arg0("lockwatch");
    Ok(command)
}

/// Starts the command in its own process group, with this stdin and these signals blocked.
pub(super) fn start(command: &[OsString], stdin: Stdio, blocked: &[i32]) -> io::Result<Child> {
    let blocked: Vec<String> = blocked.iter().map(i32::to_string).collect();
    this_program()?
        .arg(LAUNCHER_ARGUMENT)
        .arg(std::process::id().to_string())
        .arg(blocked.join(","))
        .args(command)
        .stdin(stdin)
        .process_group(0)
        .spawn()
}

/// Becomes the command. The arguments are the watchdog's process id, the signals to block, and the command.
pub(crate) fn launch(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(parent), Some(blocked), Some(program)) = (args.next(), args.next(), args.next()) else {
        print("this is an internal part of `distlock run`, not a command; see `distlock --help`");
        return ExitCode::from(USAGE);
    };
    #[cfg(target_os = "linux")]
    {
        // It survives exec, unless the command changes its user.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        // The kernel does not tell if the watchdog died before.
        let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
        if now.as_deref().map(OsStr::new) != Some(&*parent) {
            return ExitCode::from(of_signal(Signal::SIGKILL as i32));
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (parent, of_signal(0));
    restore_mask(&blocked);
    let error = Command::new(&program).args(args).exec();
    print(&cannot_run(&program, &error));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// The message for a command that cannot be run.
pub(crate) fn cannot_run(program: &OsStr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "cannot run {program:?}: command not found; check its name, PATH, and the first line of a script"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!("cannot run {program:?}: permission denied; check that it is a file and executable")
        }
        _ => format!("cannot run {program:?}: {error}; check the file"),
    }
}

fn restore_mask(blocked: &OsStr) {
    let mut mask = SigSet::empty();
    let numbers = blocked.to_str().unwrap_or_default().split(',').filter_map(|word| word.parse::<i32>().ok());
    for signal in numbers.filter_map(|number| Signal::try_from(number).ok()) {
        mask.add(signal);
    }
    let _ = mask.thread_set_mask();
}
