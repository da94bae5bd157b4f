//! What is said to people, on stderr: stdout belongs to the command that runs under the lock.

use std::io::{self, IsTerminal, Write};

/// How much to say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notes {
    quiet: bool,
    verbose: bool,
    terminal: bool,
}

impl Notes {
    pub(crate) fn new(quiet: bool, verbose: bool) -> Self {
        Notes { quiet, verbose, terminal: io::stderr().is_terminal() }
    }

    /// Something that must be known, however quiet.
    pub(crate) fn say(&self, text: &str) {
        say(text);
    }

    /// Something that is worth a line, unless quiet was asked for.
    pub(crate) fn tell(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    /// Something for whoever sits and looks: on a terminal, or if more was asked for.
    pub(crate) fn hint(&self, text: &str) {
        if self.hints() {
            say(text);
        }
    }

    /// Whether hints are shown at all, so that nothing is asked of the store for nobody.
    pub(crate) fn hints(&self) -> bool {
        !self.quiet && (self.terminal || self.verbose)
    }

    /// Details, only if they were asked for.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose && !self.quiet {
            say(text);
        }
    }
}

/// One line on stderr. A stderr that is closed or full is no reason to end: there is nobody to tell.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "distlock: {text}");
}
