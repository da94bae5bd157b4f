//! Users who give up at random moments: in the end nothing is held and nobody waits, and no file says so.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use distlock_core::store::{Backend, Query};
use distlock_core::{Locks, Request};
use distlock_file::FileStore;
use fastrand::Rng;

use crate::support::{LONG, tree};

const NAMES: [&str; 2] = ["a", "b"];

fn moment(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_micros(rng.u64(0..most))
}

async fn use_it(locks: &Locks, rng: &mut Rng) {
    let name = NAMES[rng.usize(..NAMES.len())];
    let patience = moment(rng, 15_000);
    let asking = match rng.u8(0..6) {
        0 => locks.mutex(name).fair().acquire(),
        1 => locks.rw_lock(name).read(),
        2 => locks.rw_lock(name).write(),
        3 => locks.semaphore(name, 3).acquire_many(rng.u32(1..=3)),
        _ => locks.mutex(name).acquire(),
    };
    if rng.u8(0..8) == 0 {
        let all = locks.acquire_all([Request::fair_mutex("a"), Request::read("b")]);
        let _ = tokio::time::timeout(patience, all.into_future()).await;
        return;
    }
    let Ok(Ok(guard)) = tokio::time::timeout(patience, asking.into_future()).await else { return };
    tokio::time::sleep(moment(rng, 2_000)).await;
    if rng.bool() {
        let _ = tokio::time::timeout(moment(rng, 1_000), guard.release()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_everybody_has_given_up_nothing_is_held_and_nobody_waits() {
    let dir = tempfile::tempdir().unwrap();
    let engines: Vec<Locks> =
        (0..2).map(|_| Locks::new(Backend::session(FileStore::open(dir.path()).unwrap())).unwrap()).collect();
    let mut users = tokio::task::JoinSet::new();
    for seed in 0..12 {
        let (locks, mut rng) = (engines[usize::from(seed % 2 == 0)].clone(), Rng::with_seed(seed));
        users.spawn(async move {
            for _ in 0..40 {
                use_it(&locks, &mut rng).await;
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
    let left = engines[0].inspect(&Query::default()).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    let slots = tree(dir.path());
    let slots: Vec<&String> = slots
        .iter()
        .filter(|path| ["/hold/", "/queue/", "waiting/"].iter().any(|part| path.contains(part)))
        .collect();
    assert!(slots.is_empty(), "{slots:?}");
}
