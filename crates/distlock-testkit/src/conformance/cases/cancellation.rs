//! Nothing leaks: whatever is dropped, and whenever.

use std::future::IntoFuture;
use std::time::Duration;

use distlock_core::Locks;

use crate::conformance::{Fixture, Harness, Polled, poll_at_most};
use crate::history::LockSpec;

/// More awaits than an acquisition has, on a store that answers at once or late.
const MOST_POLLS: u32 = 16;
/// After this long without being woken often enough an acquisition just waits.
const IDLE: Duration = Duration::from_millis(120);

/// All kinds, those included that share.
fn everything(locks: &Locks, name: &str) -> Vec<LockSpec> {
    let mut specs = LockSpec::every_exclusive(locks.capabilities(), name);
    specs.push(LockSpec::read(name));
    specs.push(LockSpec::permits(format!("{name} of many"), 4, 3));
    specs.retain(|spec| spec.is_supported(locks.capabilities()));
    specs
}

/// A free lock: the acquisition is dropped after no poll, after one, after two … until it is through. Each time
/// somebody else can have the lock, although its expiry is far away.
pub async fn an_acquire_dropped_at_any_await_leaves_nothing_held<F: Fixture>(harness: Harness<F>) {
    let (user, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("other");
    for spec in everything(&user, "dropped") {
        for polls in 0..MOST_POLLS {
            match poll_at_most(spec.acquire(&user).into_future(), polls, harness.timing().wait_limit).await {
                Polled::Done(guard) => {
                    // Dropped like the rest: nothing of it may stay either.
                    drop(guard.expect("a grant"));
                }
                Polled::Dropped => {}
                Polled::Idle => panic!("a free {spec:?} was not granted"),
            }
            harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        }
        harness.wait_until_unused(&other, &spec).await;
    }
}

/// A lock that somebody holds: the waiter is dropped at every await. It leaves neither a place in the line nor, when
/// the lock is free, a hold.
pub async fn a_wait_dropped_at_any_await_leaves_no_waiter<F: Fixture>(harness: Harness<F>) {
    let (holder, user, other) = (harness.locks().await, harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("others");
    for spec in everything(&user, "dropped") {
        let exclusive = match &spec {
            LockSpec::Read(name) => LockSpec::write(name),
            spec => spec.clone(),
        };
        let held = harness.acquire(&recorder, &holder, &exclusive).await;
        for polls in 0..MOST_POLLS {
            match poll_at_most(spec.acquire(&user).into_future(), polls, IDLE).await {
                Polled::Done(_) => panic!("{spec:?} was granted while somebody else held it"),
                Polled::Dropped => {}
                Polled::Idle => break,
            }
        }
        harness.wait_for_no_waiters(&other, &spec).await;
        held.release().await.unwrap();
        harness.acquire(&recorder, &other, &exclusive).await.release().await.unwrap();
        harness.wait_until_unused(&other, &spec).await;
    }
}

/// A waiter is dropped in the moment in which the lock becomes free and may already be on its way to it.
pub async fn a_wait_dropped_while_being_granted_releases_the_lock<F: Fixture>(harness: Harness<F>) {
    let (holder, user, other) = (harness.locks().await, harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("others");
    for spec in LockSpec::every_exclusive(user.capabilities(), "passed on") {
        for round in 0..6_u32 {
            let held = harness.acquire(&recorder, &holder, &spec).await;
            let (locks, wanted) = (user.clone(), spec.clone());
            let waiter = tokio::spawn(async move { wanted.acquire(&locks).await });
            harness.wait_for_waiters(&other, &spec, 1).await;
            let release = tokio::spawn(held.release());
            for _ in 0..round * 3 {
                tokio::task::yield_now().await;
            }
            waiter.abort();
            release.await.unwrap().unwrap();
            // Dropped with the grant inside, if it was that far.
            drop(waiter.await);
            harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        }
        harness.wait_until_unused(&other, &spec).await;
    }
}

/// A release that is dropped at every await is finished in the background, long before the expiry.
pub async fn a_release_dropped_at_any_await_completes<F: Fixture>(harness: Harness<F>) {
    let (user, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("other");
    for spec in everything(&user, "released") {
        for polls in 0..6 {
            let guard = spec.acquire(&user).timeout(harness.timing().wait_limit).await.expect("a grant");
            if let Polled::Done(released) =
                poll_at_most(guard.release(), polls, harness.timing().wait_limit).await
            {
                released.expect("a clean release");
            }
            harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        }
        harness.wait_until_unused(&other, &spec).await;
    }
}

/// Dropping a guard releases it: on the runtime, and from a thread that has none.
pub async fn a_guard_dropped_on_any_thread_is_released<F: Fixture>(harness: Harness<F>) {
    let (user, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("both");
    for spec in everything(&user, "let go") {
        drop(harness.acquire(&recorder, &user, &spec).await);
        harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        let taken = harness.acquire(&recorder, &user, &spec).await;
        std::thread::spawn(move || drop(taken)).join().unwrap();
        harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        harness.wait_until_unused(&other, &spec).await;
    }
}

/// Several locks at once, dropped at every await: none of them stays.
pub async fn an_acquire_all_dropped_at_any_await_leaves_nothing_held<F: Fixture>(harness: Harness<F>) {
    let (user, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("other");
    let specs = everything(&user, "one of many");
    // A reader and a writer of one name would wait for each other.
    let specs: Vec<_> = specs.into_iter().filter(|spec| !matches!(spec, LockSpec::Read(_))).collect();
    for polls in 0..3 * MOST_POLLS {
        let all = user.acquire_all(specs.iter().map(LockSpec::request)).into_future();
        let through = match poll_at_most(all, polls, harness.timing().wait_limit).await {
            Polled::Done(guards) => {
                drop(guards.expect("all of them"));
                true
            }
            Polled::Dropped => false,
            Polled::Idle => panic!("free locks were not granted"),
        };
        for spec in &specs {
            harness.acquire(&recorder, &other, spec).await.release().await.unwrap();
        }
        if through {
            break;
        }
    }
    for spec in &specs {
        harness.wait_until_unused(&other, spec).await;
    }
}
