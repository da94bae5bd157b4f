//! `handover`: one holds, one waits on another connection, and the releaser stays out. Measured is the time from the
//! call of `release` until the waiter has the lock.

use std::time::{Duration, Instant};

use distlock_core::{Locks, Options, Result};

use super::raw_tasks;
use crate::bench::Ground;
use crate::interleave::{Rhythm, interleave};
use crate::load::{Load, Tally, broken};
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::usage;

struct Handovers {
    /// Two engines, each with its connection: to the store they are two processes.
    engines: [Locks; 2],
    name: String,
    settle: Duration,
    /// Who holds next.
    turn: usize,
}

impl Handovers {
    async fn one(&mut self) -> Result<Duration> {
        let (holder, waiter) = (&self.engines[self.turn], &self.engines[1 - self.turn]);
        self.turn = 1 - self.turn;
        let held = holder.mutex(self.name.as_str()).acquire().await?;
        let wanted = waiter.mutex(self.name.as_str());
        let waiting = tokio::spawn(async move {
            let guard = wanted.acquire().await?;
            let got = Instant::now();
            guard.release().await?;
            Ok::<_, distlock_core::Error>(got)
        });
        tokio::time::sleep(self.settle).await;
        let released = Instant::now();
        held.release().await?;
        let got = waiting.await.map_err(broken)??;
        Ok(got.saturating_duration_since(released))
    }
}

impl Load for Handovers {
    async fn slice(&mut self, length: Duration) -> Result<Tally> {
        let (begun, cpu) = (Instant::now(), usage::cpu_time());
        let mut tally = Tally { counts: vec![0], ..Tally::default() };
        while begun.elapsed() < length {
            tally.latencies.record(self.one().await?);
            tally.counts[0] += 1;
        }
        tally.elapsed = begun.elapsed();
        tally.cpu = usage::cpu_time().saturating_sub(cpu);
        Ok(tally)
    }
}

pub(crate) async fn run(ground: &Ground<'_>, plan: &Plan) -> Result<Outcome> {
    let scenario = Scenario::Handover.as_str();
    ground.observer.begins(scenario);
    let settle = ground.settle_time().await?;
    let other = ground.target.connect(Options::default()).await?;
    let mut ours = Handovers {
        engines: [ground.locks.clone(), other.clone()],
        name: ground.name("handover"),
        settle,
        turn: 0,
    };
    // The first waiter of an engine opens its subscription; that is once in a process's life, not once in a hand-over.
    for _ in 0..4 {
        ours.one().await?;
    }
    let mut raw = raw_tasks(ground, 1, Duration::ZERO);
    let rhythm = Rhythm { ours: (plan.each / 6).max(settle * 4), raw: plan.each / 20 };
    let pair = interleave(ground, &mut ours, raw.as_mut(), plan.each, rhythm).await;
    other.shutdown().await?;
    let mut outcome = Outcome::of(ground, scenario, 2, pair?).ratio_of_times();
    // The rate says only how long the benchmark waited for the waiter to settle.
    outcome.ops_per_s = None;
    Ok(outcome)
}
