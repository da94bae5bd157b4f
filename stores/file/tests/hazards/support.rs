//! Helpers for all tests.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use distlock_core::store::{Claim, Lease, SessionHold, SessionStore};
use distlock_core::{Kind, LockIds, Resource, Result};
use distlock_file::{FileConfig, FileStore};
use tokio_util::sync::CancellationToken;

/// A test that waits this long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Opens a store with the default options.
pub(crate) async fn open(dir: impl Into<PathBuf>) -> FileStore {
    FileStore::connect(FileConfig::new(dir)).await.unwrap()
}

/// Runs a future in a test that has no runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// A claim with a fresh lock id.
pub(crate) fn claim(kind: Kind, name: &str, weight: u32, capacity: u32) -> Claim {
    Claim::new(
        Resource::new(kind, name).unwrap(),
        LockIds::new(&LockIds::default_label()).next(),
        Duration::from_secs(30),
    )
    .with_weight(weight)
    .with_capacity(capacity)
}

pub(crate) fn mutex(name: &str) -> Claim {
    claim(Kind::Mutex, name, 1, 1)
}

/// One attempt.
pub(crate) async fn try_once(store: &FileStore, claim: &Claim) -> Result<Option<SessionHold>> {
    let withdrawn = CancellationToken::new();
    withdrawn.cancel();
    store.acquire(claim, &withdrawn).await
}

/// Acquires, within the time a test may take.
pub(crate) async fn acquire(store: &FileStore, claim: &Claim) -> SessionHold {
    let never = CancellationToken::new();
    let acquired = tokio::time::timeout(LONG, store.acquire(claim, &never)).await;
    acquired.expect("never granted").unwrap().expect("withdrawn")
}

pub(crate) async fn release(store: &FileStore, claim: &Claim, hold: &SessionHold) {
    store.release(&Lease::of(claim, hold.token)).await.unwrap();
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < LONG, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Every path below a folder.
pub(crate) fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(dir).unwrap().display().to_string());
            if path.is_dir() {
                left.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The only lock file of a folder.
pub(crate) fn lock_file(dir: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(dir.join("mutex")).unwrap();
    files.next().unwrap().unwrap().path()
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
