//! All scenarios on every store.

use distlock_load::{Bench, Outcome, Plan, Scenario, Silent, render};
use serde_json::json;

use crate::{Choice, machine, target};

pub(crate) async fn run(choice: &Choice) -> Result<(), String> {
    for contestant in choice.contestants() {
        let started = contestant.start();
        let busy = machine::load();
        println!("\n{} ({}), {}", contestant.name, started.version, contestant.setup);
        let mut plan =
            Plan { each: choice.each(), held: choice.held.min(contestant.most_held), ..Plan::default() };
        let chosen = |scenario: &Scenario| {
            choice.scenario.is_empty() || choice.scenario.iter().any(|name| name == scenario.as_str())
        };
        plan.scenarios.retain(chosen);
        let (outcomes, failure) = one(&started.url, &plan).await?;
        print!("{}", render::table(&outcomes, str::to_owned));
        for note in outcomes.iter().flat_map(|outcome| &outcome.notes) {
            println!("  {note}");
        }
        if let Some(failure) = failure {
            println!("  FAILED: {failure}");
        }
        let report = json!({
            "store": contestant.name,
            "server": started.version,
            "setup": contestant.setup,
            "machine": machine::describe(),
            "load_average_before": busy,
            "seconds_each": choice.seconds,
            "outcomes": outcomes.iter().map(Outcome::detail).collect::<Vec<_>>(),
        });
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        choice.write(&format!("{}.json", contestant.name), &(text + "\n"))?;
        choice.write(&format!("{}.svg", contestant.name), &render::distributions(&outcomes))?;
    }
    Ok(())
}

/// What was measured until the first failure, and the failure.
async fn one(url: &str, plan: &Plan) -> Result<(Vec<Outcome>, Option<String>), String> {
    let mut bench = Bench::prepare(target(url)).await.map_err(|error| error.to_string())?;
    let mut outcomes = Vec::new();
    let mut failure = None;
    for scenario in &plan.scenarios {
        let one = Plan { scenarios: vec![*scenario], ..plan.clone() };
        match bench.run(&one, &Silent).await {
            Ok(mut some) => outcomes.append(&mut some),
            Err(error) => failure = Some(format!("{}: {error}", scenario.as_str())),
        }
    }
    if let Err(error) = bench.finish().await {
        failure.get_or_insert(error.to_string());
    }
    Ok((outcomes, failure))
}
