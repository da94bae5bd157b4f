//! Compares two builds of the command: runs `distlock bench --json` of both alternately on the same server.
//!
//! Machines drift, so figures of two separate runs cannot be compared. Here the builds alternate (old, new, new, old, …) and
//! each figure is the median of all rounds. The baseline of each build is measured too: if its ratio is not close to 1, the
//! machine was not quiet enough.

use std::path::{Path, PathBuf};
use std::process::Command;

use distlock_load::render::{micros, number};
use serde_json::Value;

use crate::table;
use crate::{RunArgs, servers::StoreServer};

/// A ratio that differs from 1 by more than this is marked.
const TOLERANCE: f64 = 0.05;

/// The two builds, and what to run.
#[derive(clap::Args, Debug)]
pub(crate) struct CompareArgs {
    /// The `distlock` program of the old build
    old: PathBuf,
    /// The `distlock` program of the new build
    new: PathBuf,
    /// How often each build runs each scenario
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    run: RunArgs,
}

/// The figures of both builds for one run of a scenario, one of each per round.
#[derive(Debug, Default)]
struct Samples {
    scenario: String,
    tasks: u64,
    old: Vec<Value>,
    new: Vec<Value>,
}

pub(crate) fn run(args: &CompareArgs) -> Result<(), String> {
    let header = ["STORE", "SCENARIO", "TASKS", "FIGURE", "OLD", "NEW", "NEW/OLD", "", "BASELINE NEW/OLD"];
    let mut lines = vec![header.map(str::to_owned).to_vec()];
    for store in args.run.stores() {
        let server = store.start();
        eprintln!("{} ({})", store.name, server.version);
        let mut samples = Vec::new();
        for round in 0..args.rounds.max(1) {
            // Old first, then new first, so that drift affects both alike.
            let builds = if round % 2 == 0 { [true, false] } else { [false, true] };
            for is_old in builds {
                let program = if is_old { &args.old } else { &args.new };
                for record in bench(program, &server.url, store, &args.run)? {
                    add(&mut samples, record, is_old);
                }
            }
            eprintln!("  round {} of {}", round + 1, args.rounds.max(1));
        }
        lines.extend(samples.iter().flat_map(|samples| rows(store.name, samples)));
    }
    print!("{}", table::align(&lines));
    println!(
        "\nMedians of {} rounds. The ratio is above 1 where NEW is better; marked if it differs by more than {:.0} %.",
        args.rounds.max(1),
        TOLERANCE * 100.0
    );
    Ok(())
}

/// One run of one build.
fn bench(program: &Path, url: &str, store: &StoreServer, args: &RunArgs) -> Result<Vec<Value>, String> {
    let held = args.held.min((store.max_held)());
    let mut command = Command::new(program);
    command.args(["--store", url, "bench", "--json"]);
    command.arg(format!("--seconds={}", args.seconds)).arg(format!("--held={held}"));
    command.args(args.scenario.iter().map(|scenario| format!("--scenario={scenario}")));
    let output = command.output().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} failed on {}: {}", program.display(), store.name, error.trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{}: {error}", program.display()))
}

fn add(samples: &mut Vec<Samples>, record: Value, is_old: bool) {
    let scenario = record["scenario"].as_str().unwrap_or_default().to_owned();
    // Session stores may refuse some of the held locks, so that their number varies.
    let tasks = if scenario == "held" { 0 } else { record["tasks"].as_u64().unwrap_or(0) };
    let index = samples.iter().position(|one| one.scenario == scenario && one.tasks == tasks);
    let index = index.unwrap_or_else(|| {
        samples.push(Samples { scenario, tasks, ..Samples::default() });
        samples.len() - 1
    });
    if is_old { samples[index].old.push(record) } else { samples[index].new.push(record) }
}

/// A figure of a record. For some a higher value is better.
struct Figure {
    name: &'static str,
    field: &'static str,
    baseline: Option<&'static str>,
    higher_is_better: bool,
    format: fn(f64) -> String,
}

