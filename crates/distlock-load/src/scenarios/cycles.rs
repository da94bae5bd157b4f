//! `uncontended` and `throughput`: acquire and release without contention.

use std::time::{Duration, Instant};

use distlock_core::{Mutex, Result};

use super::baseline_tasks;
use crate::bench::BenchContext;
use crate::interleave::{SliceLengths, interleave};
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::workload::{Operation, Tasks};

/// Acquires and releases a lock.
pub(crate) struct Cycle(pub(crate) Mutex);

impl Operation for Cycle {
    async fn run_once(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.0.acquire().await?.release().await?;
        Ok(begun.elapsed())
    }
}

/// One task, one name.
pub(crate) async fn uncontended(context: &BenchContext<'_>, plan: &Plan) -> Result<Outcome> {
    let scenario = Scenario::Uncontended.as_str();
    context.observer.started(scenario);
    Ok(cycles(context, plan, scenario, 1).await?.with_latency_ratio())
}

/// Many tasks, each with its own name.
pub(crate) async fn throughput(context: &BenchContext<'_>, plan: &Plan) -> Result<Vec<Outcome>> {
    let scenario = Scenario::Throughput.as_str();
    let mut outcomes = Vec::new();
    for &tasks in &plan.tasks {
        context.observer.started(&format!("{scenario}, {tasks} tasks"));
        outcomes.push(cycles(context, plan, scenario, tasks).await?.with_rate_ratio());
    }
    Ok(outcomes)
}

async fn cycles(
    context: &BenchContext<'_>,
    plan: &Plan,
    scenario: &'static str,
    tasks: usize,
) -> Result<Outcome> {
    let cycle = |n| Cycle(context.locks.mutex(context.name(format_args!("cycle/{n}"))));
    let mut ours = Tasks((0..tasks).map(cycle).collect());
    let mut baseline = baseline_tasks(context, tasks, Duration::ZERO);
    let measurement =
        interleave(context, &mut ours, baseline.as_mut(), plan.run_time, SliceLengths::even(plan.run_time))
            .await?;
    Ok(Outcome::of(context, scenario, tasks, measurement))
}
