//! The terminal, given to the command when it needs it.
//!
//! The command runs in its own process group, so that all of it can be ended at once. On a terminal that makes it a
//! background job, which suits most commands: it may write, Ctrl-C reaches `distlock`, which forwards it, and
//! `distlock run … | less` and loops in scripts behave as without `distlock`. A command that reads from the terminal or
//! changes its modes (an editor, a shell, a password prompt) is stopped by the kernel with SIGTTIN or SIGTTOU. Then
//! `distlock` makes it the terminal's foreground group until it ends or is stopped.

use std::fs::{File, OpenOptions};

use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal, if there is one.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<File>,
    own_group: Pid,
    given: Option<GivenTerminal>,
}

/// A terminal that the command has.
#[derive(Debug)]
struct GivenTerminal {
    group: Pid,
    /// The modes before.
    modes: Option<Termios>,
}

/// Whether this process is in the foreground of a terminal, so that Ctrl-C is meant for it.
pub(crate) fn is_in_foreground() -> bool {
    let terminal = Terminal::open();
    terminal.foreground() == Some(terminal.own_group)
}

impl Terminal {
    pub(super) fn open() -> Self {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
        Terminal { tty, own_group: getpgrp(), given: None }
    }

    /// The process group of `distlock`, which gets the terminal when the command has ended.
    pub(super) fn own_group(&self) -> i32 {
        self.own_group.as_raw_nonzero().get()
    }

    fn foreground(&self) -> Option<Pid> {
        self.tty.as_ref().and_then(|tty| tcgetpgrp(tty).ok())
    }

    /// Whether the command has the terminal.
    pub(super) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// Makes the command's group the foreground group. False if `distlock` is itself in the background.
    pub(super) fn give_to(&mut self, command: i32) -> bool {
        let (Some(tty), Some(group)) = (&self.tty, Pid::from_raw(command)) else { return false };
        match self.foreground() {
            Some(foreground) if foreground == group => {}
            Some(foreground) if foreground == self.own_group => {
                // Saved only here: later the terminal has the modes that the command set.
                let modes = tcgetattr(tty).ok();
                if tcsetpgrp(tty, group).is_err() {
                    return false;
                }
                self.given = Some(GivenTerminal { group, modes });
            }
            _ => return false,
        }
        true
    }

    /// Makes the group of `distlock` the foreground group again. `restore_modes`: the command could not do that itself.
    pub(super) fn take_back(&mut self, restore_modes: bool) {
        let (Some(tty), Some(given)) = (&self.tty, self.given.take()) else { return };
        // Not if a shell took the terminal from the command.
        let is_taken = self.foreground().is_some_and(|foreground| {
            foreground != given.group && rustix::process::test_kill_process_group(foreground).is_ok()
        });
        if is_taken {
            return;
        }
        // SIGTTOU is blocked from the start: it would stop `distlock` here, since it is in the background.
        let _ = tcsetpgrp(tty, self.own_group);
        if let (true, Some(modes)) = (restore_modes, &given.modes) {
            let _ = tcsetattr(tty, OptionalActions::Drain, modes);
        }
    }
}
