//! Shared by the tests of drivers that panic.

use distlock_core::{Error, ErrorKind, Guard, Locks};

use super::SECOND;

/// Asserts that a lock held before is still renewed, and that the engine acquires and releases others.
pub async fn goes_on(locks: &Locks, held: &Guard) {
    tokio::time::sleep(10 * SECOND).await;
    assert!(!held.is_lost(), "{:?}", held.loss());
    let other = locks.mutex("other").acquire().await.unwrap();
    other.release().await.unwrap();
}

/// Asserts the error of a request that panicked.
pub fn assert_told(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    assert!(error.is_outcome_unknown() && error.store().is_some(), "{error}");
    assert!(error.to_string().contains("panicked"), "{error}");
}
