//! All scenarios on every store.

use std::process::Command;
use std::time::Duration;

use distlock_load::{Bench, Outcome, Plan, Scenario, Silent, render};
use serde_json::json;

use crate::servers::Contestant;
use crate::{Choice, machine, target};

/// Held locks are watched for two thirds of a run: three extensions of each, at an expiry of nine seconds.
const HELD_AT_LEAST: Duration = Duration::from_millis(13_500);

/// Each store has a process of its own: memory that one store used and gave back would be another one's for nothing.
pub(crate) async fn run(choice: &Choice) -> Result<(), String> {
    let contestants: Vec<&Contestant> = choice.contestants().collect();
    match contestants.as_slice() {
        [contestant] => run_one(choice, contestant).await,
        several => several.iter().try_for_each(|contestant| run_apart(choice, contestant)),
    }
}

fn run_apart(choice: &Choice, contestant: &Contestant) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["stores", "--only", contestant.name]);
    command.arg(format!("--seconds={}", choice.seconds)).arg(format!("--held={}", choice.held));
    command.args(choice.scenario.iter().map(|scenario| format!("--scenario={scenario}")));
    if let Some(out) = &choice.out {
        command.arg("--out").arg(out);
    }
    let status = command.status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", contestant.name)) }
}

async fn run_one(choice: &Choice, contestant: &Contestant) -> Result<(), String> {
    let started = contestant.start();
    let busy = machine::load();
    println!("\n{} ({}), {}", contestant.name, started.version, contestant.setup);
    let (mut outcomes, failure) = measure(&started.url, &plans(choice, contestant)).await?;
    for outcome in &mut outcomes {
        // Where a server was that is gone by now is of no use to a reader.
        outcome.store = contestant.name.to_owned();
    }
    print!("{}", render::table(&outcomes, str::to_owned));
    for note in outcomes.iter().flat_map(|outcome| &outcome.notes) {
        println!("  {note}");
    }
    if let Some(failure) = &failure {
        println!("  FAILED: {failure}");
    }
    let report = json!({
        "store": contestant.name,
        "server": started.version,
        "setup": contestant.setup,
        "date": machine::date(),
        "machine": machine::describe(),
        "load_average_before": busy,
        "seconds_each": choice.seconds,
        "failure": failure,
        "outcomes": outcomes.iter().map(Outcome::detail).collect::<Vec<_>>(),
    });
    let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
    choice.write(&format!("{}.json", contestant.name), &(text + "\n"))?;
    choice.write(&format!("{}.svg", contestant.name), &render::distributions(&outcomes))
}

/// One plan for each scenario; `contended` also with few, every contender in a process of its own.
fn plans(choice: &Choice, contestant: &Contestant) -> Vec<Plan> {
    let held = choice.held.min((contestant.most_held)());
    let all = Plan { each: choice.each(), held, ..Plan::default() };
    let mut chosen: Vec<Scenario> = Scenario::ALL
        .into_iter()
        .filter(|scenario| {
            choice.scenario.is_empty() || choice.scenario.iter().any(|name| name == scenario.as_str())
        })
        .collect();
    // Held locks first: later they would be put into memory that other scenarios had used and given back, and seem to need
    // less than they do.
    chosen.sort_by_key(|scenario| *scenario != Scenario::Held);
    chosen
        .into_iter()
        .flat_map(|scenario| {
            let one = Plan { scenarios: vec![scenario], ..all.clone() };
            match scenario {
                Scenario::Contended => {
                    let apart = |contenders| Plan { contenders, processes: contenders, ..one.clone() };
                    // Six times as long with many: on the slowest store each of them had the lock ten times in twice
                    // the time, and one turn more or less made 1.2 of most / fewest.
                    vec![Plan { each: one.each * 6, ..apart(64) }, apart(4)]
                }
                Scenario::Held => vec![Plan { each: one.each.max(HELD_AT_LEAST), ..one }],
                _ => vec![one],
            }
        })
        .collect()
}

/// What was measured, and the first failure. One scenario that fails does not take the others with it.
async fn measure(url: &str, plans: &[Plan]) -> Result<(Vec<Outcome>, Option<String>), String> {
    let mut bench = Bench::prepare(target(url)).await.map_err(|error| format!("{error:#}"))?;
    let mut outcomes = Vec::new();
    let mut failure = None;
    for plan in plans {
        if let Err(error) = bench.run(plan, &Silent).await.map(|mut some| outcomes.append(&mut some)) {
            let scenario = plan.scenarios.first().map_or("?", |scenario| scenario.as_str());
            failure.get_or_insert(format!("{scenario}: {error:#}"));
        }
    }
    if let Err(error) = bench.finish().await {
        failure.get_or_insert(format!("{error:#}"));
    }
    Ok((outcomes, failure))
}
