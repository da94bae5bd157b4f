//! Tests of the watcher that need an instance of their own.

use distlock_core::store::{Claim, SessionStore};
use distlock_core::{Kind, LockIds, Resource};
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
