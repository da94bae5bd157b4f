//! The scenarios, one file each.

pub(crate) mod contended;
pub(crate) mod cycles;
pub(crate) mod handover;
pub(crate) mod held;
pub(crate) mod takeover;

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::Result;
use distlock_core::bench::Baseline;

use crate::bench::Ground;
use crate::load::{Step, Tasks};

/// The driver's bare round trips on a name of its own, and a rest after them that is not measured.
pub(crate) struct RawCycle {
    raw: Arc<dyn Baseline>,
    name: String,
    rest: Duration,
}

impl Step for RawCycle {
    async fn step(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.raw.cycle(&self.name).await?;
        let took = begun.elapsed();
        if !self.rest.is_zero() {
            tokio::time::sleep(self.rest).await;
        }
        Ok(took)
    }
}

/// The raw driver's side of a scenario, where the store shows it.
pub(crate) fn raw_tasks(ground: &Ground<'_>, tasks: usize, rest: Duration) -> Option<Tasks<RawCycle>> {
    let raw = ground.raw?;
    let cycle = |n| RawCycle { raw: Arc::clone(raw), name: ground.name(format_args!("raw/{n}")), rest };
    Some(Tasks((0..tasks).map(cycle).collect()))
}
