//! Runs all scenarios on every store.

use std::process::Command;
use std::time::Duration;

use distlock_load::{Bench, NoObserver, Outcome, Plan, Scenario, render};
use serde_json::json;

use crate::servers::StoreServer;
use crate::{RunArgs, bench_store, machine};

/// The measurement of held locks is two thirds of a run: three renewals of each, at an expiry of nine seconds.
const HELD_AT_LEAST: Duration = Duration::from_millis(13_500);

/// Runs each store in its own process: memory that one store freed would be reused by the next and not be counted there.
pub(crate) async fn run(args: &RunArgs) -> Result<(), String> {
    let stores: Vec<&StoreServer> = args.stores().collect();
    match stores.as_slice() {
        [store] => run_one(args, store).await,
        several => several.iter().try_for_each(|store| run_in_process(args, store)),
    }
}

fn run_in_process(args: &RunArgs, store: &StoreServer) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["stores", "--only", store.name]);
    command.arg(format!("--seconds={}", args.seconds)).arg(format!("--held={}", args.held));
    command.args(args.scenario.iter().map(|scenario| format!("--scenario={scenario}")));
    if let Some(out) = &args.out {
        command.arg("--out").arg(out);
    }
    let status = command.status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", store.name)) }
}

async fn run_one(args: &RunArgs, store: &StoreServer) -> Result<(), String> {
    let started = store.start();
    let load_before = machine::load();
    println!("\n{} ({}), {}", store.name, started.version, store.setup);
    let (mut outcomes, failure) = measure(&started.url, &plans(args, store)).await?;
    for outcome in &mut outcomes {
        // The address of a server that has ended is of no use to a reader.
        outcome.store = store.name.to_owned();
    }
    print!("{}", render::table(&outcomes, str::to_owned));
    for note in outcomes.iter().flat_map(|outcome| &outcome.notes) {
        println!("  {note}");
    }
    if let Some(failure) = &failure {
        println!("  FAILED: {failure}");
    }
    let report = json!({
        "store": store.name,
        "server": started.version,
        "setup": store.setup,
        "date": machine::date(),
        "machine": machine::describe(),
        "load_average_before": load_before,
        "seconds_each": args.seconds,
        "failure": failure,
        "outcomes": outcomes.iter().map(Outcome::detail).collect::<Vec<_>>(),
    });
    let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
    args.write(&format!("{}.json", store.name), &(text + "\n"))?;
    args.write(&format!("{}.svg", store.name), &render::distributions(&outcomes))
}

/// One plan per scenario; `contended` twice, with 64 and 4 contenders, each in its own process.
fn plans(args: &RunArgs, store: &StoreServer) -> Vec<Plan> {
    let held = args.held.min((store.max_held)());
    let all = Plan { run_time: args.run_time(), held, ..Plan::default() };
    let mut chosen: Vec<Scenario> = Scenario::ALL
        .into_iter()
        .filter(|scenario| {
            args.scenario.is_empty() || args.scenario.iter().any(|name| name == scenario.as_str())
        })
        .collect();
    // Held locks first: later they would reuse memory that other scenarios freed, and seem to need less than they do.
    chosen.sort_by_key(|scenario| *scenario != Scenario::Held);
    chosen
        .into_iter()
        .flat_map(|scenario| {
            let one = Plan { scenarios: vec![scenario], ..all.clone() };
            match scenario {
                Scenario::Contended => {
                    let in_processes = |contenders| Plan { contenders, processes: contenders, ..one.clone() };
                    // Six times as long with 64: on the slowest store each acquired only ten times in twice the time, so one
                    // acquisition more or less changed most / fewest by 0.2.
                    vec![Plan { run_time: one.run_time * 6, ..in_processes(64) }, in_processes(4)]
                }
                Scenario::Held => vec![Plan { run_time: one.run_time.max(HELD_AT_LEAST), ..one }],
                _ => vec![one],
            }
        })
        .collect()
}

/// The outcomes and the first failure. A failed scenario does not stop the others.
async fn measure(url: &str, plans: &[Plan]) -> Result<(Vec<Outcome>, Option<String>), String> {
    let mut bench = Bench::connect(bench_store(url)).await.map_err(|error| format!("{error:#}"))?;
    let mut outcomes = Vec::new();
    let mut failure = None;
    for plan in plans {
        if let Err(error) = bench.run(plan, &NoObserver).await.map(|mut some| outcomes.append(&mut some)) {
            let scenario = plan.scenarios.first().map_or("?", |scenario| scenario.as_str());
            failure.get_or_insert(format!("{scenario}: {error:#}"));
        }
    }
    if let Err(error) = bench.finish().await {
        failure.get_or_insert(format!("{error:#}"));
    }
    Ok((outcomes, failure))
}
