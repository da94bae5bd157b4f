//! `inspect` and `doctor`.

use distlock_core::store::Query;

use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// A holder is shown with token, weight, expiry and capacity, and disappears with its release.
pub async fn inspect_shows_holders<F: Fixture>(harness: Harness<F>) {
    let (holder, operator) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holder");
    let mut specs = LockSpec::every_exclusive(holder.capabilities(), "shown");
    specs.extend([LockSpec::read("shown to readers"), LockSpec::permits("shown permits", 5, 2)]);
    specs.retain(|spec| spec.is_supported(holder.capabilities()));
    for spec in specs {
        assert!(harness.record(&operator, &spec).await.is_none(), "{spec:?} is shown before it is held");
        let held = harness.acquire(&recorder, &holder, &spec).await;
        let record = harness.record(&operator, &spec).await.expect("a held lock is shown");
        assert_eq!(record.kind, spec.kind());
        assert_eq!(record.capacity, spec.capacity());
        assert!(record.waiters.is_empty(), "{record:?}");
        let [shown] = &record.holders[..] else { panic!("expected one holder: {record:?}") };
        assert_eq!(shown.lock_id, *held.lock_id());
        assert_eq!(shown.lock_id.label(), held.lock_id().label());
        assert!(
            shown.lock_id.label().starts_with("engine-"),
            "the label does not name the engine: {shown:?}"
        );
        assert_eq!(shown.weight, spec.weight());
        if let Some(token) = shown.token {
            assert_eq!(token, held.token(), "{spec:?}");
        }
        if let Some(left) = shown.expires_in {
            assert!(left <= harness.long_lease().expiry, "{left:?} are left of {spec:?}");
        }
        held.release().await.unwrap();
        assert!(harness.record(&operator, &spec).await.is_none(), "{spec:?} is shown after its release");
    }
}

/// Waiters are shown where the store knows them, and none elsewhere.
pub async fn inspect_shows_waiters<F: Fixture>(harness: Harness<F>) {
    let (holder, waiter) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holder");
    for spec in LockSpec::every_exclusive(holder.capabilities(), "shown waiter") {
        let held = harness.acquire(&recorder, &holder, &spec).await;
        let waiting = tokio::spawn({
            let (locks, spec, wait_limit) = (waiter.clone(), spec.clone(), harness.timing().wait_limit);
            async move { spec.acquire(&locks).timeout(wait_limit).await }
        });
        harness.wait_for_waiters(&holder, &spec, 1).await;
        let record = harness.record(&holder, &spec).await.expect("a held lock is shown");
        assert_eq!(record.holders.len(), 1, "{record:?}");
        if holder.capabilities().shows_waiters {
            let [shown] = &record.waiters[..] else { panic!("expected one waiter: {record:?}") };
            assert!(
                shown.lock_id.label().starts_with("engine-"),
                "the label does not name the engine: {shown:?}"
            );
            assert_ne!(shown.lock_id.label(), held.lock_id().label());
            assert_eq!(
                shown.weight,
                if spec.kind() == distlock_core::Kind::Mutex { 1 } else { spec.weight() }
            );
        }
        held.release().await.unwrap();
        let guard = waiting.await.unwrap().expect("a grant");
        let record = harness.record(&holder, &spec).await.expect("a held lock is shown");
        assert_eq!(record.holders[0].lock_id, *guard.lock_id());
        assert!(record.waiters.is_empty(), "a granted waiter is still shown: {record:?}");
    }
}

/// A query returns exactly the matching records.
pub async fn inspect_finds_by_kind_name_and_prefix<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let recorder = harness.recorder("holder");
    let mut held = Vec::new();
    for name in ["app/a", "app/b", "app%", "apple", "other"] {
        held.push(harness.acquire(&recorder, &locks, &LockSpec::mutex(name)).await);
    }
    let names = |records: Vec<distlock_core::store::Record>| -> Vec<String> {
        records.into_iter().filter_map(|record| record.name).collect()
    };
    let all = locks.inspect(&Query::default()).await.unwrap();
    assert_eq!(all.len(), 5, "{all:?}");
    if all.iter().any(|record| record.name.is_none()) {
        // The store keeps only hashes, so it can find whole names only.
        let found = locks.inspect(&Query::named("apple")).await.unwrap();
        return assert_eq!(found.len(), 1, "{found:?}");
    }
    assert_eq!(names(locks.inspect(&Query::named("apple")).await.unwrap()), ["apple"]);
    assert_eq!(names(locks.inspect(&Query::named("app")).await.unwrap()), [""; 0]);
    assert_eq!(names(locks.inspect(&Query::prefixed("app/")).await.unwrap()), ["app/a", "app/b"]);
    assert_eq!(names(locks.inspect(&Query::prefixed("app%")).await.unwrap()), ["app%"]);
    let semaphores = Query::default().with_kind(distlock_core::Kind::Semaphore);
    assert_eq!(names(locks.inspect(&semaphores).await.unwrap()), [""; 0]);
}

/// `doctor` reaches the store and reports something.
pub async fn doctor_reaches_a_working_store<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let findings = locks.doctor().await.expect("doctor");
    assert!(!findings.is_empty(), "doctor reports nothing");
    assert!(!locks.store().is_empty());
}

/// What an application asks without holding anything.
pub async fn a_ping_is_answered_and_holders_and_free_permits_are_told<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    other.ping().await.unwrap();
    let mutex = other.mutex("told");
    assert!(mutex.holder().await.unwrap().is_none());
    let held = one.mutex("told").acquire().await.unwrap();
    let holder = mutex.holder().await.unwrap().expect("it is held");
    assert_eq!(holder.lock_id, *held.lock_id());
    if harness.supports(&one, &LockSpec::permits("told", 4, 1)).await {
        let gpu = other.semaphore("told", 4);
        assert_eq!(gpu.available().await.unwrap(), 4);
        let three = one.semaphore("told", 4).acquire_many(3).await.unwrap();
        assert_eq!((gpu.available().await.unwrap(), gpu.holders().await.unwrap().len()), (1, 1));
        three.release().await.unwrap();
    }
    held.release().await.unwrap();
    assert!(mutex.holder().await.unwrap().is_none());
}
