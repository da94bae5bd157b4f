//! `takeover`: the process of the holder gets SIGKILL while another client waits. Measures the time from the expiry until the
//! grant; on a store that frees it sooner, the time from the kill.

use std::time::Duration;

use distlock_core::{BootClock, Clock, Options, Result};

use super::baseline_tasks;
use crate::bench::BenchContext;
use crate::interleave::Measurement;
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::worker::HolderProcess;
use crate::workload::{Tally, Workload, task_failed};

/// `None` if other processes cannot reach the store.
pub(crate) async fn run(context: &BenchContext<'_>, plan: &Plan) -> Result<Option<Outcome>> {
    let scenario = Scenario::Takeover.as_str();
    if !context.store.is_shared() || context.store.worker.is_none() {
        context.observer.note("takeover is left out: other processes cannot reach this store");
        return Ok(None);
    }
    context.observer.started(scenario);
    let settle = context.settle_time().await?;
    let expiry = plan.takeover_expiry.max(settle * 6);
    let locks = context.store.connect(Options::new().expiry(expiry)?).await?;
    let mut baseline = baseline_tasks(context, 1, Duration::ZERO);
    let mut measurement = Measurement { ours: Tally { counts: vec![0], ..Tally::default() }, baseline: None };
    let begun = BootClock.now();
    let mut round = 0;
    while BootClock.now().since(begun) < plan.run_time || round < 2 {
        let name = context.name(format_args!("takeover/{round}"));
        let past = take_over(context, &locks, &name, expiry, settle).await?;
        // The first round opens the subscription and is not counted.
        if round > 0 {
            measurement.ours.latencies.record(past);
            measurement.ours.counts[0] += 1;
        }
        round += 1;
        if let Some(baseline) = &mut baseline {
            measurement
                .baseline
                .get_or_insert_default()
                .add(&baseline.slice(Duration::from_millis(50)).await?);
        }
        context.progress(BootClock.now().since(begun), plan.run_time);
    }
    locks.shutdown().await?;
    let mut outcome = Outcome::of(context, scenario, 2, measurement);
    outcome.processes = 2;
    outcome.cpu_us_per_op = None;
    outcome.cpu_cores = None;
    Ok(Some(outcome))
}

async fn take_over(
    context: &BenchContext<'_>,
    locks: &distlock_core::Locks,
    name: &str,
    expiry: Duration,
    settle: Duration,
) -> Result<Duration> {
    let mut holder = HolderProcess::start(context, name, expiry).await?;
    let mutex = locks.mutex(name);
    let waiting = tokio::spawn(async move {
        let guard = mutex.acquire().timeout(Duration::from_secs(60)).await?;
        let granted = BootClock.now();
        guard.release().await?;
        Ok::<_, distlock_core::Error>(granted)
    });
    tokio::time::sleep(settle).await;
    let killed = BootClock.now();
    holder.kill().await?;
    let granted = waiting.await.map_err(task_failed)??;
    // The store's expiry starts after the holder sent its request. Assume the earliest moment, so that the result is never too
    // low. A grant long before that was not the expiry's: it took its time from the kill.
    let expired = holder.requested.after(expiry).max(killed);
    let is_early = granted.since(killed) < expired.since(killed) / 2;
    let freed_by_kill = locks.capabilities().frees_on_crash || is_early;
    Ok(granted.since(if freed_by_kill { killed } else { expired }))
}
