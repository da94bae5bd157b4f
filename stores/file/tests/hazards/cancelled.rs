//! Hazard: an acquisition that is cancelled at a random moment leaves a hold, a waiter or a file.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use distlock_core::store::{Backend, Query};
use distlock_core::{Locks, Request};
use fastrand::Rng;

use crate::support::{LONG, open, tree, until};

const NAMES: [&str; 2] = ["a", "b"];

fn moment(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_micros(rng.u64(0..most))
}

async fn acquire_and_cancel(locks: &Locks, rng: &mut Rng) {
    let name = NAMES[rng.usize(..NAMES.len())];
    let limit = moment(rng, 15_000);
    let asking = match rng.u8(0..6) {
        0 => locks.mutex(name).fair().acquire(),
        1 => locks.rw_lock(name).read(),
        2 => locks.rw_lock(name).write(),
        3 => locks.semaphore(name, 3).acquire_many(rng.u32(1..=3)),
        _ => locks.mutex(name).acquire(),
    };
    if rng.u8(0..8) == 0 {
        let all = locks.acquire_all([Request::fair_mutex("a"), Request::read("b")]);
        let _ = tokio::time::timeout(limit, all.into_future()).await;
        return;
    }
    let Ok(Ok(guard)) = tokio::time::timeout(limit, asking.into_future()).await else { return };
    tokio::time::sleep(moment(rng, 2_000)).await;
    if rng.bool() {
        let _ = tokio::time::timeout(moment(rng, 1_000), guard.release()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_acquisitions_leave_no_holder_no_waiter_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut engines: Vec<Locks> = Vec::new();
    for _ in 0..2 {
        engines.push(Locks::new(Backend::session(open(dir.path()).await)).unwrap());
    }
    let mut users = tokio::task::JoinSet::new();
    for seed in 0..12 {
        let (locks, mut rng) = (engines[usize::from(seed % 2 == 0)].clone(), Rng::with_seed(seed));
        users.spawn(async move {
            for _ in 0..40 {
                acquire_and_cancel(&locks, &mut rng).await;
            }
        });
    }
    while let Some(ended) = users.join_next().await {
        ended.unwrap();
    }
    for locks in &engines {
        let begun = Instant::now();
        locks.shutdown().await.unwrap();
        assert!(begun.elapsed() < LONG / 6, "{:?}", begun.elapsed());
    }
    // A waiter that was granted leaves its file to another thread, which deletes it a moment later.
    until("nothing is left", async || {
        let is_slot =
            |path: &String| ["/hold/", "/queue/", "waiting/"].iter().any(|part| path.contains(part));
        engines[0].inspect(&Query::default()).await.unwrap().is_empty()
            && !tree(dir.path()).iter().any(is_slot)
    })
    .await;
}
