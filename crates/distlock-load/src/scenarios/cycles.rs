//! `uncontended` and `throughput`: acquire and release, with nobody in the way.

use std::time::{Duration, Instant};

use distlock_core::{Mutex, Result};

use super::raw_tasks;
use crate::bench::Ground;
use crate::interleave::{Rhythm, interleave};
use crate::load::{Step, Tasks};
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};

/// Takes the lock and gives it back.
pub(crate) struct Cycle(pub(crate) Mutex);

impl Step for Cycle {
    async fn step(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.0.acquire().await?.release().await?;
        Ok(begun.elapsed())
    }
}

/// One task, one name.
pub(crate) async fn uncontended(ground: &Ground<'_>, plan: &Plan) -> Result<Outcome> {
    let scenario = Scenario::Uncontended.as_str();
    ground.observer.begins(scenario);
    Ok(cycles(ground, plan, scenario, 1).await?.ratio_of_times())
}

/// Many tasks, each with a name of its own.
pub(crate) async fn throughput(ground: &Ground<'_>, plan: &Plan) -> Result<Vec<Outcome>> {
    let scenario = Scenario::Throughput.as_str();
    let mut outcomes = Vec::new();
    for &tasks in &plan.tasks {
        ground.observer.begins(&format!("{scenario}, {tasks} tasks"));
        outcomes.push(cycles(ground, plan, scenario, tasks).await?.ratio_of_rates());
    }
    Ok(outcomes)
}

async fn cycles(ground: &Ground<'_>, plan: &Plan, scenario: &'static str, tasks: usize) -> Result<Outcome> {
    let cycle = |n| Cycle(ground.locks.mutex(ground.name(format_args!("cycle/{n}"))));
    let mut ours = Tasks((0..tasks).map(cycle).collect());
    let mut raw = raw_tasks(ground, tasks, Duration::ZERO);
    let pair = interleave(ground, &mut ours, raw.as_mut(), plan.each, Rhythm::even(plan.each)).await?;
    Ok(Outcome::of(ground, scenario, tasks, pair))
}
