//! How cost grows with names held, waiters, processes and batch size: one thing is changed at a time.

use distlock_load::render::{Chart, Series};
use distlock_load::{Bench, Outcome, Plan, Scenario, Silent};
use serde_json::{Value, json};

use crate::servers::Contestant;
use crate::{Choice, machine, target};

/// What is changed, and how it is told.
struct Dimension {
    name: &'static str,
    title: &'static str,
    across: &'static str,
    up: &'static str,
    steps: &'static [usize],
    plan: fn(usize) -> Plan,
    /// Which of the outcomes of a run counts.
    scenario: &'static str,
    figure: fn(&Outcome) -> Option<f64>,
    /// Beside it, for the raw driver.
    raw: Option<fn(&Outcome) -> Option<f64>>,
}

const DIMENSIONS: &[Dimension] = &[
    Dimension {
        name: "tasks",
        title: "Throughput over tasks, each with a name of its own",
        across: "tasks",
        up: "acquire-and-release cycles a second; thin: the raw driver in the same run",
        steps: &[1, 4, 16, 64, 256, 1024],
        plan: |tasks| Plan { scenarios: vec![Scenario::Throughput], tasks: vec![tasks], ..Plan::default() },
        scenario: "throughput",
        figure: |outcome| outcome.ops_per_s,
        raw: Some(|outcome| outcome.raw_ops_per_s),
    },
    Dimension {
        name: "batch",
        title: "Requests for a cycle over tasks: what coalescing saves",
        across: "tasks",
        up: "requests to the server for each acquire-and-release cycle",
        steps: &[1, 4, 16, 64, 256, 1024],
        plan: |tasks| Plan { scenarios: vec![Scenario::Throughput], tasks: vec![tasks], ..Plan::default() },
        scenario: "throughput",
        figure: |outcome| outcome.requests_per_op,
        raw: None,
    },
    Dimension {
        name: "waiters",
        title: "Requests for an acquisition over waiters in one process",
        across: "tasks that want one lock",
        up: "requests to the server for each acquisition",
        steps: &[2, 8, 32, 64, 256],
        plan: |tasks| Plan {
            scenarios: vec![Scenario::Contended],
            contenders: tasks,
            processes: 1,
            ..Plan::default()
        },
        scenario: "contended",
        figure: |outcome| outcome.requests_per_op,
        raw: None,
    },
    Dimension {
        name: "processes",
        title: "Requests for an acquisition over processes, one waiter in each",
        across: "processes that want one lock",
        up: "requests to the server for each acquisition",
        steps: &[2, 4, 8, 16, 32],
        plan: |processes| Plan {
            scenarios: vec![Scenario::Contended],
            contenders: processes,
            processes,
            ..Plan::default()
        },
        scenario: "contended-processes",
        figure: |outcome| outcome.requests_per_op,
        raw: None,
    },
    Dimension {
        name: "held",
        title: "Extensions of held locks: what one lock costs",
        across: "locks held",
        up: "requests to the server for each extension of one lock",
        steps: &[100, 1000, 10_000, 100_000],
        plan: |held| Plan { scenarios: vec![Scenario::Held], held, ..Plan::default() },
        scenario: "held",
        figure: |outcome| outcome.requests_per_op,
        raw: None,
    },
];

pub(crate) async fn run(choice: &Choice) -> Result<(), String> {
    let mut charts: Vec<Vec<Series>> = DIMENSIONS.iter().map(|_| Vec::new()).collect();
    let mut reports = Vec::new();
    for contestant in choice.contestants() {
        let started = contestant.start();
        println!("\n{} ({})", contestant.name, started.version);
        let mut known: Vec<(&str, usize, Vec<Outcome>)> = Vec::new();
        for (dimension, chart) in DIMENSIONS.iter().zip(&mut charts) {
            let mut outcomes = Vec::new();
            for &step in dimension.steps.iter().filter(|step| fits(contestant, dimension, **step, choice)) {
                // Two charts show the same runs.
                let plan = (dimension.plan)(step);
                let seen = known.iter().find(|(kind, at, _)| *kind == dimension.scenario && *at == step);
                let of_run = match seen {
                    Some((_, _, outcomes)) if dimension.scenario == "throughput" => outcomes.clone(),
                    _ => one(&started.url, &Plan { each: choice.each(), ..plan }).await?,
                };
                known.push((dimension.scenario, step, of_run.clone()));
                let of_run = of_run.into_iter().find(|outcome| outcome.scenario == dimension.scenario);
                if let Some(mut outcome) = of_run {
                    // What an earlier run gave back is used again: this process cannot tell what a lock takes.
                    outcome.rss_per_lock_bytes = None;
                    println!("  {} {step}: {}", dimension.name, summary(&outcome));
                    reports.push(report(contestant, dimension, step, &outcome));
                    outcomes.push((step, outcome));
                }
            }
            chart.extend(series(contestant, dimension, &outcomes));
        }
    }
    for (dimension, series) in DIMENSIONS.iter().zip(charts) {
        let chart = Chart {
            title: dimension.title.to_owned(),
            across: dimension.across.to_owned(),
            up: dimension.up.to_owned(),
            series,
        };
        choice.write(&format!("growth-{}.svg", dimension.name), &chart.draw())?;
    }
    let report = json!({ "machine": machine::describe(), "seconds_each": choice.seconds, "runs": reports });
    let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
    choice.write("growth.json", &(text + "\n"))
}

/// Only what the store can carry, and the dimensions that were chosen.
fn fits(contestant: &Contestant, dimension: &Dimension, step: usize, choice: &Choice) -> bool {
    let chosen = choice.scenario.is_empty() || choice.scenario.iter().any(|name| name == dimension.name);
    chosen && (dimension.name != "held" || step <= (contestant.most_held)().min(choice.held))
}

async fn one(url: &str, plan: &Plan) -> Result<Vec<Outcome>, String> {
    let mut bench = Bench::prepare(target(url)).await.map_err(|error| format!("{error:#}"))?;
    let outcomes = bench.run(plan, &Silent).await.map_err(|error| error.to_string());
    bench.finish().await.map_err(|error| error.to_string())?;
    outcomes
}

fn series(contestant: &Contestant, dimension: &Dimension, outcomes: &[(usize, Outcome)]) -> Vec<Series> {
    let points = |figure: fn(&Outcome) -> Option<f64>| -> Vec<(f64, f64)> {
        outcomes.iter().filter_map(|(step, outcome)| Some((*step as f64, figure(outcome)?))).collect()
    };
    let mut all =
        vec![Series { name: contestant.name.to_owned(), points: points(dimension.figure), thin: false }];
    if let Some(raw) = dimension.raw {
        all.push(Series { name: format!("{} raw", contestant.name), points: points(raw), thin: true });
    }
    all.retain(|series| !series.points.is_empty());
    all
}

fn summary(outcome: &Outcome) -> String {
    let line = serde_json::to_value(outcome.line()).unwrap_or_default();
    let shown =
        ["ops_per_s", "p50_us", "p99_us", "ratio", "requests_per_op", "fairness", "rss_per_lock_bytes"];
    let figures =
        shown.iter().filter(|name| !line[**name].is_null()).map(|name| format!("{name} {}", line[*name]));
    figures.collect::<Vec<_>>().join("  ")
}

fn report(contestant: &Contestant, dimension: &Dimension, step: usize, outcome: &Outcome) -> Value {
    json!({ "store": contestant.name, "dimension": dimension.name, "step": step, "outcome": outcome.detail() })
}
