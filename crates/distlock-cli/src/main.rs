//! The `distlock` command: runs a program while a lock is held, and shows what is held.

#[cfg(not(unix))]
compile_error!("the distlock command needs a Unix system: process groups, signals and file locks");

mod cli;
mod commands;
mod deadlines;
mod duration;
mod exit;
mod family;
mod notes;
mod orders;
mod output;
mod redact;
mod signals;
mod startup;
mod store;
mod supervise;
mod table;
#[cfg(feature = "test-store")]
mod test_store;
mod usage;
mod view;
mod warnings;
mod watchdog;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::exit::Failure;

fn main() -> ExitCode {
    // The helpers that `run` and `bench` start are this same program. They are no commands: no help, no completion.
    let mut args = std::env::args_os().skip(1);
    match args.next().as_deref().and_then(|word| word.to_str()) {
        Some(watchdog::WORD) => return watchdog::main(),
        Some(watchdog::LAUNCH_WORD) => return watchdog::launch(args),
        Some(distlock_load::WORKER_ARG) => return commands::bench::worker(),
        _ => {}
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::explain(&error),
    };
    let store = &cli.store;
    let done = match &cli.command {
        Command::Run(args) => commands::run::execute(store, args),
        Command::Ls(args) => commands::ls::execute(store, args).map(|()| 0),
        Command::Show(args) => commands::show::execute(store, args).map(|()| 0),
        Command::Break(args) => commands::break_lock::execute(store, args).map(|()| 0),
        Command::Doctor(args) => commands::doctor::execute(store, args).map(|()| 0),
        Command::Bench(args) => commands::bench::execute(store, args).map(|()| 0),
        Command::Schema(args) => commands::schema::execute(store, args).map(|()| 0),
        Command::Completions(args) => commands::completions::execute(args).map(|()| 0),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, message }) => {
            if let Some(message) = message {
                notes::say(&message);
            }
            ExitCode::from(code)
        }
    }
}
