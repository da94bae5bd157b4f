//! Tokens always rise, even across the purge of their record. Also the store's URL.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::memory::{DRIVER, MemoryStore};
use distlock_core::store::{Attempt, Claim, Lease, LeaseStore, StoreUrl};
use distlock_core::{ErrorKind, FencingToken, Kind, LockId, Locks, Resource, VirtualClock};
use tokio::time::advance;

const HOUR: Duration = Duration::from_secs(3600);

fn claim(kind: Kind, name: &str) -> Claim {
    Claim::new(Resource::new(kind, name).unwrap(), LockId::from_stored("id"), Duration::from_secs(10))
}

async fn cycle(store: &MemoryStore, claim: &Claim) -> FencingToken {
    let answer = store.try_acquire(std::slice::from_ref(claim)).await.unwrap().remove(0).unwrap();
    let Attempt::Granted { token, .. } = answer else { panic!("{answer:?}") };
    store.release(&[Lease::of(claim, token)]).await.unwrap().remove(0).unwrap();
    token
}

#[tokio::test(start_paused = true)]
async fn unused_names_are_purged_and_their_tokens_still_rise() {
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let store = MemoryStore::with_clock(Arc::new(VirtualClock::new()));
        let mut first = Vec::new();
        for n in 0..100 {
            first.push(cycle(&store, &claim(kind, &format!("order/{n}"))).await);
        }
        assert_eq!(store.remembered(), 100);
        advance(2 * HOUR).await;
        for _ in 0..30 {
            cycle(&store, &claim(kind, "other")).await;
        }
        assert_eq!(store.remembered(), 1);
        for (n, first) in first.iter().enumerate() {
            assert!(cycle(&store, &claim(kind, &format!("order/{n}"))).await > *first);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_whose_token_is_ahead_of_the_clock_is_kept_until_the_clock_has_passed_it() {
    let store = MemoryStore::with_clock(Arc::new(VirtualClock::new())).retention(Duration::from_millis(10));
    let mut last = FencingToken::new(0);
    for _ in 0..5_000 {
        // No time passes: five thousand grants in one millisecond.
        last = cycle(&store, &claim(Kind::Mutex, "busy")).await;
    }
    for _ in 0..20 {
        advance(Duration::from_millis(500)).await;
        cycle(&store, &claim(Kind::Mutex, "other")).await;
        let token = cycle(&store, &claim(Kind::Mutex, "busy")).await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_held_for_days_is_not_purged() {
    let store = MemoryStore::with_clock(Arc::new(VirtualClock::new()));
    let long = claim(Kind::Mutex, "long").with_expiry(48 * HOUR);
    store.try_acquire(std::slice::from_ref(&long)).await.unwrap();
    for _ in 0..40 {
        advance(HOUR).await;
        cycle(&store, &claim(Kind::Mutex, "other")).await;
    }
    let thief = long.with_lock_id(LockId::from_stored("thief"));
    assert!(matches!(store.try_acquire(&[thief]).await.unwrap().remove(0), Ok(Attempt::Busy { .. })));
}

#[tokio::test(start_paused = true)]
async fn tokens_rise_although_the_server_clock_goes_back() {
    let clock = VirtualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    let first = cycle(&store, &claim(Kind::Mutex, "m")).await;
    clock.jump_back(HOUR / 2);
    assert!(cycle(&store, &claim(Kind::Mutex, "m")).await > first);
}

#[tokio::test(start_paused = true)]
async fn requests_and_items_are_counted() {
    let store = MemoryStore::new();
    store.try_acquire(&[claim(Kind::Mutex, "a"), claim(Kind::Mutex, "b")]).await.unwrap();
    store.renew(&[Lease::of(&claim(Kind::Mutex, "a"), FencingToken::new(1))]).await.unwrap();
    let stats = store.stats();
    assert_eq!((stats.acquire.requests, stats.acquire.items, stats.renew.items), (1, 2, 1));
    assert_eq!(stats.requests(), 2);
}

#[tokio::test]
async fn the_url_takes_no_address_and_no_parameters() {
    for good in ["memory:", "memory:x", "memory:a%2fb"] {
        assert!(DRIVER.connect(StoreUrl::parse(good).unwrap()).await.is_ok(), "{good}");
    }
    for bad in ["memory://", "memory://x", "memory:?a=b", "memory:%ff", "memory:?distlock.prefix=x"] {
        let error = DRIVER.connect(StoreUrl::parse(bad).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
        assert!(error.advice().is_some());
    }
}

#[tokio::test]
async fn a_name_shares_one_store_and_no_name_shares_none() {
    let locks =
        async |url: &str| Locks::new(DRIVER.connect(StoreUrl::parse(url).unwrap()).await.unwrap()).unwrap();
    let (first, second) = (locks("memory:shared").await, locks("memory:shared").await);
    let guard = first.mutex("a").acquire().await.unwrap();
    assert!(second.mutex("a").try_acquire().await.unwrap().is_none());
    for other in ["memory:Shared", "memory:", "memory:"] {
        assert!(locks(other).await.mutex("a").try_acquire().await.unwrap().is_some(), "{other}");
    }
    let token = guard.token();
    guard.release().await.unwrap();
    drop((first, second));
    let later = locks("memory:shared").await.mutex("a").acquire().await.unwrap();
    assert!(later.token() > token, "the store lives as long as the process");
}
