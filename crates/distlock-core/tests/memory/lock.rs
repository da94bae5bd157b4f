//! The lock record of the memory store: one holder, final expiry, wake-ups that reach a live waiter.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Claim, Inbox, Lease, LeaseStore, Released, Renewal, Waiting, Wake, WakeStream,
};
use distlock_core::{FencingToken, Kind, LockId, Resource, VirtualClock};
use futures_util::{FutureExt, StreamExt};
use tokio::time::advance;

const SECOND: Duration = Duration::from_secs(1);
const EXPIRY: Duration = Duration::from_secs(10);

fn store() -> MemoryStore {
    MemoryStore::with_clock(Arc::new(VirtualClock::new()))
}

fn claim(id: &str) -> Claim {
    Claim::new(Resource::new(Kind::Mutex, "m").unwrap(), LockId::from_stored(id), EXPIRY)
}

/// A waiting claim, with an inbox named after its lock id.
fn waiting(id: &str) -> Claim {
    claim(id).with_waiting(Waiting::new(Inbox::new(id), 60 * SECOND, 1))
}

fn lease(id: &str, token: FencingToken) -> Lease {
    Lease::of(&claim(id), token)
}

async fn ask(store: &MemoryStore, claim: Claim) -> Attempt {
    store.try_acquire(&[claim]).await.unwrap().remove(0).unwrap()
}

async fn granted(store: &MemoryStore, claim: Claim) -> FencingToken {
    match ask(store, claim).await {
        Attempt::Granted { token, .. } => token,
        busy => panic!("{busy:?}"),
    }
}

async fn renew(store: &MemoryStore, lease: Lease) -> Renewal {
    store.renew(&[lease]).await.unwrap().remove(0).unwrap()
}

async fn release(store: &MemoryStore, id: &str) -> Released {
    store.release(&[lease(id, FencingToken::new(0))]).await.unwrap().remove(0).unwrap()
}

async fn listen(store: &MemoryStore, id: &str) -> WakeStream {
    store.subscribe(&Inbox::new(id)).await.unwrap()
}

