//! Stores that cannot push: a release wakes the next waiter of the same process.

use crate::common::{MS, SECOND, World, options, until};
use crate::recording_store::Recorder;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn where_the_store_cannot_push_a_release_wakes_the_next_waiter_of_the_process() {
    let world = World::new();
    let mut store = Recorder::new(&world.store);
    store.push = false;
    let (locks, ..) = store.locks(options().busy_wait_sleep(20 * SECOND, 20 * SECOND).unwrap());
    // The time left on the lease, after which a waiter asks again in any case, is long as well.
    let held =
        locks.semaphore("a", 1).options(options().expiry(900 * SECOND).unwrap()).acquire().await.unwrap();
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.semaphore("a", 1).acquire().await.unwrap() })
    };
    until(|| async { store.attempts() == 2 }).await;
    tokio::time::sleep(SECOND).await;
    let begun = Instant::now();
    held.release().await.unwrap();
    let _next = waiter.await.unwrap();
    assert!(begun.elapsed() < 5 * MS, "{:?}", begun.elapsed());
}
