//! The command line as a whole. What each command takes stands in the command's own file.

use clap::{Parser, Subcommand};

use crate::commands::{bench, break_lock, completions, doctor, ls, run, schema, show};
use crate::store::StoreArgs;

const EXAMPLES: &str = "\
Examples:
  distlock run nightly -- ./backup.sh
  distlock --store redis://cache.example run --timeout 10s migrate -- ./migrate.sh
  distlock ls

The store is a URL: file:///dir, redis://host, postgres://host/db, mongodb://host/db and so
on. A URL with a password is better kept in DISTLOCK_STORE than on the command line, which
other users of the machine can see.";

/// Locks that hold across processes and machines.
#[derive(Parser, Debug)]
#[command(name = "distlock", version, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a command while a lock is held
    #[command(after_help = run::EXAMPLES)]
    Run(run::RunArgs),
    /// List what is held now
    #[command(after_help = ls::EXAMPLES)]
    Ls(ls::LsArgs),
    /// Show who holds a lock and who waits for it
    #[command(after_help = show::EXAMPLES)]
    Show(show::ShowArgs),
    /// Take a lock from whoever holds it
    #[command(after_help = break_lock::EXAMPLES)]
    Break(break_lock::BreakArgs),
    /// Examine the store: what is dangerous there, and how to mend it
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),
    /// Put load on the store, beside its raw driver
    #[command(after_help = bench::EXAMPLES)]
    Bench(bench::BenchArgs),
    /// Print the tables or indexes that the store needs
    #[command(after_help = schema::EXAMPLES)]
    Schema(schema::SchemaArgs),
    /// Print a script that lets a shell complete this command
    #[command(after_help = completions::EXAMPLES)]
    Completions(completions::CompletionsArgs),
}
