//! The scenarios, one file each.

pub(crate) mod contended;
pub(crate) mod cycles;
pub(crate) mod handoff;
pub(crate) mod held;
pub(crate) mod takeover;

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::Result;
use distlock_core::bench::Baseline;

use crate::bench::BenchContext;
use crate::workload::{Operation, Tasks};

/// One cycle of the bare driver on its own name, followed by an unmeasured pause.
pub(crate) struct BaselineCycle {
    baseline: Arc<dyn Baseline>,
    name: String,
    pause: Duration,
}

impl Operation for BaselineCycle {
    async fn run_once(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.baseline.cycle(&self.name).await?;
        let took = begun.elapsed();
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        Ok(took)
    }
}

/// The baseline of a scenario, where the store has one.
pub(crate) fn baseline_tasks(
    context: &BenchContext<'_>,
    tasks: usize,
    pause: Duration,
) -> Option<Tasks<BaselineCycle>> {
    let baseline = context.baseline?;
    let cycle = |n| BaselineCycle {
        baseline: Arc::clone(baseline),
        name: context.name(format_args!("baseline/{n}")),
        pause,
    };
    Some(Tasks((0..tasks).map(cycle).collect()))
}
