//! Our own benchmarks: every store under load on its real server, beside its raw driver, in one command.
//! `bench/run` calls it and writes what comes out beside `docs/PERFORMANCE.md`.

mod aims;
mod growth;
mod machine;
mod report;
mod servers;
mod stores;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use distlock_load::Target;

#[derive(Parser, Debug)]
#[command(name = "distlock-bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// All scenarios on every store
    Stores(Choice),
    /// How cost grows with names held, waiters, processes and batch size
    Growth(Choice),
    /// The aims and what was reached, from what the other two left in a folder
    Report(report::Pages),
}

/// What to run and where to put it.
#[derive(clap::Args, Debug)]
pub(crate) struct Choice {
    /// Only these stores
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these scenarios
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// How long each run takes
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// How many locks `held` keeps alive
    #[arg(long, default_value_t = 100_000)]
    held: usize,
    /// The folder for JSON and pictures; without one, only text
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Choice {
    fn each(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.clamp(0.2, 600.0))
    }

    fn contestants(&self) -> impl Iterator<Item = &'static servers::Contestant> + '_ {
        servers::ALL
            .iter()
            .filter(|one| self.only.is_empty() || self.only.iter().any(|name| name == one.name))
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

/// A target that can start this program again as a worker.
pub(crate) fn target(url: &str) -> Target {
    let target = Target::new(url, |url| Box::pin(distlock::open(url)))
        .baseline(|url| Box::pin(distlock::bench::baseline(url)));
    match std::env::current_exe() {
        Ok(program) => target.worker_program(program, vec![distlock_load::WORD.into()]),
        Err(_) => target,
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(distlock_load::WORD) {
        return distlock_load::worker(|url| Box::pin(distlock::open(url)));
    }
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        runtime.block_on(async {
            match &cli.command {
                Command::Stores(choice) => stores::run(choice).await,
                Command::Growth(choice) => growth::run(choice).await,
                Command::Report(pages) => report::run(pages),
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
