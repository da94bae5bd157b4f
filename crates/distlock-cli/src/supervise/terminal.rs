//! The terminal, lent to the command when it asks for it.
//!
//! The command runs in a process group of its own, so that all of it can be ended at once. On a terminal that makes it
//! a background job, which is right for most of what runs under a lock: it writes freely, Ctrl-C reaches `distlock`,
//! which passes it on, and `distlock run … | less` and loops in scripts behave as if we were not there. A command that
//! reads from the terminal or changes its modes (an editor, a shell, a password prompt) is stopped by the kernel with
//! SIGTTIN or SIGTTOU: that is how it asks, and then it gets the terminal until it ends or is stopped.

use std::fs::{File, OpenOptions};

use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// Our controlling terminal, if there is one.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<File>,
    ours: Pid,
    lent: Option<Loan>,
}

#[derive(Debug)]
struct Loan {
    to: Pid,
    modes: Option<Termios>,
}

/// Whether we have a terminal and stand in its foreground: Ctrl-C is for us.
pub(crate) fn has_terminal() -> bool {
    let terminal = Terminal::open();
    terminal.foreground() == Some(terminal.ours)
}

impl Terminal {
    pub(super) fn open() -> Self {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
        Terminal { tty, ours: getpgrp(), lent: None }
    }

    /// The process group that we stand in, and that the terminal goes back to.
    pub(super) fn home(&self) -> i32 {
        self.ours.as_raw_nonzero().get()
    }

    fn foreground(&self) -> Option<Pid> {
        self.tty.as_ref().and_then(|tty| tcgetpgrp(tty).ok())
    }

    /// Whether the command has it now.
    pub(super) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Lends it to the group of the command. False if it is not ours to lend: we are in the background ourselves.
    pub(super) fn lend(&mut self, command: i32) -> bool {
        let (Some(tty), Some(to)) = (&self.tty, Pid::from_raw(command)) else { return false };
        match self.foreground() {
            Some(group) if group == to => {}
            Some(group) if group == self.ours => {
                // Kept only once: what the command set before it was stopped is not what it found.
                let modes = tcgetattr(tty).ok();
                if tcsetpgrp(tty, to).is_err() {
                    return false;
                }
                self.lent = Some(Loan { to, modes });
            }
            _ => return false,
        }
        true
    }

    /// Takes it back. If the command could not tidy up, the terminal gets the modes it had before.
    pub(super) fn take_back(&mut self, restore_modes: bool) {
        let (Some(tty), Some(loan)) = (&self.tty, self.lent.take()) else { return };
        // Not if a shell took it from the command meanwhile.
        let taken_by_somebody_else = self
            .foreground()
            .is_some_and(|group| group != loan.to && rustix::process::test_kill_process_group(group).is_ok());
        if taken_by_somebody_else {
            return;
        }
        // SIGTTOU is blocked from the start: it would stop us here, in the background as we are.
        let _ = tcsetpgrp(tty, self.ours);
        if let (true, Some(modes)) = (restore_modes, &loan.modes) {
            let _ = tcsetattr(tty, OptionalActions::Drain, modes);
        }
    }
}