/// The lock ids of the messages that have arrived.
fn woken(stream: &mut WakeStream) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some(Some(wake)) = stream.next().now_or_never() {
        match wake {
            Wake::Retry { lock_id, .. } => ids.push(lock_id.to_string()),
            other => panic!("{other:?}"),
        }
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_was_lost_is_recognised_when_the_claim_is_repeated() {
    let store = store();
    let token = granted(&store, claim("a")).await;
    advance(8 * SECOND).await;
    assert_eq!(granted(&store, claim("a")).await, token);
    advance(8 * SECOND).await;
    assert_eq!(ask(&store, claim("b")).await, Attempt::busy(2 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn expiry_is_final_even_if_no_other_client_asked() {
    let store = store();
    let token = granted(&store, claim("a")).await;
    advance(EXPIRY).await;
    assert_eq!(renew(&store, lease("a", token)).await, Renewal::NotYours);
    assert_eq!(release(&store, "a").await, Released::NotYours);
    assert!(granted(&store, claim("b")).await > token);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_moves_the_expiry_and_keeps_the_larger_token() {
    let store = store();
    let token = granted(&store, claim("a")).await;
    advance(9 * SECOND).await;
    let higher = FencingToken::new(token.get() + 1_000_000_000);
    assert_eq!(renew(&store, lease("a", higher)).await, Renewal::Renewed);
    advance(9 * SECOND).await;
    assert_eq!(renew(&store, lease("a", token)).await, Renewal::Renewed);
    assert_eq!(granted(&store, claim("a")).await, higher);
    release(&store, "a").await;
    assert!(granted(&store, claim("b")).await > higher);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_never_takes_a_lock() {
    let store = store();
    assert_eq!(renew(&store, lease("a", FencingToken::new(7))).await, Renewal::NotYours);
    granted(&store, claim("b")).await;
    assert_eq!(renew(&store, lease("a", FencingToken::new(7))).await, Renewal::NotYours);
}

#[tokio::test(start_paused = true)]
async fn a_stale_lock_id_cannot_free_its_successor() {
    let store = store();
    granted(&store, claim("a")).await;
    advance(EXPIRY).await;
    granted(&store, claim("b")).await;
    assert_eq!(release(&store, "a").await, Released::NotYours);
    assert!(matches!(ask(&store, claim("c")).await, Attempt::Busy { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_leaves_no_entry() {
    let store = store();
    granted(&store, claim("a")).await;
    ask(&store, claim("b")).await;
    ask(&store, waiting("c")).await;
    ask(&store, claim("c")).await;
    assert_eq!(release(&store, "a").await, Released::Done { woke: false });
    assert_eq!(release(&store, "b").await, Released::NotYours);
    assert_eq!(release(&store, "c").await, Released::NotYours);
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_the_next_waiter_and_no_other() {
    let store = store();
    granted(&store, claim("a")).await;
    let (mut b, mut c) = (listen(&store, "b").await, listen(&store, "c").await);
    ask(&store, waiting("b")).await;
    ask(&store, waiting("c")).await;
    ask(&store, waiting("b")).await; // keeps its place
    assert_eq!(release(&store, "a").await, Released::Done { woke: true });
    assert_eq!(woken(&mut b), ["b"]);
    assert!(woken(&mut c).is_empty());
    granted(&store, waiting("b")).await;
    release(&store, "b").await;
    assert_eq!(woken(&mut c), ["c"]);
    assert!(woken(&mut b).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dead_waiter_is_not_woken_again_and_again() {
    let store = store();
    granted(&store, claim("a")).await;
    let mut c = listen(&store, "c").await;
    ask(&store, waiting("dead")).await;
    ask(&store, waiting("c")).await;
    release(&store, "a").await;
    assert!(woken(&mut c).is_empty());
    granted(&store, claim("a2")).await;
    release(&store, "a2").await;
    assert_eq!(woken(&mut c), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_expires_after_its_time_to_live() {
    let store = store();
    let holder = granted(&store, claim("a")).await;
    let mut c = listen(&store, "c").await;
    ask(&store, waiting("dead")).await;
    for _ in 0..13 {
        advance(5 * SECOND).await;
        assert_eq!(renew(&store, lease("a", holder)).await, Renewal::Renewed);
    }
    ask(&store, waiting("c")).await;
    release(&store, "a").await;
    assert_eq!(woken(&mut c), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_woken_waiter_that_withdraws_passes_the_wake_up_on() {
    let store = store();
    granted(&store, claim("a")).await;
    let mut c = listen(&store, "c").await;
    ask(&store, waiting("b")).await;
    ask(&store, waiting("c")).await;
    release(&store, "a").await;
    assert_eq!(release(&store, "b").await, Released::Done { woke: true });
    assert_eq!(woken(&mut c), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_does_not_skip_a_waiter_that_was_just_woken() {
    let store = store();
    granted(&store, claim("a")).await;
    let (mut b, mut d) = (listen(&store, "b").await, listen(&store, "d").await);
    for id in ["b", "c", "d"] {
        ask(&store, waiting(id)).await;
    }
    release(&store, "a").await;
    release(&store, "c").await;
    assert_eq!(woken(&mut b), ["b"]);
    assert!(woken(&mut d).is_empty());
    assert!(matches!(ask(&store, waiting("d").with_no_overtaking(true)).await, Attempt::Busy { .. }));
}

#[tokio::test(start_paused = true)]
async fn with_no_overtaking_a_free_lock_is_left_to_the_first_live_waiter() {
    let store = store();
    granted(&store, claim("a")).await;
    ask(&store, waiting("b")).await;
    release(&store, "a").await;
    let polite = waiting("c").with_no_overtaking(true);
    assert_eq!(ask(&store, polite.clone()).await, Attempt::busy(60 * SECOND));
    granted(&store, waiting("b").with_no_overtaking(true)).await;
    release(&store, "b").await;
    granted(&store, polite.clone()).await;
    release(&store, "c").await;

    granted(&store, claim("a")).await;
    ask(&store, waiting("dead")).await;
    release(&store, "a").await;
    assert!(matches!(ask(&store, polite.clone()).await, Attempt::Busy { .. }));
    granted(&store, claim("rude")).await;
    release(&store, "rude").await;
    granted(&store, polite).await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_lock_passes_to_the_next_waiter_and_its_holder_is_notified() {
    use distlock_core::store::Store;
    let store = store();
    let token = granted(&store, claim("a")).await;
    let mut b = listen(&store, "b").await;
    ask(&store, waiting("b")).await;
    let broken = store.break_lock(&claim("a").resource).await.unwrap();
    assert_eq!(broken.len(), 1);
    assert_eq!((broken[0].lock_id.as_str(), broken[0].token), ("a", Some(token)));
    assert_eq!(woken(&mut b), ["b"]);
    assert_eq!(renew(&store, lease("a", token)).await, Renewal::NotYours);
    assert!(granted(&store, waiting("b")).await > token);
}

#[tokio::test(start_paused = true)]
async fn messages_are_lost_on_command_and_without_a_subscription() {
    let store = store();
    granted(&store, claim("a")).await;
    ask(&store, waiting("b")).await;
    let mut b = listen(&store, "b").await;
    store.lose_wakes(1);
    release(&store, "a").await;
    assert!(woken(&mut b).is_empty());
    drop(b);
    assert_eq!(store.listeners(), 0);
    granted(&store, waiting("b")).await;
    let mut ended = listen(&store, "x").await;
    store.hang_up();
    assert!(matches!(ended.next().now_or_never(), Some(None)));
}
