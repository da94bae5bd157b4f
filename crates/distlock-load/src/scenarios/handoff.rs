//! `handoff`: the handoff from a holder to a waiter on another connection. Measures the time from the call of `release` until
//! the waiter has its guard. The releaser does not contend.
//!
//! The baseline is a notification between two connections of the bare driver, measured in the same way: from the call that sends
//! it until the task of the receiver has it.

use std::future::Future;
use std::time::{Duration, Instant};

use distlock_core::bench::BareNotification;
use distlock_core::{Locks, Options, Result};

use crate::bench::BenchContext;
use crate::interleave::{SliceLengths, interleave};
use crate::outcome::Outcome;
use crate::plan::{Plan, Scenario};
use crate::usage;
use crate::workload::{Tally, Workload, task_failed};

struct Handoffs {
    /// Two engines with a connection each: to the store they are two processes.
    engines: [Locks; 2],
    name: String,
    settle: Duration,
    /// The engine that holds next.
    next_holder: usize,
}

impl Handoffs {
    async fn handoff(&mut self) -> Result<Duration> {
        let (holder, waiter) = (&self.engines[self.next_holder], &self.engines[1 - self.next_holder]);
        self.next_holder = 1 - self.next_holder;
        let held = holder.mutex(self.name.as_str()).acquire().await?;
        let mutex = waiter.mutex(self.name.as_str());
        let waiting = tokio::spawn(async move {
            let guard = mutex.acquire().await?;
            let granted = Instant::now();
            guard.release().await?;
            Ok::<_, distlock_core::Error>(granted)
        });
        tokio::time::sleep(self.settle).await;
        let released = Instant::now();
        held.release().await?;
        let granted = waiting.await.map_err(task_failed)??;
        Ok(granted.saturating_duration_since(released))
    }
}

impl Pass for Handoffs {
    async fn pass(&mut self) -> Result<Duration> {
        self.handoff().await
    }
}

/// Notifications of the bare driver.
struct Notifications {
    bare: Box<dyn BareNotification>,
    settle: Duration,
}

impl Pass for Notifications {
    async fn pass(&mut self) -> Result<Duration> {
        let receiving = tokio::spawn(self.bare.receive().await?);
        tokio::time::sleep(self.settle).await;
        let sent = Instant::now();
        self.bare.send().await?;
        let received = receiving.await.map_err(task_failed)??;
        Ok(received.saturating_duration_since(sent))
    }
}

/// Something that one side gives and the other receives.
trait Pass {
    /// How long it took.
    fn pass(&mut self) -> impl Future<Output = Result<Duration>> + Send;
}

/// One after the other.
struct Passes<P>(P);

impl<P: Pass + Send> Workload for Passes<P> {
    async fn slice(&mut self, length: Duration) -> Result<Tally> {
        let (begun, cpu) = (Instant::now(), usage::cpu_time());
        let mut tally = Tally { counts: vec![0], ..Tally::default() };
        while begun.elapsed() < length {
            tally.latencies.record(self.0.pass().await?);
            tally.counts[0] += 1;
        }
        tally.elapsed = begun.elapsed();
        tally.cpu = usage::cpu_time().saturating_sub(cpu);
        Ok(tally)
    }
}

pub(crate) async fn run(context: &BenchContext<'_>, plan: &Plan) -> Result<Outcome> {
    let scenario = Scenario::Handoff.as_str();
    context.observer.started(scenario);
    let settle = context.settle_time().await?;
    let other = context.store.connect(Options::default()).await?;
    let mut ours = Handoffs {
        engines: [context.locks.clone(), other.clone()],
        name: context.name("handoff"),
        settle,
        next_holder: 0,
    };
    let bare = match context.baseline {
        Some(baseline) => baseline.notifications(&context.name("notification")).await?,
        None => None,
    };
    let mut baseline = bare.map(|bare| Passes(Notifications { bare, settle }));
    // The first waiter of an engine opens its subscription, which happens once per process and not in every handoff.
    for _ in 0..4 {
        ours.handoff().await?;
    }
    let slice = (plan.run_time / 6).max(settle * 4);
    let lengths = SliceLengths { ours: slice, baseline: slice / 2 };
    let measurement = interleave(context, &mut Passes(ours), baseline.as_mut(), plan.run_time, lengths).await;
    other.shutdown().await?;
    let mut outcome = Outcome::of(context, scenario, 2, measurement?).with_latency_ratio();
    // The rates would only show the settle time of the benchmark.
    (outcome.ops_per_s, outcome.baseline_ops_per_s) = (None, None);
    Ok(outcome)
}
