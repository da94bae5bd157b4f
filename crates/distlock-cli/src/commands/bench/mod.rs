//! `distlock bench`: load on a real store, beside the baseline (its bare driver) in the same run.

mod progress;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use distlock_load::{Bench, BenchStore, JsonRecord, Outcome, Plan, Scenario, render};

use self::progress::Progress;
use crate::exit::{Failure, UNAVAILABLE};
use crate::output::{self, Style};
use crate::store::{self, StoreArgs};

pub(crate) const EXAMPLES: &str = "\
Scenarios:
  uncontended  one task acquires and releases one lock
  throughput   64 and 256 tasks, each with its own name
  handoff      from the call of release until a waiter on another connection has the lock
  contended    64 tasks share one lock, hold it 1 ms and pause 5 ms; then the same across processes
  held         locks that are only renewed; latencies are those of one more lock beside them
  takeover     the holder is killed: the time past its expiry, or past the kill on stores with sessions

distlock and the baseline (the bare driver) alternate in short slices, so both see the same machine. The
ratio is of the medians (below 1: faster than the baseline), in throughput and contended of the rates
(above 1: faster than the baseline). Requests are counted by the server, those of other clients included:
measure on a store without other clients. All names begin with distlock-bench/ and are removed at the end.

Examples:
  distlock --store redis://cache.example bench
  distlock bench --scenario uncontended --scenario handoff --seconds 10
  distlock bench --json | jq -r '.[] | [.scenario, .tasks, .p50_us, .ratio] | @tsv'
  distlock bench --plot bench.svg";

/// The scenarios, and how to run them.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Run only this scenario; may be repeated
    #[arg(long = "scenario", value_name = "NAME", value_delimiter = ',', value_parser = names())]
    scenarios: Vec<String>,
    /// How long each scenario runs
    #[arg(long, value_name = "N", default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// How many tasks in throughput (default 64, then 256) and contended (default 64)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tasks: Option<u32>,
    /// How many processes share the tasks in the second run of contended; 1 for no second run
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// How many locks are renewed in held
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    held: u32,
    /// Print an array of JSON objects instead of a table, one for each run
    #[arg(long)]
    json: bool,
    /// Write a plot of the latencies to this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(Scenario::ALL.map(Scenario::as_str))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 =
        text.parse().map_err(|_| "it is not a number of seconds, such as 3 or 0.5".to_owned())?;
    if !(0.2..=3600.0).contains(&number) {
        return Err("it is not between 0.2 and 3600".to_owned());
    }
    Ok(Duration::from_secs_f64(number))
}

impl BenchArgs {
    fn plan(&self) -> Plan {
        let chosen = |scenario: &Scenario| {
            self.scenarios.is_empty() || self.scenarios.iter().any(|name| name == scenario.as_str())
        };
        let mut plan = Plan { run_time: self.seconds, held: self.held as usize, ..Plan::default() };
        plan.scenarios.retain(chosen);
        plan.processes = self.processes as usize;
        if let Some(tasks) = self.tasks {
            plan.tasks = vec![tasks as usize];
            plan.contenders = tasks as usize;
        }
        plan
    }
}

/// Runs this program as a worker process of the benchmark.
pub(crate) fn worker() -> ExitCode {
    distlock_load::worker(|url| Box::pin(store::open(url)))
}

pub(crate) fn execute(store: &StoreArgs, args: &BenchArgs) -> Result<(), Failure> {
    // As many threads as applications have; distlock and the baseline share them.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(UNAVAILABLE, format!("cannot start: {error}")))?;
    let (outcomes, ended) = runtime.block_on(measure(store, args))?;
    runtime.shutdown_background();
    if let Some(path) = args.plot.as_deref().filter(|_| !outcomes.is_empty()) {
        draw(path, &outcomes)?;
    }
    if args.json {
        let lines: Vec<JsonRecord<'_>> = outcomes.iter().map(Outcome::json_record).collect();
        output::write_json(&lines)?;
    } else if !outcomes.is_empty() {
        output::write(&text(&outcomes))?;
    }
    ended
}

/// The results so far, and how the run ended: a failure or a signal does not discard earlier scenarios.
async fn measure(
    store: &StoreArgs,
    args: &BenchArgs,
) -> Result<(Vec<Outcome>, Result<(), Failure>), Failure> {
    let mut target = BenchStore::new(store.url()?, |url| Box::pin(store::open(url)))
        .baseline(|url| Box::pin(store::open_baseline(url)));
    if let Ok(program) = std::env::current_exe() {
        target = target.worker_program(program, vec![distlock_load::WORKER_ARG.into()]);
    }
    let progress = Progress::new();
    let mut bench = Bench::connect(target).await?;
    let plan = args.plan();
    let mut outcomes = Vec::new();
    let mut ended = Ok(());
    for scenario in &plan.scenarios {
        let one = Plan { scenarios: vec![*scenario], ..plan.clone() };
        let run = tokio::select! {
            run = bench.run(&one, &progress) => run.map_err(Failure::from),
            signal = interrupted() => Err(Failure::signal(signal)),
        };
        match run {
            Ok(mut some) => outcomes.append(&mut some),
            Err(failure) => {
                ended = Err(failure);
                break;
            }
        }
    }
    progress.clear();
    let cleaned = bench.finish().await.map_err(Failure::from);
    Ok((outcomes, ended.and(cleaned)))
}

/// Resolves at SIGINT or SIGTERM, with its number.
async fn interrupted() -> i32 {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
    }
}

fn draw(path: &Path, outcomes: &[Outcome]) -> Result<(), Failure> {
    std::fs::write(path, render::distributions(outcomes)).map_err(|error| {
        Failure::new(1, format!("cannot write the plot to {}: {error}; name another file", path.display()))
    })
}

fn text(outcomes: &[Outcome]) -> String {
    let colours = output::colours();
    let mut text = outcomes.first().map_or_else(String::new, |first| format!("{}\n", first.store));
    text.push_str(&render::table(outcomes, |header| output::styled(header, Style::Bold, colours)));
    if std::io::stdout().is_terminal() {
        for outcome in outcomes {
            text.push('\n');
            text.push_str(&render::histogram(outcome));
        }
    }
    text
}
