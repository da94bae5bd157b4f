//! The pool record of the memory store: weights, queue order, pushed grants.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::memory::MemoryStore;
use distlock_core::store::{
    Attempt, Claim, GRANT_WINDOW, Inbox, Lease, LeaseStore, PushedGrant, Query, Released, Renewal, Store,
    Waiting, Wake, WakeStream,
};
use distlock_core::{ErrorKind, FencingToken, Kind, LockId, Resource, Result, VirtualClock, WRITER_WEIGHT};
use futures_util::{FutureExt, StreamExt};
use tokio::time::advance;

const SECOND: Duration = Duration::from_secs(1);
const EXPIRY: Duration = Duration::from_secs(10);

fn store() -> MemoryStore {
    MemoryStore::with_clock(Arc::new(VirtualClock::new()))
}

fn claim(id: &str, weight: u32, capacity: u32) -> Claim {
    Claim::new(Resource::new(Kind::Semaphore, "s").unwrap(), LockId::from_stored(id), EXPIRY)
        .with_weight(weight)
        .with_capacity(capacity)
}

/// A claim that waits in the inbox `box`.
fn waiting(id: &str, weight: u32, capacity: u32) -> Claim {
    claim(id, weight, capacity).with_waiting(Waiting::new(Inbox::new("box"), 60 * SECOND, 1))
}

async fn ask(store: &MemoryStore, claim: Claim) -> Result<Attempt> {
    store.try_acquire(&[claim]).await.unwrap().remove(0)
}

async fn granted(store: &MemoryStore, claim: Claim) -> FencingToken {
    match ask(store, claim).await {
        Ok(Attempt::Granted { token, .. }) => token,
        other => panic!("{other:?}"),
    }
}

async fn busy(store: &MemoryStore, claim: Claim) -> Option<Duration> {
    match ask(store, claim).await {
        Ok(Attempt::Busy { retry_after, .. }) => retry_after,
        other => panic!("{other:?}"),
    }
}

async fn release(store: &MemoryStore, claim: &Claim) -> Released {
    store.release(&[Lease::of(claim, FencingToken::new(0))]).await.unwrap().remove(0).unwrap()
}

async fn renew(store: &MemoryStore, claim: &Claim, token: FencingToken) -> Renewal {
    store.renew(&[Lease::of(claim, token)]).await.unwrap().remove(0).unwrap()
}

fn pushed(stream: &mut WakeStream) -> Vec<(String, PushedGrant)> {
    let mut grants = Vec::new();
    while let Some(Some(wake)) = stream.next().now_or_never() {
        match wake {
            Wake::Granted { lock_id, grant, .. } => grants.push((lock_id.to_string(), grant)),
            other => panic!("{other:?}"),
        }
    }
    grants
}

async fn listen(store: &MemoryStore) -> WakeStream {
    store.subscribe(&Inbox::new("box")).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn weights_fit_or_wait_and_tokens_rise() {
    let store = store();
    let a = granted(&store, claim("a", 2, 4)).await;
    let b = granted(&store, claim("b", 1, 4)).await;
    assert!(b > a);
    assert_eq!(granted(&store, claim("a", 2, 4)).await, a, "asking again is recognised");
    advance(SECOND).await;
    assert_eq!(busy(&store, claim("c", 2, 4)).await, Some(9 * SECOND));
    assert!(granted(&store, claim("d", 1, 4)).await > b);
}

#[tokio::test(start_paused = true)]
async fn wrong_weights_and_capacities_fail_alone() {
    let store = store();
    let answers = store
        .try_acquire(&[claim("zero", 0, 4), claim("a", 1, 4), claim("heavy", 5, 4), claim("other", 1, 3)])
        .await
        .unwrap();
    let kinds: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().map(|e| e.kind())).collect();
    assert_eq!(
        kinds,
        [Some(ErrorKind::InvalidInput), None, Some(ErrorKind::InvalidInput), Some(ErrorKind::Mismatch)]
    );
    let text = answers[3].as_ref().unwrap_err().to_string();
    assert!(text.contains('4') && text.contains('3') && text.contains("use one capacity"), "{text}");
    release(&store, &claim("a", 1, 4)).await;
    granted(&store, claim("other", 1, 3)).await;
}

