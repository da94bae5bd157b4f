//! How cost grows with tasks, waiters, processes and held locks; one dimension changes at a time.

use distlock_load::render::{Chart, Series};
use distlock_load::{Bench, NoObserver, Outcome, Plan, Scenario};
use serde_json::{Value, json};

use crate::servers::StoreServer;
use crate::{RunArgs, bench_store, machine};

/// One dimension and its chart.
struct Dimension {
    name: &'static str,
    title: &'static str,
    across: &'static str,
    up: &'static str,
    steps: &'static [usize],
    plan: fn(usize) -> Plan,
    /// The scenario whose outcome counts.
    scenario: &'static str,
    figure: fn(&Outcome) -> Option<f64>,
    /// The same figure of the baseline.
    baseline: Option<fn(&Outcome) -> Option<f64>>,
}

const DIMENSIONS: &[Dimension] = &[
    Dimension {
        name: "tasks",
        title: "How does the rate grow with tasks, each with its own name?",
        across: "tasks",
        up: "acquire-and-release cycles per second; thin: the baseline in the same run",
        steps: &[1, 2, 4, 8, 16, 24, 32, 48, 64, 256, 1024],
        plan: |tasks| Plan { scenarios: vec![Scenario::Throughput], tasks: vec![tasks], ..Plan::default() },
        scenario: "throughput",
        figure: |outcome| outcome.ops_per_s,
        baseline: Some(|outcome| outcome.baseline_ops_per_s),
    },
    Dimension {
        name: "batch",
        title: "How many requests does batching save?",
        across: "tasks",
        up: "requests to the server per acquire-and-release cycle",
        steps: &[1, 4, 16, 64, 256, 1024],
        plan: |tasks| Plan { scenarios: vec![Scenario::Throughput], tasks: vec![tasks], ..Plan::default() },
        scenario: "throughput",
        figure: |outcome| outcome.requests_per_op,
        baseline: None,
    },
    Dimension {
        name: "waiters",
        title: "What does an acquisition cost with many waiters in one process?",
        across: "tasks that contend for one lock",
        up: "requests to the server per acquisition",
        steps: &[2, 8, 32, 64, 256],
        plan: |tasks| Plan {
            scenarios: vec![Scenario::Contended],
            contenders: tasks,
            processes: 1,
            ..Plan::default()
        },
        scenario: "contended",
        figure: |outcome| outcome.requests_per_op,
        baseline: None,
    },
    Dimension {
        name: "processes",
        title: "What does an acquisition cost with waiters in many processes?",
        across: "processes that contend for one lock",
        up: "requests to the server per acquisition",
        steps: &[2, 4, 8, 16, 32],
        plan: |processes| Plan {
            scenarios: vec![Scenario::Contended],
            contenders: processes,
            processes,
            ..Plan::default()
        },
        scenario: "contended-processes",
        figure: |outcome| outcome.requests_per_op,
        baseline: None,
    },
    Dimension {
        name: "held",
        title: "What does renewing held locks cost?",
        across: "locks held",
        up: "requests to the server per renewal of one lock",
        steps: &[100, 1000, 10_000, 100_000],
        plan: |held| Plan { scenarios: vec![Scenario::Held], held, ..Plan::default() },
        scenario: "held",
        figure: |outcome| outcome.requests_per_op,
        baseline: None,
    },
];

