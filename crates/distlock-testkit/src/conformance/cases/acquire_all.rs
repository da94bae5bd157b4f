//! `acquire_all`: all or nothing, and no deadlock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::{ErrorKind, Locks, Request};

use crate::conformance::loss_cause::LossCause;
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// One lock of each kind that the store supports.
fn mixed(locks: &Locks) -> Vec<LockSpec> {
    let all = [
        LockSpec::mutex("a"),
        LockSpec::fair("b"),
        LockSpec::write("c"),
        LockSpec::read("d"),
        LockSpec::permits("e", 4, 2),
    ];
    all.into_iter().filter(|spec| spec.is_supported(locks.capabilities())).collect()
}

/// One lock of each kind: each is held, has its token, and is released.
pub async fn locks_of_every_kind_are_acquired_together<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let specs = mixed(&one);
    let all = one
        .acquire_all(specs.iter().map(LockSpec::request))
        .timeout(harness.timing().wait_limit)
        .await
        .unwrap();
    assert_eq!(all.guards().len(), specs.len());
    assert!(!all.is_lost());
    for spec in &specs {
        assert!(all.token_of(spec.kind(), spec.name()).is_ok(), "no token for {spec:?}");
        let whole = match spec {
            LockSpec::Read(name) => LockSpec::write(name),
            LockSpec::Permits { name, permits, .. } => LockSpec::permits(name, *permits, *permits),
            spec => spec.clone(),
        };
        assert!(whole.try_acquire(&other).await.unwrap().is_none(), "{spec:?} is not held");
    }
    assert_eq!(all.run(async { 7 }).await.unwrap(), 7);
    all.release().await.unwrap();
    for spec in &specs {
        harness.wait_until_unused(&other, spec).await;
    }
}

/// One lock is busy until the time limit: the others are released, and the error names the busy one.
pub async fn locks_acquired_before_a_busy_one_are_released<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("both");
    let specs = mixed(&one);
    for busy in &specs {
        let blocking = match busy {
            LockSpec::Read(name) => LockSpec::write(name),
            LockSpec::Permits { name, permits, .. } => LockSpec::permits(name, *permits, *permits),
            spec => spec.clone(),
        };
        let held = harness.acquire(&recorder, &other, &blocking).await;
        for mut limit in [Duration::ZERO, Duration::from_millis(60)] {
            loop {
                let begun = Instant::now();
                let error =
                    one.acquire_all(specs.iter().map(LockSpec::request)).timeout(limit).await.unwrap_err();
                // On a busy machine the store may not answer within the limit.
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
                let waited = begun.elapsed();
                assert!(waited < harness.timing().wait_limit / 2 + limit, "one limit for all: {waited:?}");
                let is_busy = error.resource().map(|resource| resource.name()) == Some(busy.name());
                if is_busy && kind == ErrorKind::Timeout {
                    break;
                }
                // Or the release of the previous round may not be confirmed yet.
                limit = 4 * limit.max(Duration::from_millis(50));
                assert!(limit < harness.timing().wait_limit, "{error}, and not {busy:?}");
            }
            for spec in specs.iter().filter(|spec| *spec != busy) {
                harness.wait_until_unused(&other, spec).await;
            }
        }
        held.release().await.unwrap();
    }
}

/// Tasks that name the same locks in different orders all succeed.
pub async fn opposite_orders_never_deadlock<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await];
    let orders = [["x", "y", "z"], ["z", "y", "x"], ["y", "z", "x"], ["z", "x", "y"]];
    let mut tasks = tokio::task::JoinSet::new();
    for (n, order) in orders.into_iter().enumerate() {
        let locks = engines[n % 2].clone();
        tasks.spawn(async move {
            for _ in 0..8 {
                let all = locks.acquire_all(order).await.expect("all locks");
                tokio::task::yield_now().await;
                all.release().await.expect("a release");
            }
        });
    }
    harness.within("the end of all tasks", tasks.join_all()).await;
}

/// A request that names a resource twice would wait for itself, so it is refused.
pub async fn naming_a_lock_twice_is_refused<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
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
    let none = locks.acquire_all(Vec::<Request>::new()).await.unwrap();
    assert!(none.guards().is_empty() && none.token("a").is_err());
}

/// Holders of single locks and of all locks on several engines exclude each other, as the history shows.
pub async fn acquire_all_excludes_single_holders<F: Fixture>(harness: Harness<F>) {
    let engines = [harness.locks().await, harness.locks().await];
    let recorder = harness.recorder("singles");
    let together = harness.recorder("all-locks");
    let names = ["x", "y"];
    let mut tasks = tokio::task::JoinSet::new();
    for (n, name) in names.into_iter().enumerate() {
        let (harness, recorder, locks) = (harness.clone(), Arc::clone(&recorder), engines[n].clone());
        tasks.spawn(async move {
            for _ in 0..15 {
                let guard = harness.acquire(&recorder, &locks, &LockSpec::mutex(name)).await;
                guard.check_held();
                guard.release().await.unwrap();
            }
        });
    }
    for _ in 0..10 {
        let requests = names.map(|name| together.request(&LockSpec::mutex(name)));
        let all = engines[0].acquire_all(names).timeout(harness.timing().wait_limit).await.unwrap();
        let guards: Vec<_> = all
            .into_guards()
            .into_iter()
            .zip(requests)
            .map(|(guard, request)| request.granted(guard))
            .collect();
        for guard in guards {
            guard.check_held();
            guard.release().await.unwrap();
        }
    }
    harness.within("the end of the single holders", tasks.join_all()).await;
}

/// The loss of one lock counts as the loss of all, and ends the work under them.
pub async fn losing_one_lock_ends_the_work_under_all<F: Fixture>(harness: Harness<F>) {
    let operator = harness.locks().await;
    for cause in LossCause::all(&harness).await {
        let locks = harness.locks_with(cause.options(&harness)).await;
        let names = [format!("held, {cause:?}"), format!("lost, {cause:?}")];
        let all = locks.acquire_all(&names).timeout(harness.timing().wait_limit).await.unwrap();
        cause.trigger(&harness, &operator, &LockSpec::mutex(&names[1])).await;
        let work = all.run(std::future::pending::<()>());
        let error = harness.within("the end of the work", work).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(all.is_lost());
        harness.within("the loss of one", all.lost()).await;
        drop(all);
        for name in &names {
            harness.wait_until_unused(&operator, &LockSpec::mutex(name)).await;
        }
    }
}
