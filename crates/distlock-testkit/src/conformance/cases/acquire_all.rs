//! Several locks at once: all or nothing, and never a deadlock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::{ErrorKind, Kind, Locks, Request};

use crate::conformance::ways::Way;
use crate::conformance::{Fixture, Stage};
use crate::history::Want;

/// What can be asked for together: one of each kind.
fn mixed(locks: &Locks) -> Vec<Want> {
    let all =
        [Want::mutex("a"), Want::fair("b"), Want::write("c"), Want::read("d"), Want::permits("e", 4, 2)];
    all.into_iter().filter(|want| want.is_offered(locks.capabilities())).collect()
}

/// All kinds together: each is held, each has its token, and all are given back.
pub async fn locks_of_every_kind_are_taken_together<F: Fixture>(stage: Stage<F>) {
    let (one, other) = (stage.locks().await, stage.locks().await);
    let wants = mixed(&one);
    let all = one.acquire_all(wants.iter().map(Want::request)).timeout(stage.pace().patience).await.unwrap();
    assert_eq!(all.guards().len(), wants.len());
    assert!(!all.is_lost());
    for want in &wants {
        assert!(all.token(want.kind(), want.name()).is_some(), "no token for {want:?}");
        let whole = match want {
            Want::Read(name) => Want::write(name),
            Want::Permits { name, permits, .. } => Want::permits(name, *permits, *permits),
            want => want.clone(),
        };
        assert!(whole.try_acquire(&other).await.unwrap().is_none(), "{want:?} is not held");
    }
    assert_eq!(all.run(async { 7 }).await.unwrap(), 7);
    all.release().await.unwrap();
    for want in &wants {
        stage.until_nothing_is_left(&other, want).await;
    }
}

/// One of them is busy until the time limit: nothing stays of the others, and the error names the busy one.
pub async fn what_was_taken_before_a_busy_one_is_given_back<F: Fixture>(stage: Stage<F>) {
    let (one, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("both");
    let wants = mixed(&one);
    for busy in &wants {
        let blocks = match busy {
            Want::Read(name) => Want::write(name),
            Want::Permits { name, permits, .. } => Want::permits(name, *permits, *permits),
            want => want.clone(),
        };
        let held = stage.take(&recorder, &other, &blocks).await;
        for mut limit in [Duration::ZERO, Duration::from_millis(60)] {
            loop {
                let begun = Instant::now();
                let error =
                    one.acquire_all(wants.iter().map(Want::request)).timeout(limit).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                let waited = begun.elapsed();
                assert!(waited < stage.pace().patience / 2 + limit, "one limit for all: {waited:?}");
                if error.resource().map(|resource| resource.name()) == Some(busy.name()) {
                    break;
                }
                // On a busy machine what was given back the last time may not have been confirmed yet.
                limit = 4 * limit.max(Duration::from_millis(50));
                assert!(limit < stage.pace().patience, "{error}, and not {busy:?}");
            }
            for want in wants.iter().filter(|want| *want != busy) {
                stage.until_nothing_is_left(&other, want).await;
            }
        }
        held.release().await.unwrap();
    }
}

/// Many who name the same locks in different orders: each of them gets through.
pub async fn opposite_orders_never_deadlock<F: Fixture>(stage: Stage<F>) {
    let engines = [stage.locks().await, stage.locks().await];
    let orders = [["x", "y", "z"], ["z", "y", "x"], ["y", "z", "x"], ["z", "x", "y"]];
    let mut tasks = tokio::task::JoinSet::new();
    for (n, order) in orders.into_iter().enumerate() {
        let locks = engines[n % 2].clone();
        tasks.spawn(async move {
            for _ in 0..8 {
                let all = locks.acquire_all(order).await.expect("all of them");
                tokio::task::yield_now().await;
                all.release().await.expect("a release");
            }
        });
    }
    stage.within("an end without deadlock", tasks.join_all()).await;
}

/// Whoever names one resource twice would wait for itself.
pub async fn naming_a_lock_twice_is_refused<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    let pairs = [
        [Request::mutex("a"), Request::mutex("a")],
        [Request::mutex("a"), Request::fair_mutex("a")],
        [Request::read("a"), Request::write("a")],
        [Request::permits("a", 4, 1), Request::permits("a", 4, 1)],
    ];
    for pair in pairs {
        let error = locks.acquire_all(pair).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let nothing = locks.acquire_all(Vec::<Request>::new()).await.unwrap();
    assert!(nothing.guards().is_empty() && nothing.token(Kind::Mutex, "a").is_none());
}

/// Holders of one of them and of all of them at once, on several engines: the history shows that they excluded each
/// other.
pub async fn all_of_them_exclude_each_of_them<F: Fixture>(stage: Stage<F>) {
    let engines = [stage.locks().await, stage.locks().await];
    let recorder = stage.recorder("singles");
    let together = stage.recorder("together");
    let names = ["x", "y"];
    let mut tasks = tokio::task::JoinSet::new();
    for (n, name) in names.into_iter().enumerate() {
        let (stage, recorder, locks) = (stage.clone(), Arc::clone(&recorder), engines[n].clone());
        tasks.spawn(async move {
            for _ in 0..15 {
                let taken = stage.take(&recorder, &locks, &Want::mutex(name)).await;
                taken.look();
                taken.release().await.unwrap();
            }
        });
    }
    for _ in 0..10 {
        let asked = names.map(|name| together.asked(&Want::mutex(name)));
        let all = engines[0].acquire_all(names).timeout(stage.pace().patience).await.unwrap();
        let taken: Vec<_> =
            all.into_guards().into_iter().zip(asked).map(|(guard, asked)| asked.granted(guard)).collect();
        for taken in taken {
            taken.look();
            taken.release().await.unwrap();
        }
    }
    stage.within("an end of the others", tasks.join_all()).await;
}

/// One of them is lost: that is known of all of them together, and the work under them ends.
pub async fn losing_one_of_them_ends_the_work_under_all<F: Fixture>(stage: Stage<F>) {
    let operator = stage.locks().await;
    for way in Way::all(&stage).await {
        let locks = stage.locks_on(way.terms(&stage)).await;
        let names = [format!("kept, {way:?}"), format!("lost, {way:?}")];
        let all = locks.acquire_all(&names).timeout(stage.pace().patience).await.unwrap();
        way.begin(&stage, &operator, &Want::mutex(&names[1])).await;
        let work = all.run(std::future::pending::<()>());
        let error = stage.within("an end of the work", work).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(all.is_lost());
        stage.within("the loss of one", all.lost()).await;
        drop(all);
        for name in &names {
            stage.until_nothing_is_left(&operator, &Want::mutex(name)).await;
        }
    }
}
