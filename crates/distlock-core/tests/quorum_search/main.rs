//! A randomised search for schedules with two conflicting holders, or with a token that does not rise. Every schedule
//! depends on its seed alone. A failure prints the seed, and `DISTLOCK_SEED=n` runs that one with a trace.
//! `DISTLOCK_SCHEDULES=n` searches longer.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::panic)] // in the helpers, which clippy does not take for tests

mod schedule;
mod simple_quorum;
mod world;

use std::sync::Arc;

use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::LeaseStore;
use distlock_core::{Kind, VirtualClock};
use schedule::{Losses, Plan, run};
use simple_quorum::{Flaw, SimpleQuorum};
use world::World;

fn real(world: &World) -> Arc<dyn LeaseStore> {
    let options = QuorumOptions::new().clock(Arc::new(VirtualClock::new()));
    Arc::new(Quorum::with_options(world.stores(), options).unwrap())
}

/// Mutexes, no more losses than the quorum tolerates, and checks of the nodes' records.
fn plan(build: schedule::Build) -> Plan {
    Plan { build, losses: Losses::Bearable, kind: Kind::Mutex, strict: true, leaks: false }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Fewer in builds without optimisation, so that an ordinary test run stays short.
fn schedules(optimised: u64) -> u64 {
    let default = if cfg!(debug_assertions) { optimised / 20 } else { optimised };
    number("DISTLOCK_SCHEDULES").unwrap_or(default)
}

/// The first seed whose schedule violates a guarantee.
fn search(plan: Plan, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| run(seed, plan).violation.map(|violation| (seed, violation)))
}

fn must_hold(plan: Plan, count: u64) {
    if let Some(seed) = number("DISTLOCK_SEED") {
        let verdict = run(seed, plan);
        println!("{}", verdict.log.join("\n"));
        assert_eq!(verdict.violation, None, "seed {seed}");
        return;
    }
    let (mut grants, mut void) = (0, 0);
    for seed in 0..count {
        let verdict = run(seed, plan);
        grants += verdict.grants;
        void += u64::from(verdict.void);
        if let Some(violation) = verdict.violation {
            let tail = verdict.log.len().saturating_sub(60);
            panic!("seed {seed}: {violation}\n{}", verdict.log[tail..].join("\n"));
        }
    }
    println!(
        "{count} schedules, {grants} grants, {void} schedules cut short because more was lost than tolerated"
    );
    assert!(grants > 3 * count, "too little happens: {grants} grants");
    assert!(void * 20 < count, "too many schedules were cut short: {void}");
}

#[test]
fn no_two_holders_and_rising_tokens_for_mutexes() {
    must_hold(plan(real), schedules(3_000));
}

#[test]
fn no_writer_beside_another_holder_and_rising_tokens_for_reader_writer_locks() {
    must_hold(Plan { kind: Kind::RwLock, ..plan(real) }, schedules(2_000));
}

#[test]
fn nothing_is_left_behind_after_all_releases_when_every_node_is_back() {
    let plan = Plan { leaks: true, ..plan(real) };
    must_hold(plan, schedules(1_000));
}

#[test]
fn a_seed_gives_the_same_schedule_every_time() {
    let plan = plan(real);
    for seed in [3, 1_000_003] {
        assert_eq!(run(seed, plan).log, run(seed, plan).log);
    }
}

fn simple_quorum(world: &World, flaw: Flaw) -> Arc<dyn LeaseStore> {
    Arc::new(SimpleQuorum::new(world.stores(), flaw))
}

#[test]
fn the_search_finds_no_flaw_in_a_sound_quorum() {
    let build = |world: &World| simple_quorum(world, Flaw::None);
    must_hold(plan(build), schedules(1_000));
}

#[test]
fn the_search_finds_every_flaw() {
    let flaws: [(Flaw, schedule::Build); 5] = [
        (Flaw::MajorityOfAnswers, |world| simple_quorum(world, Flaw::MajorityOfAnswers)),
        (Flaw::RenewOverGranters, |world| simple_quorum(world, Flaw::RenewOverGranters)),
        (Flaw::NoWriteBack, |world| simple_quorum(world, Flaw::NoWriteBack)),
        (Flaw::FirstToken, |world| simple_quorum(world, Flaw::FirstToken)),
        (Flaw::LateUndo, |world| simple_quorum(world, Flaw::LateUndo)),
    ];
    for (flaw, build) in flaws {
        let found = search(Plan { strict: false, ..plan(build) }, 0..1_000);
        println!("{flaw:?}: {found:?}");
        assert!(found.is_some(), "{flaw:?} was not found");
    }
}

/// The limit of the guarantee: see the documentation of `Quorum`.
#[test]
fn not_guaranteed_if_more_nodes_forget_than_tolerated_there_may_be_two_holders() {
    let plan = Plan { losses: Losses::Unbounded, strict: false, ..plan(real) };
    let found = search(plan, 0..1_000);
    println!("{found:?}");
    assert!(found.is_some());
}
