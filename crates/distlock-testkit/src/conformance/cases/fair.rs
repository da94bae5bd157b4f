//! `fair()`: first come, first served across all processes.

use std::sync::{Arc, Mutex};

use crate::actors::Actor;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// Waiters in several processes are served in the order of their arrival.
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
    let mut grants = Vec::new();
    for (n, actor) in actors.iter().enumerate() {
        grants.push(actor.acquire(1, &spec));
        harness.wait_for_waiters(&locks, &spec, n + 1).await;
    }
    let mut last = held.token().get();
    held.release().await.unwrap();
    for (n, (actor, grant)) in actors.iter().zip(grants).enumerate() {
        // A waiter served too early has a lower token than one that arrived before it.
        let token = harness.within(format!("the grant of process {n}"), grant).await;
        assert!(token > last, "process {n} was granted token {token}, and the one before it {last}");
        last = token;
        harness.within("a release", actor.release(1)).await;
    }
    for actor in actors {
        actor.shutdown().await;
    }
}

/// The same for interleaved tasks of two engines: an engine does not prefer its own tasks.
pub async fn fair_waiters_are_served_in_order_across_engines<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await];
    let spec = LockSpec::fair("queue");
    if !harness.supports(&engines[0], &spec).await {
        return;
    }
    let recorder = harness.recorder("waiters");
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
                let guard = harness.acquire(&recorder, &locks, &spec).await;
                served.lock().unwrap().push(n);
                guard.release().await.unwrap();
            }
        });
        harness.wait_for_waiters(&engines[0], &spec, n + 1).await;
    }
    held.release().await.unwrap();
    harness.within("the end of the wait queue", tasks.join_all()).await;
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
}

/// The fair and the plain mutex of one name exclude each other, and waiters of both kinds are served.
pub async fn fair_and_plain_holders_exclude_each_other<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let (fair, plain) = (LockSpec::fair("mixed"), LockSpec::mutex("mixed"));
    if !harness.supports(&one, &fair).await {
        return;
    }
    let recorder = harness.recorder("both");
    for (holds, requests) in [(&fair, &plain), (&plain, &fair)] {
        let held = harness.acquire(&recorder, &one, holds).await;
        for locks in [&one, &other] {
            assert!(
                recorder.try_acquire(locks, requests).await.unwrap().is_none(),
                "{requests:?} beside {holds:?}"
            );
        }
        let waiting = harness.spawn_acquire(&recorder, &other, requests);
        harness.wait_for_waiters(&one, requests, 1).await;
        held.release().await.unwrap();
        harness.within("a grant", waiting).await.unwrap().release().await.unwrap();
    }
    harness.wait_until_unused(&one, &plain).await;
}
