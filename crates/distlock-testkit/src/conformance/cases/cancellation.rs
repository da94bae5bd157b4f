//! Nothing leaks when a future or a guard is dropped, at any await.

use std::future::IntoFuture;
use std::time::Duration;

use distlock_core::Locks;

use crate::conformance::{Fixture, Harness, Polled, poll_at_most};
use crate::history::LockSpec;

/// More than the number of awaits in an acquisition.
const MOST_POLLS: u32 = 16;
/// An acquisition that is not woken for this long is waiting for the holder.
const IDLE: Duration = Duration::from_millis(120);

/// All kinds of locks, shared ones included.
fn everything(locks: &Locks, name: &str) -> Vec<LockSpec> {
    let mut specs = LockSpec::every_exclusive(locks.capabilities(), name);
    specs.push(LockSpec::read(name));
    specs.push(LockSpec::permits(format!("{name} of many"), 4, 3));
    specs.retain(|spec| spec.is_supported(locks.capabilities()));
    specs
}

/// A free lock: the acquisition is dropped after zero, one, two … polls. Each time another client can acquire the lock long
/// before the expiry.
pub async fn an_acquire_dropped_at_any_await_leaves_nothing_held<F: Fixture>(harness: Harness<F>) {
    let (user, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("other");
    for spec in everything(&user, "dropped") {
        for polls in 0..MOST_POLLS {
            match poll_at_most(spec.acquire(&user).into_future(), polls, harness.timing().wait_limit).await {
                Polled::Done(guard) => {
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

/// A held lock: the waiter is dropped at every await. It leaves neither a queue entry nor a grant.
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
                Polled::Done(_) => panic!("{spec:?} was granted while another client held it"),
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

/// A waiter is dropped while the lock becomes free, when its grant may already be in flight.
pub async fn a_wait_dropped_while_being_granted_releases_the_lock<F: Fixture>(harness: Harness<F>) {
    let (holder, user, other) = (harness.locks().await, harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("others");
    for spec in LockSpec::every_exclusive(user.capabilities(), "granted to a dropped waiter") {
        for round in 0..6_u32 {
            let held = harness.acquire(&recorder, &holder, &spec).await;
            let (locks, waited) = (user.clone(), spec.clone());
            let waiter = tokio::spawn(async move { waited.acquire(&locks).await });
            harness.wait_for_waiters(&other, &spec, 1).await;
            let release = tokio::spawn(held.release());
            for _ in 0..round * 3 {
                tokio::task::yield_now().await;
            }
            waiter.abort();
            release.await.unwrap().unwrap();
            // This drops the guard, if the grant arrived before the abort.
            drop(waiter.await);
            harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        }
        harness.wait_until_unused(&other, &spec).await;
    }
}

/// A release dropped at any await completes in the background, long before the expiry.
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

/// Dropping a guard releases it, on the runtime and on a thread without one.
pub async fn a_guard_dropped_on_any_thread_is_released<F: Fixture>(harness: Harness<F>) {
    let (user, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("both");
    for spec in everything(&user, "dropped anywhere") {
        drop(harness.acquire(&recorder, &user, &spec).await);
        harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        let guard = harness.acquire(&recorder, &user, &spec).await;
        std::thread::spawn(move || drop(guard)).join().unwrap();
        harness.acquire(&recorder, &other, &spec).await.release().await.unwrap();
        harness.wait_until_unused(&other, &spec).await;
    }
}

/// `acquire_all` dropped at any await leaves none of its locks held.
pub async fn an_acquire_all_dropped_at_any_await_leaves_nothing_held<F: Fixture>(harness: Harness<F>) {
    let (user, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("other");
    let specs = everything(&user, "one of many");
    // A reader and a writer of one name would wait for each other.
    let specs: Vec<_> = specs.into_iter().filter(|spec| !matches!(spec, LockSpec::Read(_))).collect();
    for polls in 0..3 * MOST_POLLS {
        let all = user.acquire_all(specs.iter().map(LockSpec::request)).into_future();
        let done = match poll_at_most(all, polls, harness.timing().wait_limit).await {
            Polled::Done(guards) => {
                drop(guards.expect("all locks"));
                true
            }
            Polled::Dropped => false,
            Polled::Idle => panic!("free locks were not granted"),
        };
        for spec in &specs {
            harness.acquire(&recorder, &other, spec).await.release().await.unwrap();
        }
        if done {
            break;
        }
    }
    for spec in &specs {
        harness.wait_until_unused(&other, spec).await;
    }
}
