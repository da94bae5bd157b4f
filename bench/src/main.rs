//! The project's benchmarks: every store under load on its real server, beside its baseline. `bench/run` runs it and writes
//! `docs/PERFORMANCE.md`; `bench/compare` compares two builds.

mod compare;
mod growth;
mod machine;
mod report;
mod scale;
mod servers;
mod stores;
mod table;
mod targets;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use distlock_load::BenchStore;

#[derive(Parser, Debug)]
#[command(name = "distlock-bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run all scenarios on every store
    Stores(RunArgs),
    /// Measure how cost grows with tasks, waiters, processes and held locks
    Growth(RunArgs),
    /// Measure a thousand contending processes and a million held locks
    Scale(scale::ScaleArgs),
    /// Write the tables with targets and figures from the reports of the other three
    Report(report::ReportArgs),
    /// Compare two builds of the command, alternating their runs on the same server
    Compare(compare::CompareArgs),
}

/// What to run, and where to write the results.
#[derive(clap::Args, Debug)]
pub(crate) struct RunArgs {
    /// Only these stores
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these scenarios
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// The duration of each run
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// The number of locks in `held`
    #[arg(long, default_value_t = 100_000)]
    held: usize,
    /// The folder for JSON and pictures; without it, only text is printed
    #[arg(long)]
    out: Option<PathBuf>,
}

impl RunArgs {
    fn run_time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.clamp(0.2, 600.0))
    }

    fn stores(&self) -> impl Iterator<Item = &'static servers::StoreServer> + '_ {
        servers::ALL
            .iter()
            .filter(|store| self.only.is_empty() || self.only.iter().any(|name| name == store.name))
    }

    /// Writes a file into the folder, if there is one.
    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let Some(folder) = &self.out else { return Ok(()) };
        let path = folder.join(name);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

/// The store at this URL, with this program as its worker.
pub(crate) fn bench_store(url: &str) -> BenchStore {
    let store = BenchStore::new(url, |url| Box::pin(distlock::open(url)))
        .baseline(|url| Box::pin(distlock::bench::baseline(url)));
    match std::env::current_exe() {
        Ok(program) => store.worker_program(program, vec![distlock_load::WORKER_ARG.into()]),
        Err(_) => store,
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(distlock_load::WORKER_ARG) {
        return distlock_load::worker(|url| Box::pin(distlock::open(url)));
    }
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        runtime.block_on(async {
            match &cli.command {
                Command::Stores(args) => stores::run(args).await,
                Command::Growth(args) => growth::run(args).await,
                Command::Scale(args) => scale::run(args).await,
                Command::Report(args) => report::run(args),
                Command::Compare(args) => compare::run(args),
            }
        })
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("distlock-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
