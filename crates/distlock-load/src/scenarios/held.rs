//! `held`: many locks that are only kept alive. First the keeping alone is watched: requests for each extension, CPU and
//! memory. Then one task takes and gives back one more lock beside them, by turns with the raw driver: that is where the
//! latencies come from.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::{Error, Guard, Locks, Options, Result};
use tokio::task::JoinSet;

use super::cycles::Cycle;
use super::raw_tasks;
use crate::bench::Ground;
use crate::interleave::{Rhythm, interleave};
use crate::load::{Tasks, broken};
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::usage;

/// How many take locks at once while the number is filled up.
const FILLERS: usize = 256;

pub(crate) async fn run(ground: &Ground<'_>, plan: &Plan) -> Result<Outcome> {
    let scenario = Scenario::Held.as_str();
    ground.observer.begins(&format!("{scenario}, {} locks", plan.held));
    // At least two extensions of each lock are to be seen.
    let watch = plan.each * 2 / 3;
    let expiry = plan.held_expiry.min(watch * 3 / 2).max(Duration::from_millis(600));
    let options = Options::new().expiry(expiry)?;
    let cadence = options.get_extension_cadence();
    let locks = ground.target.connect(options).await?;
    let before = usage::resident_bytes();
    let (guards, refused) = fill(&locks, ground, plan.held).await?;
    let after = usage::resident_bytes();
    if let (true, Some(error)) = (guards.is_empty(), &refused) {
        return Err(error.clone());
    }
    let count = guards.len();

    let mark = ground.counter.mark().await?;
    let (begun, cpu) = (Instant::now(), usage::cpu_time());
    while begun.elapsed() < watch {
        tokio::time::sleep((watch - begun.elapsed().min(watch)).min(Duration::from_millis(250))).await;
        ground.progress(begun.elapsed(), plan.each);
    }
    let (elapsed, cpu) = (begun.elapsed(), usage::cpu_time().saturating_sub(cpu));
    let requests = ground.counter.since(mark).await?;
    let ticks = elapsed.as_secs_f64() / cadence.as_secs_f64();

    let mut ours = Tasks(vec![Cycle(ground.locks.mutex(ground.name("beside")))]);
    let mut raw = raw_tasks(ground, 1, Duration::ZERO);
    let rest = plan.each / 3;
    let pair = interleave(ground, &mut ours, raw.as_mut(), rest, Rhythm::even(rest)).await?;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    give_back(guards).await?;
    locks.shutdown().await?;

    let mut outcome = Outcome::of(ground, scenario, count, pair).ratio_of_times();
    let extensions = count as f64 * ticks;
    // A store whose holds live with a session has nothing to extend.
    outcome.requests_per_op = requests
        .filter(|_| !ground.locks.capabilities().frees_on_crash)
        .map(|requests| requests as f64 / extensions.max(1.0));
    outcome.cpu_cores = Some(cpu.as_secs_f64() / elapsed.as_secs_f64());
    outcome.cpu_us_per_op = Some(cpu.as_secs_f64() * 1e6 / extensions.max(1.0));
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
        outcome.notes.push(format!("the store would not give more than {count} locks: {error:#}"));
    }
    outcome.notes.iter().for_each(|note| ground.observer.note(&format!("{scenario}: {note}")));
    Ok(outcome)
}

/// Takes locks until there are enough, or the store refuses (a session store has a file or a connection for each).
async fn fill(locks: &Locks, ground: &Ground<'_>, count: usize) -> Result<(Vec<Guard>, Option<Error>)> {
    let next = Arc::new(AtomicUsize::new(0));
    // One vector of the right size: what others need while they grow would be counted as the locks' memory.
    let guards = Arc::new(Mutex::new(Vec::with_capacity(count)));
    let mut fillers = JoinSet::new();
    for _ in 0..FILLERS.min(count) {
        let (locks, next, prefix) = (locks.clone(), Arc::clone(&next), ground.name("held/"));
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
        refused = refused.or(joined.map_err(broken)?);
    }
    let guards = std::mem::take(&mut *guards.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((guards, refused))
}

async fn give_back(guards: Vec<Guard>) -> Result<()> {
    let mut guards = guards.into_iter();
    let mut givers = JoinSet::new();
    loop {
        let share: Vec<Guard> = guards.by_ref().take(1000).collect();
        if share.is_empty() {
            break;
        }
        givers.spawn(async move {
            for guard in share {
                // Lost ones were counted; there is nothing to give back.
                let _ = guard.release().await;
            }
        });
    }
    while let Some(joined) = givers.join_next().await {
        joined.map_err(broken)?;
    }
    Ok(())
}
