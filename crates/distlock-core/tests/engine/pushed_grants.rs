//! A grant that the store pushes to the queue head: when the waiter accepts it, and when it asks the store instead.

use std::future::IntoFuture;
use std::time::Duration;

use crate::common::{MS, SECOND, World, options, until};
use crate::recording_store::Recorder;
use distlock_core::store::{PushedGrant, Wake};
use distlock_core::{FencingToken, Guard, Locks, Options, Result};
use tokio::task::JoinHandle;

const WINDOW: Duration = SECOND;
/// One per cent of the window and two milliseconds.
const MARGIN: Duration = Duration::from_millis(12);
const TOKEN: FencingToken = FencingToken::new(1 << 50);

struct Scene {
    world: World,
    recorder: Recorder,
    waiter: JoinHandle<Result<Guard>>,
    _theirs: (Locks, Guard),
}

/// A writer that has just queued behind a reader, and gets only the wake-ups that the test sends.
async fn queued(options: Options) -> Scene {
    let world = World::new();
    let theirs = world.locks();
    let reader = theirs.rw_lock("a").read().await.unwrap();
    let recorder = Recorder::new(&world.store);
    let (ours, _clock, _faults) = recorder.locks(options);
    let waiter = tokio::spawn(ours.rw_lock("a").write().into_future());
    until(|| async { recorder.is_subscribed() }).await;
    // The message counts for the newest attempt, so the test begins right after one.
    let before = recorder.attempts();
    while recorder.attempts() == before {
        tokio::time::sleep(MS).await;
    }
    Scene { world, recorder, waiter, _theirs: (theirs, reader) }
}

impl Scene {
    async fn push(&self, attempt: u64, after: Duration) {
        let grant = PushedGrant::new(TOKEN, WINDOW).with_attempt(attempt).with_after(after);
        self.recorder.wake(&Wake::granted(self.recorder.last().lock_id, grant));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    fn attempt(&self) -> u64 {
        self.recorder.last().waiting.unwrap().attempt
    }

    /// Whether the waiter asked the store instead of accepting the grant.
    async fn asked(&self, before: usize) -> bool {
        assert!(!self.waiter.is_finished(), "the pushed grant was accepted");
        self.recorder.attempts() == before + 1
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_with_less_than_half_of_its_window_left_is_confirmed_by_the_store() {
    // The attempt was sent at most a millisecond before the test began.
    for (wait, believed) in [(0, true), (400, true), (486, true), (489, false), (600, false)] {
        let scene = queued(options()).await;
        tokio::time::sleep(wait * MS).await;
        let before = scene.recorder.attempts();
        scene.push(scene.attempt(), Duration::ZERO).await;
        if believed {
            let guard = scene.waiter.await.unwrap().unwrap();
            assert_eq!(guard.token(), TOKEN);
            let left = guard.time_left().unwrap();
            let exact = WINDOW - MARGIN - wait * MS;
            assert!(left <= exact && left + MS >= exact, "{left:?} instead of {exact:?}");
        } else {
            assert!(scene.asked(before).await, "after {wait} ms");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_counts_from_its_lower_bound_and_never_from_the_future() {
    for (after, from) in [(100 * MS, 100 * MS), (300 * MS, 300 * MS), (60 * SECOND, 300 * MS)] {
        let scene = queued(options()).await;
        tokio::time::sleep(300 * MS).await;
        scene.push(scene.attempt(), after).await;
        let guard = scene.waiter.await.unwrap().unwrap();
        let exact = from + WINDOW - MARGIN - 300 * MS;
        let left = guard.time_left().unwrap();
        assert!(left <= exact && left + MS >= exact, "{left:?} instead of {exact:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_for_an_older_attempt_is_ignored() {
    for off in [-1_i64, 1] {
        let scene = queued(options()).await;
        let before = scene.recorder.attempts();
        scene.push(scene.attempt().checked_add_signed(off).unwrap(), Duration::ZERO).await;
        assert!(scene.asked(before).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_renewal_asks_for_its_whole_expiry_instead_of_a_short_window() {
    let scene = queued(options().auto_extend(false)).await;
    let before = scene.recorder.attempts();
    scene.push(scene.attempt(), Duration::ZERO).await;
    assert!(scene.asked(before).await);
    // An expiry that is no longer than the window needs no renewal.
    let scene = queued(options().expiry(WINDOW).unwrap().auto_extend(false)).await;
    scene.push(scene.attempt(), Duration::ZERO).await;
    assert_eq!(scene.waiter.await.unwrap().unwrap().token(), TOKEN);
    drop(scene.world);
}
