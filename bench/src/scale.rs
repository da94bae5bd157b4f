//! How far it scales: a thousand processes that contend for one lock, and a million locks held by one process.

use std::process::{Command, Stdio};
use std::time::Duration;

use distlock_load::{Bench, NoObserver, Plan, Scenario};
use serde_json::{Value, json};

use crate::servers::{self, RunningServer};
use crate::{bench_store, machine};

/// What to run, and where to write the results.
#[derive(clap::Args, Debug)]
pub(crate) struct ScaleArgs {
    /// Only these runs: STORE-processes-NUMBER or STORE-held-NUMBER
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The folder for the report; without it, only text is printed
    #[arg(long)]
    out: Option<std::path::PathBuf>,
    /// The duration of each run
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Measure one run in this process and print its record
    #[arg(long, hide = true)]
    measure: Option<String>,
}

/// One run. The small ones show what the large ones are to be compared with.
struct ScaleRun {
    store: &'static str,
    start: fn() -> RunningServer,
    load: Load,
}

#[derive(Clone, Copy)]
enum Load {
    /// So many processes contend for one lock.
    Processes(usize),
    /// One process holds so many locks.
    Held(usize),
}

impl ScaleRun {
    fn name(&self) -> String {
        match self.load {
            Load::Processes(number) => format!("{}-processes-{number}", self.store),
            Load::Held(number) => format!("{}-held-{number}", self.store),
        }
    }

    fn plan(&self, run_time: Duration) -> Plan {
        match self.load {
            Load::Processes(number) => Plan {
                scenarios: vec![Scenario::Contended],
                contenders: number,
                processes: number,
                run_time,
                ..Plan::default()
            },
            Load::Held(held) => Plan {
                scenarios: vec![Scenario::Held],
                held,
                held_expiry: HELD_EXPIRY,
                run_time: run_time.max(HELD_EXPIRY),
                ..Plan::default()
            },
        }
    }
}

/// The default expiry of a lock.
const HELD_EXPIRY: Duration = Duration::from_secs(30);

const RUNS: &[ScaleRun] = &[
    ScaleRun { store: "redis", start: servers::redis, load: Load::Processes(4) },
    ScaleRun { store: "redis", start: servers::redis, load: Load::Processes(1000) },
    ScaleRun { store: "postgres", start: postgres, load: Load::Processes(4) },
    ScaleRun { store: "postgres", start: postgres, load: Load::Processes(100) },
    ScaleRun { store: "postgres", start: postgres, load: Load::Processes(300) },
    ScaleRun { store: "postgres", start: postgres, load: Load::Processes(1000) },
    ScaleRun { store: "redis", start: servers::redis, load: Load::Held(100_000) },
    ScaleRun { store: "redis", start: servers::redis, load: Load::Held(1_000_000) },
];

/// Each process has a connection for requests and one for notifications.
fn postgres() -> RunningServer {
    servers::postgres_with("postgres", 2200)
}

/// Measures each run in its own process: memory that one run freed would be reused by the next.
pub(crate) async fn run(args: &ScaleArgs) -> Result<(), String> {
    if let Some(name) = &args.measure {
        return measure(name, args.seconds).await;
    }
    let mut records = Vec::new();
    for run in RUNS.iter().filter(|run| args.only.is_empty() || args.only.contains(&run.name())) {
        // A run that fails does not stop the others.
        let record = measure_in_process(&run.name(), args.seconds).unwrap_or_else(
            |error| json!({ "run": run.name(), "store": run.store, "outcome": null, "failure": error }),
        );
        println!("{}", summary(&record));
        records.push(record);
    }
    let Some(folder) = &args.out else { return Ok(()) };
    let report = json!({
        "date": machine::date(), "machine": machine::describe(), "seconds_each": args.seconds, "runs": records,
    });
    let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(folder.join("scale.json"), text + "\n"))
        .map_err(|error| format!("cannot write into {}: {error}", folder.display()))
}