const RATE: Figure = Figure {
    name: "ops/s",
    field: "ops_per_s",
    baseline: Some("raw_ops_per_s"),
    higher_is_better: true,
    format: number,
};
const MEDIAN: Figure = Figure {
    name: "median",
    field: "p50_us",
    baseline: Some("raw_p50_us"),
    higher_is_better: false,
    format: micros,
};
const REQUESTS: Figure = Figure {
    name: "requests/op",
    field: "requests_per_op",
    baseline: None,
    higher_is_better: false,
    format: number,
};
const MEMORY: Figure = Figure {
    name: "bytes/lock",
    field: "rss_per_lock_bytes",
    baseline: None,
    higher_is_better: false,
    format: number,
};

fn rows(store: &str, samples: &Samples) -> Vec<Vec<String>> {
    let figures: &[Figure] = match samples.scenario.as_str() {
        "throughput" | "contended" | "contended-processes" => &[RATE, REQUESTS],
        "held" => &[MEDIAN, REQUESTS, MEMORY],
        _ => &[MEDIAN, REQUESTS],
    };
    figures.iter().filter_map(|figure| row(store, samples, figure)).collect()
}

fn row(store: &str, samples: &Samples, figure: &Figure) -> Option<Vec<String>> {
    let (old, new) = (median(&samples.old, figure.field)?, median(&samples.new, figure.field)?);
    let better = |old: f64, new: f64| if figure.higher_is_better { new / old } else { old / new };
    let ratio = better(old, new);
    let mark = match ratio {
        ratio if ratio < 1.0 - TOLERANCE => "slower",
        ratio if ratio > 1.0 + TOLERANCE => "faster",
        _ => "",
    };
    let baseline = figure
        .baseline
        .and_then(|field| Some(better(median(&samples.old, field)?, median(&samples.new, field)?)));
    let tasks = if samples.tasks == 0 { "-".to_owned() } else { samples.tasks.to_string() };
    Some(vec![
        store.to_owned(),
        samples.scenario.clone(),
        tasks,
        figure.name.to_owned(),
        (figure.format)(old),
        (figure.format)(new),
        format!("{ratio:.2}"),
        mark.to_owned(),
        baseline.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
    ])
}

/// The median of a field, without records that do not have it or where it is zero.
fn median(records: &[Value], field: &str) -> Option<f64> {
    let mut values: Vec<f64> =
        records.iter().filter_map(|record| record[field].as_f64()).filter(|value| *value > 0.0).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    Some((values[middle] + values[values.len() / 2]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(old: &[f64], new: &[f64], scenario: &str, field: &str) -> Samples {
        let records = |values: &[f64]| {
            values.iter().map(|value| serde_json::json!({ "scenario": scenario, field: value })).collect()
        };
        Samples { scenario: scenario.to_owned(), tasks: 1, old: records(old), new: records(new) }
    }

    #[test]
    fn a_higher_latency_and_a_lower_rate_are_both_slower() {
        let latency = samples(&[100.0, 90.0, 400.0], &[130.0, 120.0, 110.0], "uncontended", "p50_us");
        let row = &rows("redis", &latency)[0];
        assert_eq!((row[6].as_str(), row[7].as_str()), ("0.83", "slower"));
        let rate = samples(&[1000.0], &[800.0], "throughput", "ops_per_s");
        let row = &rows("redis", &rate)[0];
        assert_eq!((row[6].as_str(), row[7].as_str()), ("0.80", "slower"));
    }

    #[test]
    fn a_difference_within_the_tolerance_is_not_marked() {
        let row = &rows("redis", &samples(&[100.0], &[104.0], "handoff", "p50_us"))[0];
        assert_eq!(row[7], "");
    }

    #[test]
    fn records_of_one_scenario_and_number_of_tasks_belong_together() {
        let mut all = Vec::new();
        for tasks in [64, 256, 64] {
            add(&mut all, serde_json::json!({ "scenario": "throughput", "tasks": tasks }), tasks == 64);
        }
        assert_eq!(
            all.iter().map(|one| (one.tasks, one.old.len(), one.new.len())).collect::<Vec<_>>(),
            [(64, 2, 0), (256, 0, 1)]
        );
    }
}