#[tokio::test(start_paused = true)]
async fn a_light_claim_never_overtakes_a_heavy_one() {
    let store = store();
    let resource = Resource::new(Kind::RwLock, "rw").unwrap();
    let of = |id: &str, weight| waiting(id, weight, WRITER_WEIGHT).with_resource(resource.clone());
    let mut stream = listen(&store).await;
    granted(&store, of("r1", 1)).await;
    granted(&store, of("r2", 1)).await;
    busy(&store, of("w", WRITER_WEIGHT)).await;
    busy(&store, of("r3", 1)).await;
    busy(&store, of("r4", 1)).await;
    release(&store, &of("r1", 1)).await;
    assert!(pushed(&mut stream).is_empty());
    release(&store, &of("r2", 1)).await;
    assert_eq!(pushed(&mut stream).iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["w"]);
    granted(&store, of("w", WRITER_WEIGHT)).await;
    release(&store, &of("w", WRITER_WEIGHT)).await;
    assert_eq!(pushed(&mut stream).iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["r3", "r4"]);
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_carries_the_time_since_the_last_attempt() {
    let store = store();
    let mut stream = listen(&store).await;
    let first = granted(&store, claim("a", 1, 1)).await;
    busy(&store, waiting("b", 1, 1)).await;
    advance(2 * SECOND).await;
    busy(&store, waiting("b", 1, 1)).await;
    advance(3 * SECOND).await;
    assert_eq!(release(&store, &claim("a", 1, 1)).await, Released::Done { woke: true });
    let (id, grant) = pushed(&mut stream).remove(0);
    assert_eq!((id.as_str(), grant.after, grant.window), ("b", 3 * SECOND, GRANT_WINDOW));
    assert!(grant.token > first);
    assert_eq!(renew(&store, &waiting("b", 1, 1), grant.token).await, Renewal::Renewed);
    advance(5 * SECOND).await;
    assert_eq!(granted(&store, waiting("b", 1, 1)).await, grant.token);
}

#[tokio::test(start_paused = true)]
async fn a_dead_queue_head_blocks_the_others_for_its_window_only() {
    let store = store();
    let mut stream = listen(&store).await;
    granted(&store, claim("a", 1, 1)).await;
    busy(&store, waiting("dead", 1, 1)).await;
    busy(&store, waiting("c", 1, 1)).await;
    release(&store, &claim("a", 1, 1)).await;
    assert_eq!(pushed(&mut stream)[0].0, "dead");
    assert_eq!(busy(&store, waiting("c", 1, 1)).await, Some(GRANT_WINDOW));
    advance(GRANT_WINDOW).await;
    granted(&store, waiting("c", 1, 1)).await;
    assert!(pushed(&mut stream).is_empty(), "the caller gets its grant in the answer");
    let dead = waiting("dead", 1, 1);
    assert_eq!(renew(&store, &dead, FencingToken::new(u64::MAX)).await, Renewal::NotYours);
}

#[tokio::test(start_paused = true)]
async fn capacity_freed_by_expiry_is_granted_to_the_queue_head_at_any_step() {
    let store = store();
    let mut stream = listen(&store).await;
    let a = granted(&store, claim("a", 1, 2)).await;
    advance(5 * SECOND).await;
    granted(&store, claim("b", 1, 2)).await;
    busy(&store, waiting("c", 2, 2)).await;
    busy(&store, waiting("d", 1, 2)).await;
    advance(5 * SECOND).await;
    assert_eq!(renew(&store, &claim("a", 1, 2), a).await, Renewal::NotYours);
    assert!(pushed(&mut stream).is_empty());
    release(&store, &waiting("c", 2, 2)).await;
    assert_eq!(pushed(&mut stream)[0].0, "d");
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_claim_leaves_nothing_and_unblocks_the_next_waiter() {
    let store = store();
    let mut stream = listen(&store).await;
    granted(&store, claim("a", 1, 2)).await;
    busy(&store, waiting("heavy", 2, 2)).await;
    busy(&store, waiting("light", 1, 2)).await;
    assert!(matches!(release(&store, &waiting("heavy", 2, 2)).await, Released::Done { .. }));
    assert_eq!(pushed(&mut stream)[0].0, "light");
    assert_eq!(release(&store, &waiting("heavy", 2, 2)).await, Released::NotYours);
}

#[tokio::test(start_paused = true)]
async fn an_operator_sees_and_breaks_only_live_holds() {
    let store = store();
    granted(&store, claim("a", 3, 4)).await;
    busy(&store, waiting("b", 2, 4)).await;
    let seen = store.inspect(&Query::named("s")).await.unwrap();
    assert_eq!((seen.len(), seen[0].capacity, seen[0].kind), (1, 4, Kind::Semaphore));
    assert_eq!((seen[0].holders[0].weight, seen[0].holders[0].expires_in), (3, Some(EXPIRY)));
    assert_eq!(seen[0].waiters[0].lock_id.as_str(), "b");
    assert!(store.inspect(&Query::prefixed("x")).await.unwrap().is_empty());
    let mut stream = listen(&store).await;
    let broken = store.break_lock(&claim("a", 1, 4).resource).await.unwrap();
    assert_eq!(broken[0].lock_id.as_str(), "a");
    assert_eq!(pushed(&mut stream)[0].0, "b");
    advance(60 * SECOND).await;
    assert!(store.inspect(&Query::default()).await.unwrap().is_empty());
}
