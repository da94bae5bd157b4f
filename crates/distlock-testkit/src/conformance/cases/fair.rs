//! `fair()`: first come, first served across the whole fleet.

use std::sync::{Arc, Mutex};

use crate::actors::Actor;
use crate::conformance::{Fixture, Stage};
use crate::history::Want;

/// Waiters of several processes are served in the order in which they came.
pub async fn fair_waiters_are_served_in_their_order_across_processes<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    let want = Want::fair("queue");
    if !stage.offers(&locks, &want).await {
        return;
    }
    let recorder = stage.recorder("holder");
    let actors: Vec<Actor> = (0..4).map(|n| stage.actor(&format!("process-{n}"), stage.lasting())).collect();
    let held = stage.take(&recorder, &locks, &want).await;
    let mut turns = Vec::new();
    for (n, actor) in actors.iter().enumerate() {
        turns.push(actor.take(1, &want));
        stage.until_waiting(&locks, &want, n + 1).await;
    }
    let mut last = held.token().get();
    held.release().await.unwrap();
    for (n, (actor, turn)) in actors.iter().zip(turns).enumerate() {
        // Whoever comes before its turn has a lower token than one that came before it.
        let token = stage.within(format!("the turn of process {n}"), turn).await;
        assert!(token > last, "process {n} was served with token {token}, and the one before it with {last}");
        last = token;
        stage.within("a release", actor.give_back(1)).await;
    }
    for actor in actors {
        actor.leave().await;
    }
}

/// The same among tasks of two engines, mixed: a place in the line of one process is worth no more than one in the
/// other's.
pub async fn fair_waiters_are_served_in_their_order_across_engines<F: Fixture>(stage: Stage<F>) {
    let engines = [stage.locks().await, stage.locks().await];
    let want = Want::fair("queue");
    if !stage.offers(&engines[0], &want).await {
        return;
    }
    let recorder = stage.recorder("takers");
    let held = stage.take(&recorder, &engines[0], &want).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    let order = [0, 1, 1, 0, 0, 1];
    for (n, engine) in order.into_iter().enumerate() {
        tasks.spawn({
            let (stage, recorder, want, served) =
                (stage.clone(), Arc::clone(&recorder), want.clone(), Arc::clone(&served));
            let locks = engines[engine].clone();
            async move {
                let taken = stage.take(&recorder, &locks, &want).await;
                served.lock().unwrap().push(n);
                taken.release().await.unwrap();
            }
        });
        stage.until_waiting(&engines[0], &want, n + 1).await;
    }
    held.release().await.unwrap();
    stage.within("an end of the queue", tasks.join_all()).await;
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
}

/// Fair or not, it is one mutex: a holder of either sort keeps the others out, and both get their turn.
pub async fn a_fair_holder_excludes_plain_users_and_the_other_way_round<F: Fixture>(stage: Stage<F>) {
    let (one, other) = (stage.locks().await, stage.locks().await);
    let (fair, plain) = (Want::fair("mixed"), Want::mutex("mixed"));
    if !stage.offers(&one, &fair).await {
        return;
    }
    let recorder = stage.recorder("both");
    for (holds, asks) in [(&fair, &plain), (&plain, &fair)] {
        let held = stage.take(&recorder, &one, holds).await;
        for locks in [&one, &other] {
            assert!(recorder.try_take(locks, asks).await.unwrap().is_none(), "{asks:?} beside {holds:?}");
        }
        let waiting = tokio::spawn({
            let (stage, recorder, locks, asks) =
                (stage.clone(), Arc::clone(&recorder), other.clone(), asks.clone());
            async move { stage.take(&recorder, &locks, &asks).await }
        });
        stage.until_waiting(&one, asks, 1).await;
        held.release().await.unwrap();
        stage.within("a turn", waiting).await.unwrap().release().await.unwrap();
    }
    stage.until_nothing_is_left(&one, &plain).await;
}
