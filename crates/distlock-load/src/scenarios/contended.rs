//! `contended`: many want one lock, hold it for a millisecond and stay away for five. Without the pause, whoever
//! releases would take it again and the others would starve unseen.
//!
//! The raw driver's side is one lone task that holds as long: the rate that nobody can exceed who takes turns.

use std::time::{Duration, Instant};

use distlock_core::{Mutex, Result};

use super::raw_tasks;
use crate::bench::Ground;
use crate::interleave::{Rhythm, interleave};
use crate::load::{Step, Tasks};
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::worker::Contenders;

/// How long a contender holds.
pub(crate) const HOLD: Duration = Duration::from_millis(1);
/// How long it stays away.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// One of those who want the lock. Measured is the time until it has it.
pub(crate) struct Contender(pub(crate) Mutex);

impl Step for Contender {
    async fn step(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        let guard = self.0.acquire().await?;
        let waited = begun.elapsed();
        tokio::time::sleep(HOLD).await;
        guard.release().await?;
        tokio::time::sleep(PAUSE).await;
        Ok(waited)
    }
}

pub(crate) async fn run(ground: &Ground<'_>, plan: &Plan) -> Result<Vec<Outcome>> {
    let mut outcomes = vec![in_one_process(ground, plan).await?];
    if plan.processes > 1 && ground.target.is_shared() && ground.target.worker.is_some() {
        outcomes.push(in_processes(ground, plan).await?);
    } else if plan.processes > 1 {
        ground.observer.note("contended runs in one process only: no other process sees these locks");
    }
    Ok(outcomes)
}

async fn in_one_process(ground: &Ground<'_>, plan: &Plan) -> Result<Outcome> {
    let scenario = Scenario::Contended.as_str();
    let tasks = plan.contenders;
    ground.observer.begins(&format!("{scenario}, {tasks} tasks"));
    let name = ground.name("contended");
    let mut ours = Tasks((0..tasks).map(|_| Contender(ground.locks.mutex(name.as_str()))).collect());
    let mut raw = raw_tasks(ground, 1, HOLD);
    let pair = interleave(ground, &mut ours, raw.as_mut(), plan.each, Rhythm::mostly_ours(plan.each)).await?;
    Ok(Outcome::of(ground, scenario, tasks, pair).ratio_of_rates())
}

async fn in_processes(ground: &Ground<'_>, plan: &Plan) -> Result<Outcome> {
    let processes = plan.processes.min(plan.contenders).max(1);
    let each = plan.contenders / processes;
    let tasks = each * processes;
    ground.observer.begins(&format!("contended, {tasks} tasks in {processes} processes"));
    let mut ours = Contenders::start(ground, processes, each, &ground.name("contended")).await?;
    let mut raw = raw_tasks(ground, 1, HOLD);
    let pair = interleave(ground, &mut ours, raw.as_mut(), plan.each, Rhythm::mostly_ours(plan.each)).await;
    ours.stop().await?;
    let mut outcome = Outcome::of(ground, "contended-processes", tasks, pair?).ratio_of_rates();
    outcome.processes = processes;
    Ok(outcome)
}
