//! The fault-injecting store injects the planned faults.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::faults::{Fault, FaultyStore, Verb};
use distlock_core::memory::MemoryStore;
use distlock_core::store::{Claim, Inbox, Lease, LeaseStore, Query, Store};
use distlock_core::{FencingToken, Kind, LockId, Resource};
use futures_util::{FutureExt, StreamExt};

fn claim() -> Claim {
    Claim::new(Resource::new(Kind::Mutex, "m").unwrap(), LockId::from_stored("id"), Duration::from_secs(1))
}

async fn held(store: &FaultyStore) -> bool {
    !store.inspect(&Query::default()).await.unwrap().is_empty()
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_changes_nothing_and_a_lost_reply_does() {
    let (store, faults) = FaultyStore::new(Arc::new(MemoryStore::new()));
    faults.next(Verb::Acquire, 1, Fault::fail());
    faults.next(Verb::Acquire, 1, Fault::lost_reply());
    let error = store.try_acquire(&[claim()]).await.unwrap_err();
    assert!(!error.is_outcome_unknown() && !held(&store).await);
    let error = store.try_acquire(&[claim()]).await.unwrap_err();
    assert!(error.is_outcome_unknown() && held(&store).await);
    assert!(store.try_acquire(&[claim()]).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_never_returns_and_a_delayed_one_returns_late() {
    let (store, faults) = FaultyStore::new(Arc::new(MemoryStore::new()));
    faults.next(Verb::Acquire, 1, Fault::hang_after());
    let hour = Duration::from_secs(3600);
    assert!(tokio::time::timeout(hour, store.try_acquire(&[claim()])).await.is_err());
    faults.next(Verb::Release, 1, Fault::none().delay_before(hour).delay_after(hour));
    let start = tokio::time::Instant::now();
    store.release(&[Lease::of(&claim(), FencingToken::new(1))]).await.unwrap();
    assert_eq!(start.elapsed(), 2 * hour);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_goes_down_ends_its_streams_and_a_replaced_one_is_empty() {
    let (store, faults) = FaultyStore::new(Arc::new(MemoryStore::new()));
    store.try_acquire(&[claim()]).await.unwrap();
    let mut stream = store.subscribe(&Inbox::new("x")).await.unwrap();
    assert!(stream.next().now_or_never().is_none());
    faults.set_down(true);
    assert!(matches!(stream.next().now_or_never(), Some(None)));
    assert!(store.doctor().await.is_err());
    faults.set_down(false);
    assert!(held(&store).await);
    faults.replace(Arc::new(MemoryStore::new()));
    assert!(!held(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_call_changes_nothing_and_a_panic_after_it_does() {
    let (store, faults) = FaultyStore::new(Arc::new(MemoryStore::new()));
    for (fault, applied) in [(Fault::panic_before(), false), (Fault::panic_after(), true)] {
        faults.next(Verb::Acquire, 1, fault);
        assert!(AssertUnwindSafe(store.try_acquire(&[claim()])).catch_unwind().await.is_err());
        assert_eq!(held(&store).await, applied);
    }
    let mut stream = store.subscribe(&Inbox::new("x")).await.unwrap();
    faults.panic_streams();
    assert!(AssertUnwindSafe(stream.next()).catch_unwind().await.is_err());
    let mut next = store.subscribe(&Inbox::new("x")).await.unwrap();
    assert!(next.next().now_or_never().is_none());
}
