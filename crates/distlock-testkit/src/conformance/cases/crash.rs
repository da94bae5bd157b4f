//! A holder that dies frees the lock at its expiry, or at once; a waiter that dies blocks nobody.

use std::pin::pin;
use std::time::{Duration, Instant};

use crate::actors::{Contest, Terms};
use crate::conformance::{Fixture, Stage};
use crate::history::{Recorder, Want};

/// The terms of a holder that is to be killed. Where a crash frees at once, its expiry is out of reach: whatever
/// frees the lock was not that.
fn mortal<F: Fixture>(stage: &Stage<F>, frees_on_crash: bool) -> Terms {
    if frees_on_crash { stage.lasting() } else { stage.expiring() }
}

/// A waiter in another process has the lock soon after its holder was killed.
pub async fn a_killed_holder_frees_the_lock_for_a_waiter<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    let wants = Want::every_exclusive(locks.capabilities(), "orphaned");
    stage
        .for_each(wants, |stage, want| async move {
            let locks = stage.locks().await;
            let frees_on_crash = locks.capabilities().frees_on_crash;
            let holder = stage.actor("holder", mortal(&stage, frees_on_crash));
            let before = stage.within("a grant", holder.take(1, &want)).await;
            let waiter = stage.actor("waiter", stage.lasting());
            let mut waiting = pin!(waiter.take(1, &want));
            let early = tokio::select! {
                biased;
                after = &mut waiting => Some(after),
                () = stage.until_waiting(&locks, &want, 1) => None,
            };
            let killed = Instant::now();
            holder.kill().await;
            if let Some(after) = early {
                // The machine stood still for so long that the holder lost it alive; the history tells if it did not. Of
                // what a kill does nothing is shown then.
                println!("{want:?} was lost before its holder was killed");
                assert!(after > before, "the token of {want:?} fell from {before} to {after}");
                return waiter.leave().await;
            }
            let after = stage.within(format!("an heir of {want:?}"), waiting).await;
            let noticed = match (stage.pace().crash_noticed_within, frees_on_crash) {
                (Some(noticed), _) => noticed,
                (None, true) => Duration::ZERO,
                (None, false) => stage.pace().expiry,
            };
            let late = killed.elapsed().saturating_sub(noticed);
            assert!(late < stage.pace().patience / 4, "{want:?} was free, and its waiter came {late:?} late");
            assert!(after > before, "the token of {want:?} fell from {before} to {after} with a crash");
            waiter.leave().await;
        })
        .await;
}

/// Permits and readers: each of them dies, and everything can be had again.
pub async fn killed_holders_of_a_part_free_it<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    let recorder = stage.recorder("heir");
    let terms = mortal(&stage, locks.capabilities().frees_on_crash);
    let parts = [
        (Want::read("read by the dead"), Want::write("read by the dead")),
        (Want::permits("in dead hands", 3, 1), Want::permits("in dead hands", 3, 3)),
    ];
    for (part, whole) in parts {
        if !stage.offers(&locks, &part).await {
            continue;
        }
        let mut holders = Vec::new();
        for _ in 0..2 {
            let holder = stage.actor("holder", terms);
            stage.within("a grant", holder.take(1, &part)).await;
            holders.push(holder);
        }
        assert!(recorder.try_take(&locks, &whole).await.unwrap().is_none());
        for holder in holders {
            holder.kill().await;
        }
        stage.take(&recorder, &locks, &whole).await.release().await.unwrap();
    }
}

/// The one who would be next dies while it waits. Those behind it get their turn all the same.
pub async fn a_killed_waiter_blocks_nobody<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    let wants = Want::every_exclusive(locks.capabilities(), "waited for");
    stage
        .for_each(wants, |stage, want| async move {
            let recorder = stage.recorder("taker");
            let (holder, next) = (stage.locks().await, stage.locks().await);
            let held = stage.take(&recorder, &holder, &want).await;
            let doomed = stage.actor("doomed", stage.expiring());
            let waiting = doomed.take(1, &want);
            stage.until_waiting(&holder, &want, 1).await;
            doomed.kill().await;
            drop(waiting);
            let heir = tokio::spawn(take(stage.clone(), recorder, next, want.clone()));
            held.release().await.unwrap();
            stage.within(format!("a way past a dead waiter for {want:?}"), heir).await.unwrap();
        })
        .await;
}

async fn take<F: Fixture>(
    stage: Stage<F>,
    recorder: std::sync::Arc<Recorder>,
    locks: distlock_core::Locks,
    want: Want,
) {
    stage.take(&recorder, &locks, &want).await.release().await.unwrap();
}

/// Processes are killed in the middle of taking and releasing, wherever that is. The others get all their turns, and
/// the history shows neither an overlap nor a token that went back.
pub async fn processes_killed_in_the_middle_of_a_contest_harm_nobody<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    let play = |stage: Stage<F>, want: Want| async move {
        let terms = mortal(&stage, stage.locks().await.capabilities().frees_on_crash);
        let contest = |rounds| Contest::over([want.clone()], rounds);
        let survivors = [stage.actor("survivor", stage.lasting()), stage.actor("survivor", stage.lasting())];
        let turns = survivors.each_ref().map(|actor| actor.contend(contest(20)));
        for lives in [20, 60] {
            let victim = stage.actor("victim", terms);
            let turn = victim.contend(contest(u32::MAX));
            tokio::time::sleep(Duration::from_millis(lives)).await;
            victim.kill().await;
            drop(turn);
        }
        for turn in turns {
            stage.within(format!("the survivors' turns at {want:?}"), turn).await;
        }
        for survivor in survivors {
            survivor.leave().await;
        }
    };
    stage.for_each(Want::every_exclusive(locks.capabilities(), "fought for"), play).await;
}

/// A runtime that ends takes its engine with it, without a word to the store: no worse than a crash.
pub async fn a_runtime_that_ends_leaves_no_more_than_a_crash_does<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    let want = Want::mutex("of a lost runtime");
    let terms = mortal(&stage, locks.capabilities().frees_on_crash);
    let taker = {
        let (stage, want) = (stage.clone(), want.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let guard = runtime.block_on(async {
                let locks = stage.locks_on(terms).await;
                want.acquire(&locks).timeout(stage.pace().patience).await.expect("a grant")
            });
            drop(runtime);
            guard
        }
    };
    let guard = tokio::task::spawn_blocking(taker).await.unwrap();
    let recorder = stage.recorder("heir");
    let token = guard.token();
    if !stage.has_leases().await {
        // The session lives with the guard, which is the last to hold on to its engine.
        drop(guard);
        let next = stage.take(&recorder, &locks, &want).await;
        assert!(next.token() > token);
        return next.release().await.unwrap();
    }
    let next = stage.take(&recorder, &locks, &want).await;
    assert!(guard.is_lost(), "a guard of a runtime that is gone still says that it is held");
    assert!(next.token() > token);
    // Neither a runtime nor an engine is left: dropping it must do no harm.
    drop(guard);
    assert!(next.look());
}
