//! `distlock completions`: the completion script for a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::exit::Failure;
use crate::output;

pub(crate) const EXAMPLES: &str = "\
Examples:
  distlock completions bash > ~/.local/share/bash-completion/completions/distlock
  distlock completions zsh > ~/.zfunc/_distlock
  distlock completions fish > ~/.config/fish/completions/distlock.fish";

/// The shell.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell that uses the script
    shell: Shell,
}

pub(crate) fn execute(args: &CompletionsArgs) -> Result<(), Failure> {
    // Into memory first: the generator panics if its writer fails, as a closed pipe does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "distlock", &mut script);
    output::write(&String::from_utf8_lossy(&script))
}