fn measure_in_process(name: &str, seconds: f64) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["scale", "--measure", name])
        .arg(format!("--seconds={seconds}"))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let record = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    record.ok_or_else(|| format!("{name}: {}", output.status))
}

async fn measure(name: &str, seconds: f64) -> Result<(), String> {
    let run = RUNS.iter().find(|run| run.name() == name).ok_or_else(|| format!("there is no run {name}"))?;
    let plan = run.plan(Duration::from_secs_f64(seconds.clamp(1.0, 600.0)));
    let started = (run.start)();
    let load_before = machine::load();
    let outcome = async {
        let mut bench = Bench::connect(bench_store(&started.url)).await?;
        let outcomes = bench.run(&plan, &NoObserver).await;
        let finished = bench.finish().await;
        let outcomes = outcomes?;
        finished.map(|()| outcomes)
    };
    let (outcome, failure) = match outcome.await {
        // Of `contended`, the run in several processes.
        Ok(mut outcomes) => (outcomes.pop().map(|outcome| outcome.detail()), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let record = json!({
        "run": name, "store": run.store, "server": started.version, "load_average_before": load_before,
        "outcome": outcome, "failure": failure,
    });
    println!("{record}");
    Ok(())
}

/// A figure of a record, if it was measured.
fn figure(record: &Value, name: &str, digits: usize) -> String {
    match record["outcome"][name].as_f64() {
        Some(value) => format!("{value:.digits$}"),
        None => "–".to_owned(),
    }
}

fn notes(record: &Value) -> String {
    let notes = record["outcome"]["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let failure = record["failure"].as_str().map(|failure| format!("FAILED: {failure}"));
    notes.map(str::to_owned).chain(failure).collect::<Vec<_>>().join("; ")
}

fn summary(record: &Value) -> String {
    format!(
        "{}: {} requests per operation, {} acquisitions/s, fairness {}, {} B per lock, {} core; {}",
        record["run"].as_str().unwrap_or("?"),
        figure(record, "requests_per_op", 4),
        figure(record, "ops_per_s", 1),
        figure(record, "fairness", 2),
        figure(record, "rss_per_lock_bytes", 0),
        figure(record, "cpu_cores", 3),
        notes(record),
    )
}

/// The table of the page.
pub(crate) fn as_markdown(report: &Value) -> String {
    let mut text = String::from(
        "| run | server | requests per acquisition or renewal | acquisitions/s | most / fewest | waiting: requests/s | client: core | bytes per lock | notes |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for record in report["runs"].as_array().into_iter().flatten() {
        let is_held = record["outcome"]["scenario"] == "held";
        let only = |shown: bool, text: String| if shown { text } else { "–".to_owned() };
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            record["run"].as_str().unwrap_or("?"),
            record["server"].as_str().unwrap_or("?"),
            figure(record, "requests_per_op", 4),
            only(!is_held, figure(record, "ops_per_s", 0)),
            only(!is_held, figure(record, "fairness", 2)),
            figure(record, "waiting_per_s", 1),
            only(is_held, figure(record, "cpu_cores", 3)),
            figure(record, "rss_per_lock_bytes", 0),
            notes(record),
        ));
    }
    text.push_str(&format!(
        "\nMeasured on {}; {} s per run.\n",
        report["date"].as_str().unwrap_or("?"),
        report["seconds_each"]
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_run_is_shown_as_failed_and_not_left_out() {
        let report = json!({ "date": "today", "seconds_each": 1.0, "runs": [
            { "run": "redis-held-5", "server": "Redis", "failure": "it fell over", "outcome": null },
            { "run": "redis-processes-5", "server": "Redis", "failure": null,
              "outcome": { "scenario": "contended-processes", "requests_per_op": 2.0, "ops_per_s": 10.0, "notes": [] } },
        ] });
        let text = as_markdown(&report);
        assert!(
            text.contains("| redis-held-5 | Redis | – |") && text.contains("FAILED: it fell over"),
            "{text}"
        );
        assert!(text.contains("| redis-processes-5 | Redis | 2.0000 | 10 |"), "{text}");
    }
}
