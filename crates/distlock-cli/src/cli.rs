//! The command line. The options of a command are in the file of the command.

use clap::{Parser, Subcommand};

use crate::commands::{bench, break_lock, completions, doctor, ls, run, schema, show};
use crate::store::StoreArgs;

const EXAMPLES: &str = "\
Examples:
  distlock run nightly -- ./backup.sh
  distlock --store redis://cache.example run --timeout 10s migrate -- ./migrate.sh
  distlock ls

Without --store and DISTLOCK_STORE the locks are lock files of this user on this machine
($XDG_STATE_HOME/distlock, or ~/.local/state/distlock): other users and other machines do
not see them. To share locks, name the same store everywhere: between users of one machine
a folder of their group, --store 'file:///var/lib/locks?distlock.access=group'; between
machines a server.

The store is a URL: file:///dir, redis://host, postgres://host/db, mongodb://host/db and so
on. Put a URL with a password into DISTLOCK_STORE: other users of the machine can see the
command line.";

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
    /// Run a command under a lock
    #[command(after_help = run::EXAMPLES)]
    Run(run::RunArgs),
    /// List the locks that are held
    #[command(after_help = ls::EXAMPLES)]
    Ls(ls::LsArgs),
    /// Show the holders and the waiters of a lock
    #[command(after_help = show::EXAMPLES)]
    Show(show::ShowArgs),
    /// Force the release of a lock
    #[command(after_help = break_lock::EXAMPLES)]
    Break(break_lock::BreakArgs),
    /// Check the store for dangerous settings, and say how to fix them
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),
    /// Measure the store under load, beside its bare driver (the baseline)
    #[command(after_help = bench::EXAMPLES)]
    Bench(bench::BenchArgs),
    /// Print the tables and indexes that the store needs
    #[command(after_help = schema::EXAMPLES)]
    Schema(schema::SchemaArgs),
    /// Print the completion script for a shell
    #[command(after_help = completions::EXAMPLES)]
    Completions(completions::CompletionsArgs),
}
