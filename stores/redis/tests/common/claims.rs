use std::time::Duration;

use distlock_core::store::{Attempt, Claim, Inbox, Lease, LeaseStore, Released, Waiting, Wake, WakeStream};
use distlock_core::{FencingToken, Kind, LockId, Resource, WRITER_WEIGHT};
use distlock_redis::RedisStore;
use futures_util::StreamExt;

use super::LIMIT;

/// The kinds of locks with a wait queue and one holder.
pub(crate) const KINDS: [Kind; 3] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore];

/// A single attempt for the whole capacity.
pub(crate) fn claim(kind: Kind, name: &str, id: impl AsRef<str>) -> Claim {
    let all = if kind == Kind::RwLock { WRITER_WEIGHT } else { 1 };
    Claim::new(Resource::new(kind, name).unwrap(), LockId::from_stored(id.as_ref()), Duration::from_secs(60))
        .with_weight(all)
        .with_capacity(all)
}

/// The same claim, waiting with this inbox.
pub(crate) fn waiting(claim: Claim, inbox: &str, ttl: Duration, attempt: u64) -> Claim {
    claim.with_waiting(Waiting::new(Inbox::new(inbox), ttl, attempt))
}

pub(crate) fn lease(claim: &Claim) -> Lease {
    Lease::of(claim, FencingToken::new(0))
}

pub(crate) async fn granted(store: &RedisStore, claim: &Claim) -> Lease {
    match store.try_acquire(std::slice::from_ref(claim)).await.unwrap().remove(0) {
        Ok(Attempt::Granted { token, .. }) => Lease::of(claim, token),
        other => panic!("{claim:?} should have been granted: {other:?}"),
    }
}

pub(crate) async fn busy(store: &RedisStore, claim: &Claim) -> Option<Duration> {
    match store.try_acquire(std::slice::from_ref(claim)).await.unwrap().remove(0) {
        Ok(Attempt::Busy { retry_after, .. }) => retry_after,
        other => panic!("{claim:?} should have been busy: {other:?}"),
    }
}

pub(crate) async fn release(store: &RedisStore, claim: &Claim) -> Released {
    store.release(&[lease(claim)]).await.unwrap().remove(0).unwrap()
}

/// The next message of a stream.
pub(crate) async fn next(stream: &mut WakeStream) -> Wake {
    tokio::time::timeout(LIMIT, stream.next()).await.expect("a message").expect("an open stream")
}

/// The next message, which must be a grant to this lock id.
pub(crate) async fn next_grant(stream: &mut WakeStream, id: &LockId) -> distlock_core::store::PushedGrant {
    match next(stream).await {
        Wake::Granted { lock_id, grant, .. } if lock_id == *id => grant,
        other => panic!("not a grant to {id}: {other:?}"),
    }
}
