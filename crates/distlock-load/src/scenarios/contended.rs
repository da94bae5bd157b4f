//! `contended`: many tasks contend for one lock, hold it for 1 ms and pause for 5 ms. Without the pause the releaser would
//! acquire the lock again at once and starve the others, which rates alone do not show.
//!
//! The baseline is a single task that holds for the same time: the upper bound of the rate of any mutual exclusion.

use std::time::{Duration, Instant};

use distlock_core::{BootClock, Clock, Mutex, Result};

use super::baseline_tasks;
use crate::bench::BenchContext;
use crate::handoffs::{self, HoldLog};
use crate::interleave::{Measurement, SliceLengths, interleave};
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::worker::Contenders;
use crate::workload::{Operation, Tasks, Workload};

/// How long a contender holds the lock.
pub(crate) const HOLD: Duration = Duration::from_millis(1);
/// How long it pauses afterwards.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// One contending task. Measures the time until the grant.
pub(crate) struct Contender {
    pub(crate) mutex: Mutex,
    pub(crate) log: HoldLog,
}

impl Operation for Contender {
    async fn run_once(&mut self) -> Result<Duration> {
        let asked = BootClock.now();
        let guard = self.mutex.acquire().await?;
        let granted = BootClock.now();
        tokio::time::sleep(HOLD).await;
        self.log.record(guard.token(), asked, granted);
        guard.release().await?;
        tokio::time::sleep(PAUSE).await;
        Ok(granted.since(asked))
    }
}

pub(crate) async fn run(context: &BenchContext<'_>, plan: &Plan) -> Result<Vec<Outcome>> {
    let mut outcomes = vec![in_one_process(context, plan).await?];
    if plan.processes > 1 && context.store.is_shared() && context.store.worker.is_some() {
        outcomes.push(in_processes(context, plan).await?);
    } else if plan.processes > 1 {
        context.observer.note("contended runs in one process only: other processes cannot reach this store");
    }
    Ok(outcomes)
}

/// The contenders beside one task of the baseline.
async fn measure(context: &BenchContext<'_>, plan: &Plan, ours: &mut impl Workload) -> Result<Measurement> {
    let mut baseline = baseline_tasks(context, 1, HOLD);
    let lengths = SliceLengths::mostly_ours(plan.run_time);
    interleave(context, ours, baseline.as_mut(), plan.run_time, lengths).await
}

async fn in_one_process(context: &BenchContext<'_>, plan: &Plan) -> Result<Outcome> {
    let scenario = Scenario::Contended.as_str();
    let tasks = plan.contenders;
    context.observer.started(&format!("{scenario}, {tasks} tasks"));
    let name = context.name("contended");
    let log = HoldLog::default();
    let contender = || Contender { mutex: context.locks.mutex(name.as_str()), log: log.clone() };
    let mut ours = Tasks((0..tasks).map(|_| contender()).collect());
    let measurement = measure(context, plan, &mut ours).await?;
    Ok(Outcome::of(context, scenario, tasks, measurement).with_rate_ratio())
}

async fn in_processes(context: &BenchContext<'_>, plan: &Plan) -> Result<Outcome> {
    let processes = plan.processes.min(plan.contenders).max(1);
    let each = plan.contenders / processes;
    let tasks = each * processes;
    context.observer.started(&format!("contended, {tasks} tasks in {processes} processes"));
    let mut ours = Contenders::start(context, processes, each, &context.name("contended")).await?;
    let measurement = measure(context, plan, &mut ours).await;
    let handoffs = handoffs::latencies(ours.take_holds());
    let load = match &measurement {
        Ok(_) => waiting(context, plan, &mut ours).await?,
        Err(_) => None,
    };
    let start_note = ours.start_note();
    let failures = ours.stop().await;
    let mut outcome = Outcome::of(context, "contended-processes", tasks, measurement?).with_rate_ratio();
    outcome.processes = processes;
    outcome.notes.extend(start_note);
    if let Some((count, error)) = failures {
        let note = format!("{count} of {processes} processes did not end cleanly: {error:#}");
        context.observer.note(&note);
        outcome.notes.push(note);
    }
    outcome.handoff_p50_us = handoffs.quantile_us(0.5);
    if let Some((per_second, unit)) = load {
        outcome.waiting_per_s = Some(per_second);
        let note = format!("{processes} waiting processes: {per_second:.1} {unit}/s");
        context.observer.note(&note);
        outcome.notes.push(note);
    }
    Ok(outcome)
}

/// How long the processes wait for a lock that stays held. The second half is measured.
const WAITING: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(8)];

/// What processes send that only wait, per second, where the server counts it.
async fn waiting(
    context: &BenchContext<'_>,
    plan: &Plan,
    ours: &mut Contenders,
) -> Result<Option<(f64, &'static str)>> {
    if context.counter.mark().await?.is_none() {
        return Ok(None);
    }
    let length = plan.run_time.clamp(WAITING[0], WAITING[1]);
    let guard = context.locks.mutex(context.name("contended")).acquire().await?;
    let measured = async {
        tokio::time::sleep(length / 2).await;
        let (mark, statements) = (context.counter.mark().await?, context.counter.statements().await?);
        let begun = Instant::now();
        tokio::time::sleep(length / 2).await;
        let elapsed = begun.elapsed().as_secs_f64();
        let now = context.counter.statements().await?;
        let requests = context.counter.since(mark).await?;
        guard.release().await?;
        let statements = now.zip(statements).map(|(now, before)| now.saturating_sub(before));
        Ok(match (statements, requests) {
            (Some(statements), _) => Some((statements as f64 / elapsed, "statements")),
            (None, Some(requests)) => Some((requests as f64 / elapsed, "requests")),
            (None, None) => None,
        })
    };
    // Each acquires once after the release.
    let (load, slice) = tokio::join!(measured, ours.slice(length));
    slice?;
    load
}
