//! A seeded simulation of the engine and the quorum: many clients over memory stores, in virtual time, with a schedule
//! and faults that depend on the seed alone. Every run is checked against the rules in `rules`.
//!
//! A seed that fails replays with the command that the failure prints. `scripts/soak` runs seeds without end.

#![allow(unreachable_pub, missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client;
mod ending;
mod excuses;
mod hold;
mod link;
mod losses;
mod observations;
mod plan;
mod planted;
mod request_fault;
mod rules;
mod run;
mod runtimes;
mod trace;
mod trace_format;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use plan::{Mode, Theme};
use planted::Defect;
use run::run;
use trace::Violation;

/// How many seeds all shards run: few without optimisation, so that an ordinary test run stays short.
/// `scripts/test` runs thousands, optimised.
const SEEDS: u64 = 160;
const SHARDS: u64 = 8;
/// How many seeds it may take to find a planted defect.
const PLANTED: u64 = 300;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// The mode of a run from the environment, for replays and for work on the simulation.
fn mode() -> Mode {
    let defect = std::env::var("DISTLOCK_DEFECT").ok();
    let defect = defect.map(|name| *Defect::ALL.iter().find(|defect| format!("{defect:?}") == name).unwrap());
    let only = rules::named(std::env::var("DISTLOCK_RULE").ok());
    let theme = defect.map(Defect::theme).or(theme());
    Mode { defect, theme, no_panics: std::env::var("DISTLOCK_NO_PANICS").is_ok(), only }
}

fn theme() -> Option<Theme> {
    let name = std::env::var("DISTLOCK_THEME").ok()?;
    let all = [
        Theme::Anything,
        Theme::Calm,
        Theme::LatePushes,
        Theme::Breaks,
        Theme::Silence,
        Theme::Visits,
        Theme::Counter,
    ];
    all.into_iter().find(|theme| format!("{theme:?}") == name)
}

fn fail(seed: u64, violation: &Violation) {
    panic!(
        "seed {seed}: {}: {}\nreplay it with\n    DISTLOCK_SEED={seed} cargo test --profile simulation \
         -p distlock-core --test simulation replay -- --nocapture",
        violation.rule, violation.text
    );
}

fn must_hold(seed: u64) {
    if let Some(violation) = run(seed, Mode::default(), false).violation {
        fail(seed, &violation);
    }
}

fn per_minute(count: u64, begun: std::time::Instant) -> f64 {
    count as f64 * 60.0 / begun.elapsed().as_secs_f64()
}

fn shard(number_of_shard: u64) {
    let (count, first) = (number("DISTLOCK_SEEDS").unwrap_or(SEEDS), number("DISTLOCK_FIRST").unwrap_or(0));
    let begun = std::time::Instant::now();
    let seeds = (first..first + count).filter(|seed| seed % SHARDS == number_of_shard);
    let count = seeds.map(must_hold).count() as u64;
    println!("{count} seeds, {:.0} a minute", per_minute(count, begun));
}

macro_rules! shards {
    ($($name:ident: $number:expr;)*) => {
        $(
            #[test]
            fn $name() {
                shard($number);
            }
        )*
    };
}

shards! {
    no_seed_breaks_a_rule_0: 0;
    no_seed_breaks_a_rule_1: 1;
    no_seed_breaks_a_rule_2: 2;
    no_seed_breaks_a_rule_3: 3;
    no_seed_breaks_a_rule_4: 4;
    no_seed_breaks_a_rule_5: 5;
    no_seed_breaks_a_rule_6: 6;
    no_seed_breaks_a_rule_7: 7;
}

/// Runs one seed and prints its trace.
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

/// A simulation that finds no planted defect proves nothing.
#[test]
fn every_planted_defect_is_found() {
    let most = number("DISTLOCK_PLANTED").unwrap_or(PLANTED);
    let mut missed = Vec::new();
    for defect in Defect::ALL {
        let mode = Mode { defect: Some(defect), theme: Some(defect.theme()), ..Mode::default() };
        let found =
            (0..most).find_map(|seed| run(seed, mode, false).violation.map(|violation| (seed, violation)));
        match found {
            Some((seed, violation)) => {
                println!("{defect:?}: seed {seed}: {}: {}", violation.rule, violation.text)
            }
            None => missed.push(defect),
        }
    }
    assert!(missed.is_empty(), "not found within {most} seeds: {missed:?}");
}

/// The tokens of a name rise although the counter of its server is lost, the server restarts empty, or a replica takes over that
/// has not all of it.
#[test]
fn tokens_rise_whatever_happens_to_the_counter_of_a_server() {
    let count = number("DISTLOCK_SEEDS").unwrap_or(SEEDS).div_ceil(4);
    for seed in 0..count {
        let mode = Mode { theme: Some(Theme::Counter), ..Mode::default() };
        if let Some(violation) = run(seed, mode, false).violation {
            panic!(
                "seed {seed}: {}: {}\nreplay it with DISTLOCK_THEME=Counter DISTLOCK_SEED={seed}",
                violation.rule, violation.text
            );
        }
    }
}

/// Seeds from `DISTLOCK_FIRST` on until one fails or `DISTLOCK_SOAK` minutes are over; zero is without end.
/// `scripts/soak` runs it.
#[test]
fn soak() {
    let Some(minutes) = number("DISTLOCK_SOAK") else { return };
    let first = number("DISTLOCK_FIRST").unwrap_or(0);
    let (begun, next) = (std::time::Instant::now(), AtomicU64::new(first));
    let over = || minutes > 0 && begun.elapsed().as_secs() >= 60 * minutes;
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !over() && failed.lock().unwrap().is_empty() {
                    let seed = next.fetch_add(1, SeqCst);
                    if let Some(violation) = run(seed, Mode::default(), false).violation {
                        failed.lock().unwrap().push((seed, violation));
                    }
                    let count = seed - first + 1;
                    if count.is_multiple_of(1_000) {
                        println!("{count} seeds, {:.0} a minute", per_minute(count, begun));
                    }
                }
            });
        }
    });
    let count = next.load(SeqCst) - first;
    println!("{count} seeds from {first} on, {:.0} a minute", per_minute(count, begun));
    if let Some((seed, violation)) = failed.into_inner().unwrap().first() {
        fail(*seed, violation);
    }
}

/// Runs many seeds and counts the failures by rule, for work on the simulation.
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
    println!("{count} seeds, {:.0} a minute, {grants} grants, {steps} steps", per_minute(count, begun));
}
