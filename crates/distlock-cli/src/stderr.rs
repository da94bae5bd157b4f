//! Messages to people, on stderr: stdout belongs to the command that runs under the lock.

use std::io::{self, IsTerminal, Write};

/// Which messages are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    quiet: bool,
    verbose: bool,
    terminal: bool,
}

impl Messages {
    pub(crate) fn new(quiet: bool, verbose: bool) -> Self {
        Messages { quiet, verbose, terminal: io::stderr().is_terminal() }
    }

    /// An error: always written.
    pub(crate) fn error(&self, text: &str) {
        print(text);
    }

    /// A normal outcome: written unless `--quiet`.
    pub(crate) fn info(&self, text: &str) {
        if !self.quiet {
            print(text);
        }
    }

    /// Help for a user at a terminal: written there, or with `--verbose`.
    pub(crate) fn hint(&self, text: &str) {
        if self.shows_hints() {
            print(text);
        }
    }

    /// Whether hints are written, so that the store is not asked for one that is not.
    pub(crate) fn shows_hints(&self) -> bool {
        !self.quiet && (self.terminal || self.verbose)
    }

    /// Whether [`Messages::info`] writes anything.
    pub(crate) fn shows_info(&self) -> bool {
        !self.quiet
    }

    /// Details: written only with `--verbose`.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose && !self.quiet {
            print(text);
        }
    }
}

/// One line on stderr. A closed or full stderr is ignored.
pub(crate) fn print(text: &str) {
    let _ = writeln!(io::stderr(), "distlock: {text}");
}
