//! A holder that dies frees the lock at its expiry, or at once; a waiter that dies blocks nobody.

use std::pin::pin;
use std::time::{Duration, Instant};

use crate::actors::{Contention, TestOptions};
use crate::conformance::{Fixture, Harness};
use crate::history::{LockSpec, Recorder};

/// The options of a holder that is to be killed. Where a crash frees at once, its expiry is out of reach: whatever
/// frees the lock was not that.
fn mortal<F: Fixture>(harness: &Harness<F>, frees_on_crash: bool) -> TestOptions {
    if frees_on_crash { harness.long_lease() } else { harness.short_lease() }
}

/// A waiter in another process has the lock soon after its holder was killed.
pub async fn a_killed_holder_frees_the_lock_for_a_waiter<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let specs = LockSpec::every_exclusive(locks.capabilities(), "orphaned");
    harness
        .for_each(specs, |harness, spec| async move {
            let locks = harness.locks().await;
            let frees_on_crash = locks.capabilities().frees_on_crash;
            let holder = harness.actor("holder", mortal(&harness, frees_on_crash));
            let before = harness.within("a grant", holder.acquire(1, &spec)).await;
            let waiter = harness.actor("waiter", harness.long_lease());
            let mut waiting = pin!(waiter.acquire(1, &spec));
            let early = tokio::select! {
                biased;
                after = &mut waiting => Some(after),
                () = harness.wait_for_waiters(&locks, &spec, 1) => None,
            };
            let killed = Instant::now();
            holder.kill().await;
            if let Some(after) = early {
                // The machine stood still for so long that the holder lost it alive; the history tells if it did not. Of
                // what a kill does nothing is shown then.
                println!("{spec:?} was lost before its holder was killed");
                assert!(after > before, "the token of {spec:?} fell from {before} to {after}");
                return waiter.shutdown().await;
            }
            let after = harness.within(format!("an heir of {spec:?}"), waiting).await;
            let noticed = match (harness.timing().crash_detected_within, frees_on_crash) {
                (Some(noticed), _) => noticed,
                (None, true) => Duration::ZERO,
                (None, false) => harness.timing().expiry,
            };
            let late = killed.elapsed().saturating_sub(noticed);
            assert!(
                late < harness.timing().wait_limit / 4,
                "{spec:?} was free, and its waiter came {late:?} late"
            );
            assert!(after > before, "the token of {spec:?} fell from {before} to {after} with a crash");
            waiter.shutdown().await;
        })
        .await;
}

/// Permits and readers: each of them dies, and everything can be had again.
pub async fn killed_readers_and_permit_holders_free_their_share<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let recorder = harness.recorder("heir");
    let options = mortal(&harness, locks.capabilities().frees_on_crash);
    let parts = [
        (LockSpec::read("read by the dead"), LockSpec::write("read by the dead")),
        (LockSpec::permits("in dead hands", 3, 1), LockSpec::permits("in dead hands", 3, 3)),
    ];
    for (part, whole) in parts {
        if !harness.supports(&locks, &part).await {
            continue;
        }
        let mut holders = Vec::new();
        for _ in 0..2 {
            let holder = harness.actor("holder", options);
            harness.within("a grant", holder.acquire(1, &part)).await;
            holders.push(holder);
        }
        assert!(recorder.try_acquire(&locks, &whole).await.unwrap().is_none());
        for holder in holders {
            holder.kill().await;
        }
        harness.acquire(&recorder, &locks, &whole).await.release().await.unwrap();
    }
}

/// The one who would be next dies while it waits. Those behind it get their turn all the same.
pub async fn a_killed_waiter_does_not_block_the_queue<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let specs = LockSpec::every_exclusive(locks.capabilities(), "waited for");
    harness
        .for_each(specs, |harness, spec| async move {
            let recorder = harness.recorder("taker");
            let (holder, next) = (harness.locks().await, harness.locks().await);
            let held = harness.acquire(&recorder, &holder, &spec).await;
            let doomed = harness.actor("doomed", harness.short_lease());
            let waiting = doomed.acquire(1, &spec);
            harness.wait_for_waiters(&holder, &spec, 1).await;
            doomed.kill().await;
            drop(waiting);
            let heir = tokio::spawn(take(harness.clone(), recorder, next, spec.clone()));
            held.release().await.unwrap();
            harness.within(format!("a way past a dead waiter for {spec:?}"), heir).await.unwrap();
        })
        .await;
}

async fn take<F: Fixture>(
    harness: Harness<F>,
    recorder: std::sync::Arc<Recorder>,
    locks: distlock_core::Locks,
    spec: LockSpec,
) {
    harness.acquire(&recorder, &locks, &spec).await.release().await.unwrap();
}

/// Processes are killed in the middle of taking and releasing, wherever that is. The others get all their turns, and
/// the history shows neither an overlap nor a token that went back.
pub async fn processes_killed_while_contending_do_no_harm<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let case = |harness: Harness<F>, spec: LockSpec| async move {
        let options = mortal(&harness, harness.locks().await.capabilities().frees_on_crash);
        let contention = |rounds| Contention::over([spec.clone()], rounds);
        let survivors = [
            harness.actor("survivor", harness.long_lease()),
            harness.actor("survivor", harness.long_lease()),
        ];
        let turns = survivors.each_ref().map(|actor| actor.contend(contention(20)));
        for lives in [20, 60] {
            let victim = harness.actor("victim", options);
            let turn = victim.contend(contention(u32::MAX));
            tokio::time::sleep(Duration::from_millis(lives)).await;
            victim.kill().await;
            drop(turn);
        }
        for turn in turns {
            harness.within(format!("the survivors' turns at {spec:?}"), turn).await;
        }
        for survivor in survivors {
            survivor.shutdown().await;
        }
    };
    harness.for_each(LockSpec::every_exclusive(locks.capabilities(), "fought for"), case).await;
}

/// A runtime that ends takes its engine with it, without a word to the store: no worse than a crash.
pub async fn a_runtime_that_ends_is_no_worse_than_a_crash<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let spec = LockSpec::mutex("of a lost runtime");
    let options = mortal(&harness, locks.capabilities().frees_on_crash);
    let taker = {
        let (harness, spec) = (harness.clone(), spec.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let guard = runtime.block_on(async {
                let locks = harness.locks_with(options).await;
                spec.acquire(&locks).timeout(harness.timing().wait_limit).await.expect("a grant")
            });
            drop(runtime);
            guard
        }
    };
    let guard = tokio::task::spawn_blocking(taker).await.unwrap();
    let recorder = harness.recorder("heir");
    let token = guard.token();
    if !harness.has_leases().await {
        // The session lives with the guard, which is the last to hold on to its engine.
        drop(guard);
        let next = harness.acquire(&recorder, &locks, &spec).await;
        assert!(next.token() > token);
        return next.release().await.unwrap();
    }
    let next = harness.acquire(&recorder, &locks, &spec).await;
    assert!(guard.is_lost(), "a guard of a runtime that is gone still says that it is held");
    assert!(next.token() > token);
    // Neither a runtime nor an engine is left: dropping it must do no harm.
    drop(guard);
    assert!(next.check_held());
}
