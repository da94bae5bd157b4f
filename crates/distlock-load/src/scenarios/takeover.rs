//! `takeover`: the process that holds the lock is killed with SIGKILL while somebody waits. Measured is the time past
//! the expiry until the waiter has it; on a store that frees with the session, the time past the kill.

use std::time::Duration;

use distlock_core::{BootClock, Clock, Options, Result};

use super::raw_tasks;
use crate::bench::Ground;
use crate::interleave::Pair;
use crate::load::{Load, Tally, broken};
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::worker::HolderProcess;

/// `None` where no other process can hold these locks.
pub(crate) async fn run(ground: &Ground<'_>, plan: &Plan) -> Result<Option<Outcome>> {
    let scenario = Scenario::Takeover.as_str();
    if !ground.target.is_shared() || ground.target.worker.is_none() {
        ground.observer.note("takeover is left out: no other process sees these locks");
        return Ok(None);
    }
    ground.observer.begins(scenario);
    let settle = ground.settle_time().await?;
    let expiry = plan.takeover_expiry.max(settle * 6);
    let locks = ground.target.connect(Options::new().expiry(expiry)?).await?;
    let mut raw = raw_tasks(ground, 1, Duration::ZERO);
    let mut pair = Pair { ours: Tally { counts: vec![0], ..Tally::default() }, raw: None };
    let begun = BootClock.now();
    let mut round = 0;
    while BootClock.now().since(begun) < plan.each || round < 2 {
        let name = ground.name(format_args!("takeover/{round}"));
        let past = one(ground, &locks, &name, expiry, settle).await?;
        // The first one opens the subscription.
        if round > 0 {
            pair.ours.latencies.record(past);
            pair.ours.counts[0] += 1;
        }
        round += 1;
        if let Some(raw) = &mut raw {
            pair.raw.get_or_insert_default().add(&raw.slice(Duration::from_millis(50)).await?);
        }
        ground.progress(BootClock.now().since(begun), plan.each);
    }
    locks.shutdown().await?;
    let mut outcome = Outcome::of(ground, scenario, 2, pair);
    outcome.processes = 2;
    outcome.cpu_us_per_op = None;
    outcome.cpu_cores = None;
    Ok(Some(outcome))
}

async fn one(
    ground: &Ground<'_>,
    locks: &distlock_core::Locks,
    name: &str,
    expiry: Duration,
    settle: Duration,
) -> Result<Duration> {
    let mut holder = HolderProcess::start(ground, name, expiry).await?;
    let wanted = locks.mutex(name);
    let waiting = tokio::spawn(async move {
        let guard = wanted.acquire().timeout(Duration::from_secs(60)).await?;
        let got = BootClock.now();
        guard.release().await?;
        Ok::<_, distlock_core::Error>(got)
    });
    tokio::time::sleep(settle).await;
    let killed = BootClock.now();
    holder.kill().await?;
    let got = waiting.await.map_err(broken)??;
    // The store began to count at some moment after the holder sent its request: the earliest such moment is taken, so
    // what is told is never less than what was.
    let free =
        if locks.capabilities().frees_on_crash { killed } else { holder.asked.after(expiry).max(killed) };
    Ok(got.since(free))
}
