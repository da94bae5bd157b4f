//! While a guard reports held, no guard that excludes it does.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::{BootClock, Clock, Locks, Moment};

use crate::actors::Contention;
use crate::conformance::{Fixture, Harness};
use crate::history::{LockSpec, Recorder};

/// Lets processes contend. The history, checked at the end of the case, shows whether two ever held at once.
async fn contend<F: Fixture>(harness: &Harness<F>, processes: u32, contention: impl Fn(u32) -> Contention) {
    let actors: Vec<_> =
        (0..processes).map(|n| harness.actor(&format!("process-{n}"), harness.long_lease())).collect();
    // Send all commands before the first reply is awaited, so that the processes connect and acquire concurrently.
    let mut running = Vec::new();
    for (n, actor) in (0..).zip(&actors) {
        let contention = contention(n);
        running.push((contention.rounds as usize, actor.contend(contention)));
    }
    let mut rounds = Vec::new();
    for (expected, contention) in running {
        harness.within("the end of the contention", contention).await;
        rounds.push(expected);
    }
    let grants = harness.grants();
    for (actor, expected) in actors.iter().zip(rounds) {
        assert_eq!(grants.get(actor.name()), Some(&expected), "grants of {}", actor.name());
    }
    for actor in actors {
        actor.shutdown().await;
    }
}

/// Several processes acquire one mutex many times.
pub async fn processes_never_hold_a_mutex_at_once<F: Fixture>(harness: Harness<F>) {
    let timing = harness.timing();
    contend(&harness, timing.processes, |_| Contention::over([LockSpec::mutex("contended")], timing.rounds))
        .await;
}

/// Half of the processes use the fair mutex, half the plain one: both are the same lock.
pub async fn fair_and_plain_users_of_a_mutex_never_hold_at_once<F: Fixture>(harness: Harness<F>) {
    let timing = harness.timing();
    let (fair, plain) = (LockSpec::fair("contended"), LockSpec::mutex("contended"));
    if !harness.supports(&harness.locks().await, &fair).await {
        return;
    }
    contend(&harness, timing.processes, |n| {
        let spec = if n % 2 == 0 { &fair } else { &plain };
        Contention::over([spec.clone()], timing.rounds / 2)
    })
    .await;
}

/// Readers and writers in several processes.
pub async fn a_writer_never_holds_with_a_reader_or_another_writer<F: Fixture>(harness: Harness<F>) {
    let timing = harness.timing();
    let (read, write) = (LockSpec::read("contended"), LockSpec::write("contended"));
    if !harness.supports(&harness.locks().await, &write).await {
        return;
    }
    contend(&harness, timing.processes, |_| {
        Contention::over(
            [read.clone(), write.clone(), read.clone(), read.clone(), write.clone()],
            timing.rounds,
        )
    })
    .await;
}

/// Requests of different weights in several processes.
pub async fn permits_in_use_never_exceed_the_capacity<F: Fixture>(harness: Harness<F>) {
    let timing = harness.timing();
    let spec = |wanted| LockSpec::permits("contended", 3, wanted);
    if !harness.supports(&harness.locks().await, &spec(1)).await {
        return;
    }
    contend(&harness, timing.processes, |_| {
        Contention::over([spec(1), spec(2), spec(1), spec(3), spec(1)], timing.rounds)
    })
    .await;
}

/// Ten processes connect and acquire concurrently on an empty store. Concurrent creation of what the store needs (a table, an
/// index, a folder) must not fail.
pub async fn ten_processes_starting_at_once_on_an_empty_store_all_acquire<F: Fixture>(harness: Harness<F>) {
    contend(&harness, 10, |_| Contention {
        hold: Duration::from_millis(2),
        ..Contention::over([LockSpec::mutex("first"), LockSpec::mutex("second")], 2)
    })
    .await;
}

async fn hold_repeatedly(recorder: &Arc<Recorder>, locks: &Locks, spec: &LockSpec, rounds: u32) {
    for _ in 0..rounds {
        let guard = recorder.acquire(locks, spec).await.expect("a grant");
        guard.check_held();
        tokio::task::yield_now().await;
        guard.check_held();
        guard.release().await.expect("a release");
    }
}

/// Tasks of one engine, whose requests are batched, for every exclusive lock.
pub async fn tasks_of_one_engine_never_hold_at_once<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let recorder = harness.recorder("tasks");
    let mut tasks = tokio::task::JoinSet::new();
    for spec in LockSpec::every_exclusive(locks.capabilities(), "contended") {
        for _ in 0..6 {
            let (recorder, locks, spec) = (Arc::clone(&recorder), locks.clone(), spec.clone());
            tasks.spawn(async move { hold_repeatedly(&recorder, &locks, &spec, 10).await });
        }
    }
    harness.within("the end of all tasks", tasks.join_all()).await;
}

/// Two engines of one process exclude each other as two processes do.
pub async fn engines_of_one_process_exclude_each_other<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("engines");
    for spec in LockSpec::every_exclusive(one.capabilities(), "shared") {
        let held = harness.acquire(&recorder, &one, &spec).await;
        assert!(recorder.try_acquire(&other, &spec).await.unwrap().is_none(), "{spec:?} was granted twice");
        assert!(recorder.try_acquire(&one, &spec).await.unwrap().is_none(), "{spec:?} is re-entrant");
        held.release().await.unwrap();
        let held = harness.acquire(&recorder, &other, &spec).await;
        assert!(recorder.try_acquire(&one, &spec).await.unwrap().is_none(), "{spec:?} was granted twice");
        held.release().await.unwrap();
    }
    let mut tasks = tokio::task::JoinSet::new();
    for locks in [one, other] {
        let recorder = Arc::clone(&recorder);
        tasks.spawn(async move {
            hold_repeatedly(&recorder, &locks, &LockSpec::mutex("shared"), 25).await;
        });
    }
    harness.within("the end of both tasks", tasks.join_all()).await;
}

/// A clock that is ahead of the true time.
#[derive(Debug)]
struct OffsetClock(Duration);

impl Clock for OffsetClock {
    fn now(&self) -> Moment {
        BootClock.now().after(self.0)
    }
}

/// The store's clock decides expiry and clients measure durations only, so differences between their clocks do not matter.
pub async fn engines_whose_clocks_differ_exclude_each_other<F: Fixture>(harness: Harness<F>) {
    if !harness.has_leases().await {
        println!("not applicable: nothing expires here");
        return;
    }
    let recorder = harness.recorder("both");
    let mut engines = Vec::new();
    for hours in [0, 1, 1000] {
        let clock = Arc::new(OffsetClock(Duration::from_secs(hours * 3600)));
        let builder = Locks::builder(harness.fixture().connect().await).clock(clock);
        engines.push(builder.options(harness.short_lease().to_options()).build().unwrap());
    }
    for spec in LockSpec::every_exclusive(engines[0].capabilities(), "clock offset") {
        for holder in &engines {
            let held = harness.acquire(&recorder, holder, &spec).await;
            for other in &engines {
                let other = recorder.try_acquire(other, &spec).await.unwrap();
                assert!(other.is_none() || !held.check_held(), "{spec:?} was granted twice");
            }
            drop(held);
        }
    }
}
