//! A seeded simulation of the engine and the quorum: many clients over memory stores, in virtual time, with a schedule
//! and faults that come from the seed alone. Every run is held against the rules in `rules`.
//!
//! A seed that fails replays with the command that the failure prints. `scripts/soak` runs seeds without end.

#![allow(unreachable_pub, missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod check;
mod client;
mod ending;
mod hold;
mod link;
mod plan;
mod planted;
mod rules;
mod run;
mod stage;
mod trace;
mod world;

use plan::Mode;
use planted::Defect;
use run::run;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

fn mode() -> Mode {
    let defect = std::env::var("DISTLOCK_DEFECT").ok();
    let defect = defect.map(|name| *Defect::ALL.iter().find(|defect| format!("{defect:?}") == name).unwrap());
    Mode {
        defect,
        no_panics: std::env::var("DISTLOCK_NO_PANICS").is_ok(),
        only: rules::named(std::env::var("DISTLOCK_RULE").ok()),
    }
}

fn replay_command(seed: u64) -> String {
    format!("DISTLOCK_SEED={seed} cargo test -p distlock-core --test simulation replay -- --nocapture")
}

/// Runs one seed and shows everything that happened.
#[test]
fn replay() {
    let Some(seed) = number("DISTLOCK_SEED") else { return };
    let outcome = run(seed, mode(), true);
    println!("{}", outcome.trace.join("\n"));
    println!("seed {seed}: {} grants, {} steps", outcome.grants, outcome.steps);
    assert!(outcome.violation.is_none(), "seed {seed}: {:?}", outcome.violation);
}

/// The same seed gives the same run, to the last message.
#[test]
fn a_seed_gives_the_same_run_every_time() {
    let first = number("DISTLOCK_FIRST").unwrap_or(0);
    for seed in first..first + number("DISTLOCK_COUNT").unwrap_or(20) {
        let (one, two) = (run(seed, mode(), true), run(seed, mode(), true));
        let differ = one.trace.iter().zip(&two.trace).position(|(one, two)| one != two);
        if let Some(at) = differ {
            let from = at.saturating_sub(5);
            panic!("seed {seed}, line {at}:\n{:#?}\n{:#?}", &one.trace[from..=at], &two.trace[from..=at]);
        }
        assert_eq!(one.trace.len(), two.trace.len(), "seed {seed}");
    }
}

/// Many seeds, every failure counted by its rule: for whoever works on the simulation.
#[test]
fn survey() {
    let Some(count) = number("DISTLOCK_SURVEY") else { return };
    let first = number("DISTLOCK_FIRST").unwrap_or(0);
    let begun = std::time::Instant::now();
    let (mut failed, mut grants, mut steps) = (std::collections::BTreeMap::<_, Vec<u64>>::new(), 0, 0);
    for seed in first..first + count {
        let outcome = run(seed, mode(), false);
        grants += outcome.grants;
        steps += outcome.steps;
        if number("DISTLOCK_SLOW").is_some_and(|most| most < outcome.steps) {
            println!("{seed}: {} steps, {} grants", outcome.steps, outcome.grants);
        }
        if let Some(violation) = outcome.violation {
            let seeds = failed.entry(violation.rule).or_default();
            if seeds.len() < 6 {
                println!("{seed}: {}: {}", violation.rule, violation.text);
            }
            seeds.push(seed);
        }
    }
    for (rule, seeds) in &failed {
        println!("{:>5} {rule}: {:?}", seeds.len(), &seeds[..seeds.len().min(12)]);
    }
    let minute = 60.0 * count as f64 / begun.elapsed().as_secs_f64();
    println!("{count} seeds, {minute:.0} a minute, {grants} grants, {steps} steps");
}
