//! Nothing leaks: whatever is dropped, and whenever.

use std::future::IntoFuture;
use std::time::Duration;

use distlock_core::Locks;

use crate::conformance::{Fixture, Polled, Stage, poll_times};
use crate::history::Want;

/// More awaits than an acquisition has, on a store that answers at once or late.
const MOST_POLLS: u32 = 16;
/// After this long without being woken often enough an acquisition just waits.
const IDLE: Duration = Duration::from_millis(120);

/// All kinds, those included that share.
fn everything(locks: &Locks, name: &str) -> Vec<Want> {
    let mut wants = Want::every_exclusive(locks.capabilities(), name);
    wants.push(Want::read(name));
    wants.push(Want::permits(format!("{name} of many"), 4, 3));
    wants.retain(|want| want.is_offered(locks.capabilities()));
    wants
}

/// A free lock: the acquisition is dropped after no poll, after one, after two … until it is through. Each time
/// somebody else can have the lock, although its expiry is far away.
pub async fn an_acquire_dropped_at_any_await_leaves_nothing_held<F: Fixture>(stage: Stage<F>) {
    let (user, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("other");
    for want in everything(&user, "dropped") {
        for polls in 0..MOST_POLLS {
            match poll_times(want.acquire(&user).into_future(), polls, stage.pace().patience).await {
                Polled::Done(guard) => {
                    // Dropped like the rest: nothing of it may stay either.
                    drop(guard.expect("a grant"));
                }
                Polled::Dropped => {}
                Polled::Idle => panic!("a free {want:?} was not granted"),
            }
            stage.take(&recorder, &other, &want).await.release().await.unwrap();
        }
        stage.until_nothing_is_left(&other, &want).await;
    }
}

/// A lock that somebody holds: the waiter is dropped at every await. It leaves neither a place in the line nor, when
/// the lock is free, a hold.
pub async fn a_wait_dropped_at_any_await_leaves_nobody_waiting<F: Fixture>(stage: Stage<F>) {
    let (holder, user, other) = (stage.locks().await, stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("others");
    for want in everything(&user, "dropped") {
        let exclusive = match &want {
            Want::Read(name) => Want::write(name),
            want => want.clone(),
        };
        let held = stage.take(&recorder, &holder, &exclusive).await;
        for polls in 0..MOST_POLLS {
            match poll_times(want.acquire(&user).into_future(), polls, IDLE).await {
                Polled::Done(_) => panic!("{want:?} was granted while somebody else held it"),
                Polled::Dropped => {}
                Polled::Idle => break,
            }
        }
        stage.until_nobody_waits(&other, &want).await;
        held.release().await.unwrap();
        stage.take(&recorder, &other, &exclusive).await.release().await.unwrap();
        stage.until_nothing_is_left(&other, &want).await;
    }
}

/// A waiter is dropped in the moment in which the lock becomes free and may already be on its way to it.
pub async fn a_wait_dropped_while_it_is_being_granted_passes_the_lock_on<F: Fixture>(stage: Stage<F>) {
    let (holder, user, other) = (stage.locks().await, stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("others");
    for want in Want::every_exclusive(user.capabilities(), "passed on") {
        for round in 0..6_u32 {
            let held = stage.take(&recorder, &holder, &want).await;
            let (locks, wanted) = (user.clone(), want.clone());
            let waiter = tokio::spawn(async move { wanted.acquire(&locks).await });
            stage.until_waiting(&other, &want, 1).await;
            let release = tokio::spawn(held.release());
            for _ in 0..round * 3 {
                tokio::task::yield_now().await;
            }
            waiter.abort();
            release.await.unwrap().unwrap();
            // Dropped with the grant inside, if it was that far.
            drop(waiter.await);
            stage.take(&recorder, &other, &want).await.release().await.unwrap();
        }
        stage.until_nothing_is_left(&other, &want).await;
    }
}

/// A release that is dropped at every await is finished in the background, long before the expiry.
pub async fn a_release_dropped_half_way_is_finished<F: Fixture>(stage: Stage<F>) {
    let (user, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("other");
    for want in everything(&user, "released") {
        for polls in 0..6 {
            let guard = want.acquire(&user).timeout(stage.pace().patience).await.expect("a grant");
            if let Polled::Done(released) = poll_times(guard.release(), polls, stage.pace().patience).await {
                released.expect("a clean release");
            }
            stage.take(&recorder, &other, &want).await.release().await.unwrap();
        }
        stage.until_nothing_is_left(&other, &want).await;
    }
}

/// Dropping a guard releases it: on the runtime, and from a thread that has none.
pub async fn a_dropped_guard_is_released_from_wherever_it_is_dropped<F: Fixture>(stage: Stage<F>) {
    let (user, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("both");
    for want in everything(&user, "let go") {
        drop(stage.take(&recorder, &user, &want).await);
        stage.take(&recorder, &other, &want).await.release().await.unwrap();
        let taken = stage.take(&recorder, &user, &want).await;
        std::thread::spawn(move || drop(taken)).join().unwrap();
        stage.take(&recorder, &other, &want).await.release().await.unwrap();
        stage.until_nothing_is_left(&other, &want).await;
    }
}

/// Several locks at once, dropped at every await: none of them stays.
pub async fn an_acquire_all_dropped_at_any_await_leaves_nothing_held<F: Fixture>(stage: Stage<F>) {
    let (user, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("other");
    let wants = everything(&user, "one of many");
    // A reader and a writer of one name would wait for each other.
    let wants: Vec<_> = wants.into_iter().filter(|want| !matches!(want, Want::Read(_))).collect();
    for polls in 0..3 * MOST_POLLS {
        let all = user.acquire_all(wants.iter().map(Want::request)).into_future();
        let through = match poll_times(all, polls, stage.pace().patience).await {
            Polled::Done(guards) => {
                drop(guards.expect("all of them"));
                true
            }
            Polled::Dropped => false,
            Polled::Idle => panic!("free locks were not granted"),
        };
        for want in &wants {
            stage.take(&recorder, &other, want).await.release().await.unwrap();
        }
        if through {
            break;
        }
    }
    for want in &wants {
        stage.until_nothing_is_left(&other, want).await;
    }
}
