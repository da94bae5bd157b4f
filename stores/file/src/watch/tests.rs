//! Tests of the watcher that need an instance of their own.

use distlock_core::store::{Claim, Lease, SessionStore};
use distlock_core::{FencingToken, Kind, LockIds, Resource};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::store::StoreState;
use crate::{FileConfig, FileStore};

#[tokio::test]
async fn a_removed_lock_file_is_detected_soon_although_the_user_has_no_watch_left() {
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let dir = tempfile::tempdir().unwrap();
        let state = StoreState::new(FileConfig::new(dir.path()), true);
        state.watcher.0.lock().inotify = Some(Arc::new(Inotify::without_watches().unwrap()));
        let store = FileStore::from_state(state);
        let claim = Claim::new(Resource::new(kind, "x").unwrap(), LockIds::new("a").next(), TICK);
        let hold = store.acquire(&claim, &CancellationToken::new()).await.unwrap().unwrap();
        // Longer than it takes for a hold to be watched.
        tokio::time::sleep(UNWATCHED * 5).await;
        std::fs::remove_dir_all(dir.path()).unwrap();
        let start = Instant::now();
        hold.session.wait_for_end().await;
        println!("{kind}: detected after {:?}", start.elapsed());
        assert!(start.elapsed() < TICK / 2, "{kind}: {:?}", start.elapsed());
    }
}

async fn until(condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), met).await.is_ok(), "it does not happen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_granted_the_lock_leaves_no_file_no_watch_and_no_watcher_behind() {
    let dir = tempfile::tempdir().unwrap();
    let state = StoreState::new(FileConfig::new(dir.path()), true);
    let (watcher, waiters) = (state.watcher.clone(), state.layout.waiters("x"));
    let store = FileStore::from_state(state);
    let ids = LockIds::new("a");
    let claim = || Claim::new(Resource::new(Kind::Mutex, "x").unwrap(), ids.next(), TICK);
    let (first, second) = (claim(), claim());
    store.acquire(&first, &CancellationToken::new()).await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(&second, &CancellationToken::new()).await }
    });
    until(|| !watcher.0.lock().watches.is_empty()).await;
    assert!(waiters.exists());
    store.release(&Lease::of(&first, FencingToken::new(1))).await.unwrap();
    waiting.await.unwrap().unwrap().unwrap();
    until(|| watcher.0.lock().watches.is_empty() && !waiters.exists()).await;
    // What is left behind refers to the watcher. It must not keep it alive.
    watcher.drop_soon(watcher.clone());
    let inner = Arc::downgrade(&watcher.0);
    drop((watcher, store));
    until(|| inner.strong_count() == 0).await;
}

#[tokio::test]
async fn what_a_waiter_leaves_behind_is_dropped_at_once_where_there_is_no_thread() {
    let layout = Arc::new(Layout::new("unused".into(), crate::config::Access::default()));
    let watcher = Watcher::new(true, &layout, &Holds::new());
    let left = Arc::new(());
    watcher.drop_soon(Arc::clone(&left));
    assert_eq!(Arc::strong_count(&left), 1);
}
