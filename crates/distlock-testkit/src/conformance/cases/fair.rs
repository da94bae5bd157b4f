//! `fair()`: first come, first served across the whole fleet.

use std::sync::{Arc, Mutex};

use crate::actors::Actor;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// Waiters of several processes are served in the order in which they came.
pub async fn fair_waiters_are_served_in_order_across_processes<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let spec = LockSpec::fair("queue");
    if !harness.supports(&locks, &spec).await {
        return;
    }
    let recorder = harness.recorder("holder");
    let actors: Vec<Actor> =
        (0..4).map(|n| harness.actor(&format!("process-{n}"), harness.long_lease())).collect();
    let held = harness.acquire(&recorder, &locks, &spec).await;
    let mut turns = Vec::new();
    for (n, actor) in actors.iter().enumerate() {
        turns.push(actor.acquire(1, &spec));
        harness.wait_for_waiters(&locks, &spec, n + 1).await;
    }
    let mut last = held.token().get();
    held.release().await.unwrap();
    for (n, (actor, turn)) in actors.iter().zip(turns).enumerate() {
        // Whoever comes before its turn has a lower token than one that came before it.
        let token = harness.within(format!("the turn of process {n}"), turn).await;
        assert!(token > last, "process {n} was served with token {token}, and the one before it with {last}");
        last = token;
        harness.within("a release", actor.release(1)).await;
    }
    for actor in actors {
        actor.shutdown().await;
    }
}

/// The same among tasks of two engines, mixed: a place in the line of one process is worth no more than one in the
/// other's.
pub async fn fair_waiters_are_served_in_order_across_engines<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await];
    let spec = LockSpec::fair("queue");
    if !harness.supports(&engines[0], &spec).await {
        return;
    }
    let recorder = harness.recorder("takers");
    let held = harness.acquire(&recorder, &engines[0], &spec).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    let order = [0, 1, 1, 0, 0, 1];
    for (n, engine) in order.into_iter().enumerate() {
        tasks.spawn({
            let (harness, recorder, spec, served) =
                (harness.clone(), Arc::clone(&recorder), spec.clone(), Arc::clone(&served));
            let locks = engines[engine].clone();
            async move {
                let taken = harness.acquire(&recorder, &locks, &spec).await;
                served.lock().unwrap().push(n);
                taken.release().await.unwrap();
            }
        });
        harness.wait_for_waiters(&engines[0], &spec, n + 1).await;
    }
    held.release().await.unwrap();
    harness.within("an end of the queue", tasks.join_all()).await;
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
}

/// Fair or not, it is one mutex: a holder of either sort keeps the others out, and both get their turn.
pub async fn fair_and_plain_holders_exclude_each_other<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let (fair, plain) = (LockSpec::fair("mixed"), LockSpec::mutex("mixed"));
    if !harness.supports(&one, &fair).await {
        return;
    }
    let recorder = harness.recorder("both");
    for (holds, asks) in [(&fair, &plain), (&plain, &fair)] {
        let held = harness.acquire(&recorder, &one, holds).await;
        for locks in [&one, &other] {
            assert!(recorder.try_acquire(locks, asks).await.unwrap().is_none(), "{asks:?} beside {holds:?}");
        }
        let waiting = tokio::spawn({
            let (harness, recorder, locks, asks) =
                (harness.clone(), Arc::clone(&recorder), other.clone(), asks.clone());
            async move { harness.acquire(&recorder, &locks, &asks).await }
        });
        harness.wait_for_waiters(&one, asks, 1).await;
        held.release().await.unwrap();
        harness.within("a turn", waiting).await.unwrap().release().await.unwrap();
    }
    harness.wait_until_unused(&one, &plain).await;
}
