//! The lock of a killed holder becomes free at its expiry, or at once; a killed waiter blocks no other.

use std::pin::pin;
use std::time::{Duration, Instant};

use crate::actors::{Contention, TestOptions};
use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// The options of a holder that will be killed. On a store that frees on crash the expiry is long, so that it cannot be the
/// reason why the lock becomes free.
fn options_of_victim<F: Fixture>(harness: &Harness<F>, frees_on_crash: bool) -> TestOptions {
    if frees_on_crash { harness.long_lease() } else { harness.short_lease() }
}

/// A waiter in another process acquires the lock soon after the holder was killed.
pub async fn a_killed_holder_frees_the_lock_for_a_waiter<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let specs = LockSpec::every_exclusive(locks.capabilities(), "orphaned");
    harness
        .for_each(specs, |harness, spec| async move {
            let locks = harness.locks().await;
            let frees_on_crash = locks.capabilities().frees_on_crash;
            let holder = harness.actor("holder", options_of_victim(&harness, frees_on_crash));
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
                // The machine stalled for longer than the expiry, so the holder lost the lock before the kill. The history
                // checks that it did; the case proves nothing about kills then.
                println!("{spec:?} was lost before its holder was killed");
                assert!(after > before, "the token of {spec:?} fell from {before} to {after}");
                return waiter.shutdown().await;
            }
            let after = harness.within(format!("the next holder of {spec:?}"), waiting).await;
            let detected = match (harness.timing().crash_detected_within, frees_on_crash) {
                (Some(detected), _) => detected,
                (None, true) => Duration::ZERO,
                (None, false) => harness.timing().expiry,
            };
            let late = killed.elapsed().saturating_sub(detected);
            assert!(
                late < harness.timing().wait_limit / 4,
                "the waiter for {spec:?} was granted {late:?} after it became free"
            );
            assert!(after > before, "the token of {spec:?} fell from {before} to {after} with a crash");
            waiter.shutdown().await;
        })
        .await;
}

/// Killed readers and permit holders: the whole capacity becomes free again.
pub async fn killed_readers_and_permit_holders_free_their_share<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let recorder = harness.recorder("next");
    let options = options_of_victim(&harness, locks.capabilities().frees_on_crash);
    let parts = [
        (LockSpec::read("killed readers"), LockSpec::write("killed readers")),
        (LockSpec::permits("killed permits", 3, 1), LockSpec::permits("killed permits", 3, 3)),
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

/// The queue head is killed while it waits. The waiters behind it are served.
pub async fn a_killed_waiter_does_not_block_the_queue<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let specs = LockSpec::every_exclusive(locks.capabilities(), "waited for");
    harness
        .for_each(specs, |harness, spec| async move {
            let recorder = harness.recorder("taker");
            let (holder, next) = (harness.locks().await, harness.locks().await);
            let held = harness.acquire(&recorder, &holder, &spec).await;
            let victim = harness.actor("victim", harness.short_lease());
            let waiting = victim.acquire(1, &spec);
            harness.wait_for_waiters(&holder, &spec, 1).await;
            victim.kill().await;
            drop(waiting);
            let next = harness.spawn_acquire(&recorder, &next, &spec);
            held.release().await.unwrap();
            let next =
                harness.within(format!("a grant of {spec:?} past a killed waiter"), next).await.unwrap();
            next.release().await.unwrap();
        })
        .await;
}

/// Processes are killed at arbitrary points while they contend. The survivors finish all their rounds, and the history shows
/// neither an overlap nor a decreasing token.
pub async fn processes_killed_while_contending_do_no_harm<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let case = |harness: Harness<F>, spec: LockSpec| async move {
        let options = options_of_victim(&harness, harness.locks().await.capabilities().frees_on_crash);
        let contention = |rounds| Contention::over([spec.clone()], rounds);
        let survivors = [
            harness.actor("survivor", harness.long_lease()),
            harness.actor("survivor", harness.long_lease()),
        ];
        let rounds = survivors.each_ref().map(|actor| actor.contend(contention(20)));
        for lives in [20, 60] {
            let victim = harness.actor("victim", options);
            let contending = victim.contend(contention(u32::MAX));
            tokio::time::sleep(Duration::from_millis(lives)).await;
            victim.kill().await;
            drop(contending);
        }
        for rounds in rounds {
            harness.within(format!("the survivors' rounds on {spec:?}"), rounds).await;
        }
        for survivor in survivors {
            survivor.shutdown().await;
        }
    };
    harness.for_each(LockSpec::every_exclusive(locks.capabilities(), "contended"), case).await;
}

/// A runtime ends together with its engine and without a release. That is no worse than a crash.
pub async fn a_runtime_that_ends_is_no_worse_than_a_crash<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let spec = LockSpec::mutex("ended runtime");
    let options = options_of_victim(&harness, locks.capabilities().frees_on_crash);
    let acquire = {
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
    let guard = tokio::task::spawn_blocking(acquire).await.unwrap();
    let recorder = harness.recorder("next");
    let token = guard.token();
    if !harness.has_leases().await {
        // The guard keeps the engine and its session alive.
        drop(guard);
        let next = harness.acquire(&recorder, &locks, &spec).await;
        assert!(next.token() > token);
        return next.release().await.unwrap();
    }
    let next = harness.acquire(&recorder, &locks, &spec).await;
    assert!(guard.is_lost(), "a guard whose runtime has ended reports held");
    assert!(next.token() > token);
    // Without a runtime and an engine, the drop must do no harm.
    drop(guard);
    assert!(next.check_held());
}
