//! What tests of drivers that panic share.

use distlock_core::{Error, ErrorKind, Guard, Locks};

use super::SECOND;

/// The lock that was held all along is renewed on, and the engine takes and releases others.
pub async fn goes_on(locks: &Locks, held: &Guard) {
    tokio::time::sleep(10 * SECOND).await;
    assert!(!held.is_lost(), "{:?}", held.loss());
    let other = locks.mutex("other").acquire().await.unwrap();
    other.release().await.unwrap();
}

/// The error of a request that panicked.
pub fn assert_told(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    assert!(error.is_outcome_unknown() && error.store().is_some(), "{error}");
    assert!(error.to_string().contains("panicked"), "{error}");
}
