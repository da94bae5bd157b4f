//! `held`: many locks that are only renewed. First measures the renewals alone: requests, CPU time and memory. Then one task
//! acquires and releases one more lock, alternating with the baseline, for the latencies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::{Error, Guard, Locks, Options, Result};
use tokio::task::JoinSet;

use super::baseline_tasks;
use super::cycles::Cycle;
use crate::bench::BenchContext;
use crate::interleave::{SliceLengths, interleave};
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::usage;
use crate::workload::{Tasks, task_failed};

/// The number of tasks that acquire the locks.
const FILLERS: usize = 256;

pub(crate) async fn run(context: &BenchContext<'_>, plan: &Plan) -> Result<Outcome> {
    let scenario = Scenario::Held.as_str();
    context.observer.started(&format!("{scenario}, {} locks", plan.held));
    // At least two renewals of each lock must fall into the measurement.
    let measured = plan.run_time * 2 / 3;
    let expiry = plan.held_expiry.min(measured * 3 / 2).max(Duration::from_millis(600));
    let options = Options::new().expiry(expiry)?;
    let cadence = options.get_extension_cadence();
    let locks = context.store.connect(options).await?;
    let before = usage::resident_bytes();
    let (guards, refused) = fill(&locks, context, plan.held).await?;
    let after = usage::resident_bytes();
    if let (true, Some(error)) = (guards.is_empty(), &refused) {
        return Err(error.clone());
    }
    let count = guards.len();

    let mark = context.counter.mark().await?;
    let (begun, cpu) = (Instant::now(), usage::cpu_time());
    while begun.elapsed() < measured {
        tokio::time::sleep((measured - begun.elapsed().min(measured)).min(Duration::from_millis(250))).await;
        context.progress(begun.elapsed(), plan.run_time);
    }
    let (elapsed, cpu) = (begun.elapsed(), usage::cpu_time().saturating_sub(cpu));
    let requests = context.counter.since(mark).await?;
    let ticks = elapsed.as_secs_f64() / cadence.as_secs_f64();

    let mut ours = Tasks(vec![Cycle(context.locks.mutex(context.name("beside")))]);
    let mut baseline = baseline_tasks(context, 1, Duration::ZERO);
    let rest = plan.run_time / 3;
    let measurement =
        interleave(context, &mut ours, baseline.as_mut(), rest, SliceLengths::even(rest)).await?;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    release_all(guards).await?;
    locks.shutdown().await?;

    let mut outcome = Outcome::of(context, scenario, count, measurement).with_latency_ratio();
    let renewals = count as f64 * ticks;
    // Sessions are not renewed lock by lock.
    outcome.requests_per_op = requests
        .filter(|_| !context.locks.capabilities().frees_on_crash)
        .map(|requests| requests as f64 / renewals.max(1.0));
    outcome.cpu_cores = Some(cpu.as_secs_f64() / elapsed.as_secs_f64());
    outcome.cpu_us_per_op = Some(cpu.as_secs_f64() * 1e6 / renewals.max(1.0));
    outcome.rss_per_lock_bytes =
        before.zip(after).map(|(before, after)| after.saturating_sub(before) / count.max(1) as u64);
    outcome.rss_bytes = after;
    if let Some(requests) = requests {
        outcome.notes.push(format!(
            "{:.1} requests for each tick of {} ms, {:.4} core",
            requests as f64 / ticks,
            cadence.as_millis(),
            cpu.as_secs_f64() / elapsed.as_secs_f64()
        ));
    }
    if lost > 0 {
        outcome.notes.push(format!("{lost} of {count} locks were lost"));
    }
    if let Some(error) = refused {
        outcome.notes.push(format!("the store refused more than {count} locks: {error:#}"));
    }
    outcome.notes.iter().for_each(|note| context.observer.note(&format!("{scenario}: {note}")));
    Ok(outcome)
}

/// Acquires locks until there are enough or the store refuses: a session store needs a file or a connection for each.
async fn fill(
    locks: &Locks,
    context: &BenchContext<'_>,
    count: usize,
) -> Result<(Vec<Guard>, Option<Error>)> {
    let next = Arc::new(AtomicUsize::new(0));
    // One vector of the final size: a growing one would be counted as memory of the locks.
    let guards = Arc::new(Mutex::new(Vec::with_capacity(count)));
    let mut fillers = JoinSet::new();
    for _ in 0..FILLERS.min(count) {
        let (locks, next, prefix) = (locks.clone(), Arc::clone(&next), context.name("held/"));
        let guards = Arc::clone(&guards);
        fillers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return None;
                }
                match locks.mutex(format!("{prefix}{number}")).acquire().await {
                    Ok(guard) => guards.lock().unwrap_or_else(PoisonError::into_inner).push(guard),
                    Err(error) => {
                        next.store(count, Ordering::Relaxed);
                        return Some(error);
                    }
                }
            }
        });
    }
    let mut refused = None;
    while let Some(joined) = fillers.join_next().await {
        refused = refused.or(joined.map_err(task_failed)?);
    }
    let guards = std::mem::take(&mut *guards.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((guards, refused))
}

async fn release_all(guards: Vec<Guard>) -> Result<()> {
    let mut guards = guards.into_iter();
    let mut releasers = JoinSet::new();
    loop {
        let share: Vec<Guard> = guards.by_ref().take(1000).collect();
        if share.is_empty() {
            break;
        }
        releasers.spawn(async move {
            for guard in share {
                // Lost guards were counted before.
                let _ = guard.release().await;
            }
        });
    }
    while let Some(joined) = releasers.join_next().await {
        joined.map_err(task_failed)?;
    }
    Ok(())
}