pub(crate) async fn run(args: &RunArgs) -> Result<(), String> {
    let mut charts: Vec<Vec<Series>> = DIMENSIONS.iter().map(|_| Vec::new()).collect();
    let mut reports = Vec::new();
    for store in args.stores() {
        let started = store.start();
        println!("\n{} ({})", store.name, started.version);
        let mut known: Vec<(&str, usize, Vec<Outcome>)> = Vec::new();
        for (dimension, chart) in DIMENSIONS.iter().zip(&mut charts) {
            let mut outcomes = Vec::new();
            for &step in dimension.steps.iter().filter(|step| fits(store, dimension, **step, args)) {
                // Two charts share the same runs.
                let plan = (dimension.plan)(step);
                let seen = known.iter().find(|(kind, at, _)| *kind == dimension.scenario && *at == step);
                let run_outcomes = match seen {
                    Some((_, _, outcomes)) if dimension.scenario == "throughput" => outcomes.clone(),
                    _ => run_plan(&started.url, &Plan { run_time: args.run_time(), ..plan }).await.unwrap_or_else(
                        |failure| {
                            // One that fails does not stop the others.
                            println!("  {} {step}: FAILED: {failure}", dimension.name);
                            reports.push(json!({
                                "store": store.name, "dimension": dimension.name, "step": step, "failure": failure,
                            }));
                            Vec::new()
                        },
                    ),
                };
                known.push((dimension.scenario, step, run_outcomes.clone()));
                let outcome = run_outcomes.into_iter().find(|outcome| outcome.scenario == dimension.scenario);
                if let Some(mut outcome) = outcome {
                    // Memory freed by an earlier run is reused, so the memory per lock cannot be measured here.
                    outcome.rss_per_lock_bytes = None;
                    println!("  {} {step}: {}", dimension.name, summary(&outcome));
                    reports.push(report(store, dimension, step, &outcome));
                    outcomes.push((step, outcome));
                }
            }
            chart.extend(series(store, dimension, &outcomes));
        }
    }
    for (dimension, series) in DIMENSIONS.iter().zip(charts) {
        let chart = Chart {
            title: dimension.title.to_owned(),
            across: dimension.across.to_owned(),
            up: dimension.up.to_owned(),
            series,
        };
        args.write(&format!("growth-{}.svg", dimension.name), &chart.draw())?;
    }
    let report = json!({ "machine": machine::describe(), "seconds_each": args.seconds, "runs": reports });
    let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
    args.write("growth.json", &(text + "\n"))
}

/// Whether the dimension is chosen and the store supports the step.
fn fits(store: &StoreServer, dimension: &Dimension, step: usize, args: &RunArgs) -> bool {
    let chosen = args.scenario.is_empty() || args.scenario.iter().any(|name| name == dimension.name);
    chosen && (dimension.name != "held" || step <= (store.max_held)().min(args.held))
}

async fn run_plan(url: &str, plan: &Plan) -> Result<Vec<Outcome>, String> {
    let mut bench = Bench::connect(bench_store(url)).await.map_err(|error| format!("{error:#}"))?;
    let outcomes = bench.run(plan, &NoObserver).await.map_err(|error| error.to_string());
    bench.finish().await.map_err(|error| error.to_string())?;
    outcomes
}

fn series(store: &StoreServer, dimension: &Dimension, outcomes: &[(usize, Outcome)]) -> Vec<Series> {
    let points = |figure: fn(&Outcome) -> Option<f64>| -> Vec<(f64, f64)> {
        outcomes.iter().filter_map(|(step, outcome)| Some((*step as f64, figure(outcome)?))).collect()
    };
    let mut all = vec![Series { name: store.name.to_owned(), points: points(dimension.figure), thin: false }];
    if let Some(baseline) = dimension.baseline {
        let name = format!("{} baseline", store.name);
        all.push(Series { name, points: points(baseline), thin: true });
    }
    all.retain(|series| !series.points.is_empty());
    all
}

fn summary(outcome: &Outcome) -> String {
    let record = serde_json::to_value(outcome.json_record()).unwrap_or_default();
    let shown =
        ["ops_per_s", "p50_us", "p99_us", "ratio", "requests_per_op", "fairness", "rss_per_lock_bytes"];
    let figures =
        shown.iter().filter(|name| !record[**name].is_null()).map(|name| format!("{name} {}", record[*name]));
    figures.collect::<Vec<_>>().join("  ")
}

fn report(store: &StoreServer, dimension: &Dimension, step: usize, outcome: &Outcome) -> Value {
    json!({ "store": store.name, "dimension": dimension.name, "step": step, "outcome": outcome.detail() })
}
