//! The `distlock` command: runs a program under a lock, and shows which locks are held.

#[cfg(not(unix))]
compile_error!("the distlock command needs a Unix system: process groups, signals and file locks");

mod cli;
mod commands;
mod deadlines;
mod duration;
mod exit;
mod holders;
mod identity;
mod listing;
mod output;
mod process_tree;
mod redact;
mod signals;
mod stderr;
mod store;
mod supervisor;
mod table;
#[cfg(feature = "test-store")]
mod test_store;
mod usage;
mod warnings;
mod watchdog;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::exit::Failure;

fn main() -> ExitCode {
    // `run` and `bench` start this program again for internal parts. They are not commands: they have no help.
    let mut args = std::env::args_os().skip(1);
    match args.next().as_deref().and_then(|word| word.to_str()) {
        Some(watchdog::WATCHDOG_ARGUMENT) => return watchdog::main(),
        Some(watchdog::LAUNCHER_ARGUMENT) => return watchdog::launch(args),
        Some(distlock_load::WORKER_ARG) => return commands::bench::worker(),
        _ => {}
    }
    // Drivers may compile in two crypto providers; rustls chooses none of them by itself.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error),
    };
    let store = &cli.store;
    let result = match &cli.command {
        Command::Run(args) => commands::run::execute(store, args),
        Command::Ls(args) => commands::ls::execute(store, args).map(|()| 0),
        Command::Show(args) => commands::show::execute(store, args),
        Command::Break(args) => commands::break_lock::execute(store, args),
        Command::Doctor(args) => commands::doctor::execute(store, args).map(|()| 0),
        Command::Bench(args) => commands::bench::execute(store, args).map(|()| 0),
        Command::Schema(args) => commands::schema::execute(store, args).map(|()| 0),
        Command::Completions(args) => commands::completions::execute(args).map(|()| 0),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, message }) => {
            if let Some(message) = message {
                stderr::print(&message);
            }
            ExitCode::from(code)
        }
    }
}
