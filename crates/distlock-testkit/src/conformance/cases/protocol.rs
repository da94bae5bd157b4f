//! Single requests to the store trait, without the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::store::{
    Attempt, Backend, Claim, Lease, LeaseStore, Query, Released, Renewal, SessionStore, Waiting,
};
use distlock_core::{
    CancellationToken, ErrorKind, FencingToken, Kind, LockId, LockIds, Resource, WRITER_WEIGHT,
};

use crate::conformance::{Fixture, Harness};

const LONG: Duration = Duration::from_secs(60);

/// Creates claims, each with a new lock id.
struct Claims(LockIds);

impl Claims {
    fn new() -> Self {
        Claims(LockIds::new("protocol"))
    }

    fn claim(&self, kind: Kind, name: &str) -> Claim {
        let (weight, capacity) = match kind {
            Kind::RwLock => (WRITER_WEIGHT, WRITER_WEIGHT),
            _ => (1, 1),
        };
        Claim::new(Resource::new(kind, name).expect("a good name"), self.0.next(), LONG)
            .with_weight(weight)
            .with_capacity(capacity)
    }
}

fn lease_of(claim: &Claim, token: u64) -> Lease {
    Lease::of(claim, FencingToken::new(token))
}

/// Makes one attempt with one claim.
async fn attempt(store: &dyn LeaseStore, claim: &Claim) -> Attempt {
    let mut answers = store.try_acquire(std::slice::from_ref(claim)).await.expect("a reply");
    assert_eq!(answers.len(), 1, "one answer for one claim");
    answers.pop().expect("one answer").unwrap_or_else(|error| panic!("{claim:?}: {error}"))
}

async fn granted(store: &dyn LeaseStore, claim: &Claim) -> u64 {
    match attempt(store, claim).await {
        Attempt::Granted { token, .. } => token.get(),
        busy => panic!("{claim:?} should have been granted: {busy:?}"),
    }
}

async fn is_busy(store: &dyn LeaseStore, claim: &Claim) -> bool {
    matches!(attempt(store, claim).await, Attempt::Busy { .. })
}

async fn renew(store: &dyn LeaseStore, lease: &Lease) -> Renewal {
    let mut answers = store.renew(std::slice::from_ref(lease)).await.expect("a reply");
    answers.pop().expect("one answer").expect("a renewal")
}

async fn release(store: &dyn LeaseStore, lease: &Lease) -> Released {
    let mut answers = store.release(std::slice::from_ref(lease)).await.expect("a reply");
    answers.pop().expect("one answer").expect("a release")
}

/// Two connections to a lease store; prints a note and returns `None` for a session store.
async fn leases<F: Fixture>(harness: &Harness<F>) -> Option<(Arc<dyn LeaseStore>, Arc<dyn LeaseStore>)> {
    match (harness.fixture().connect().await, harness.fixture().connect().await) {
        (Backend::Lease(one), Backend::Lease(other)) => Some((one, other)),
        _ => {
            println!("not applicable: a session store has no such request");
            None
        }
    }
}

async fn sessions<F: Fixture>(
    harness: &Harness<F>,
) -> Option<(Arc<dyn SessionStore>, Arc<dyn SessionStore>)> {
    match (harness.fixture().connect().await, harness.fixture().connect().await) {
        (Backend::Session(one), Backend::Session(other)) => Some((one, other)),
        _ => None,
    }
}

fn kinds(store: &dyn LeaseStore) -> Vec<Kind> {
    [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue]
        .into_iter()
        .filter(|kind| store.capabilities().has(*kind))
        .collect()
}

/// A claim is retried with the same lock id after a lost reply: the store recognises it, keeps its token and restarts its
/// expiry. No other claim is granted in between.
pub async fn a_retried_claim_is_recognised<F: Fixture>(harness: Harness<F>) {
    let Some((one, other)) = leases(&harness).await else { return };
    let claims = Claims::new();
    for kind in kinds(&*one) {
        let claim = claims.claim(kind, "retried");
        let first = granted(&*one, &claim).await;
        // Also over another connection, as after a reconnect.
        let again = granted(&*other, &claim).await;
        assert!(again >= first, "the token of one grant fell from {first} to {again}");
        assert!(is_busy(&*other, &claims.claim(kind, "retried")).await, "{kind}: two holders");
        assert_eq!(renew(&*one, &lease_of(&claim, again)).await, Renewal::Renewed);
        assert!(matches!(release(&*one, &lease_of(&claim, again)).await, Released::Done { .. }));
        let next = claims.claim(kind, "retried");
        assert!(granted(&*other, &next).await > again);
        release(&*other, &lease_of(&next, 0)).await;
    }
}

/// A renewal renews a held lock and never acquires one: not a free one, not an expired one, not that of another client.
pub async fn a_renewal_never_acquires<F: Fixture>(harness: Harness<F>) {
    let Some((one, other)) = leases(&harness).await else { return };
    let claims = Claims::new();
    for kind in kinds(&*one) {
        let never = claims.claim(kind, "renewed");
        assert_eq!(renew(&*one, &lease_of(&never, 1)).await, Renewal::NotYours);
        let claim = claims.claim(kind, "renewed").with_expiry(harness.timing().expiry / 4);
        let token = granted(&*one, &claim).await;
        harness.within("an expiry", wait_until_unused(&*other, kind, "renewed")).await;
        let late = renew(&*one, &lease_of(&claim, token)).await;
        assert_eq!(late, Renewal::NotYours, "a late renewal acquired the expired {kind} again");
        let next = claims.claim(kind, "renewed");
        granted(&*other, &next).await;
        assert_eq!(renew(&*one, &lease_of(&claim, token)).await, Renewal::NotYours);
        release(&*other, &lease_of(&next, 0)).await;
    }
}

/// A renewal carries a token, and the store keeps the higher one. A quorum writes its token back this way.
pub async fn a_renewal_raises_the_token<F: Fixture>(harness: Harness<F>) {
    let Some((one, other)) = leases(&harness).await else { return };
    let claims = Claims::new();
    for kind in kinds(&*one) {
        let claim = claims.claim(kind, "raised");
        let token = granted(&*one, &claim).await + 1_000_000;
        assert_eq!(renew(&*one, &lease_of(&claim, token)).await, Renewal::Renewed);
        assert_eq!(renew(&*one, &lease_of(&claim, 1)).await, Renewal::Renewed);
        release(&*one, &lease_of(&claim, token)).await;
        let next = claims.claim(kind, "raised");
        let later = granted(&*other, &next).await;
        assert!(later > token, "{kind}: {later} after a renewal with {token}");
        release(&*other, &lease_of(&next, 0)).await;
    }
}

/// A release under a foreign lock id changes nothing, on lease and session stores.
pub async fn releasing_a_foreign_lock_changes_nothing<F: Fixture>(harness: Harness<F>) {
    let claims = Claims::new();
    let foreign = |claim: &Claim| claim.clone().with_lock_id(LockId::from_stored("foreign#0"));
    if let Some((one, other)) = sessions(&harness).await {
        let claim = claims.claim(Kind::Mutex, "foreign release");
        let never = CancellationToken::new();
        let hold = one.acquire(&claim, &never).await.unwrap().expect("a grant");
        for store in [&one, &other] {
            store.release(&lease_of(&foreign(&claim), hold.token.get())).await.expect("no error");
        }
        let once = CancellationToken::new();
        once.cancel();
        let next = other.acquire(&claims.claim(Kind::Mutex, "foreign release"), &once).await.unwrap();
        assert!(next.is_none(), "a release under a foreign lock id released the lock");
        assert!(hold.session.ended().is_none());
        return one.release(&lease_of(&claim, hold.token.get())).await.unwrap();
    }
    let Some((one, other)) = leases(&harness).await else { return };
    for kind in kinds(&*one) {
        let claim = claims.claim(kind, "foreign release");
        let token = granted(&*one, &claim).await;
        let foreign = lease_of(&foreign(&claim), token);
        assert_eq!(release(&*other, &foreign).await, Released::NotYours);
        assert_eq!(renew(&*other, &foreign).await, Renewal::NotYours);
        assert_eq!(renew(&*one, &lease_of(&claim, token)).await, Renewal::Renewed, "{kind}");
        assert!(is_busy(&*other, &claims.claim(kind, "foreign release")).await);
        assert!(matches!(release(&*one, &lease_of(&claim, token)).await, Released::Done { .. }));
        assert_eq!(release(&*one, &lease_of(&claim, token)).await, Released::NotYours, "released twice");
    }
}

/// A single attempt leaves no waiter.
pub async fn one_attempt_leaves_no_trace<F: Fixture>(harness: Harness<F>) {
    let claims = Claims::new();
    if let Some((one, other)) = sessions(&harness).await {
        let once = CancellationToken::new();
        once.cancel();
        let claim = claims.claim(Kind::Mutex, "tried");
        let hold = one.acquire(&claim, &once).await.unwrap().expect("it is free: one attempt is enough");
        let begun = Instant::now();
        assert!(other.acquire(&claims.claim(Kind::Mutex, "tried"), &once).await.unwrap().is_none());
        assert!(begun.elapsed() < harness.timing().wait_limit / 4, "one attempt took {:?}", begun.elapsed());
        // A withdrawn wait ends soon, without a grant.
        let withdraw = CancellationToken::new();
        let waiting = tokio::spawn({
            let (other, claim, withdraw) =
                (Arc::clone(&other), claims.claim(Kind::Mutex, "tried"), withdraw.clone());
            async move { other.acquire(&claim, &withdraw).await }
        });
        tokio::time::sleep(harness.timing().queue_delay).await;
        assert!(!waiting.is_finished());
        withdraw.cancel();
        assert!(harness.within("the end of the wait", waiting).await.unwrap().unwrap().is_none());
        one.release(&lease_of(&claim, hold.token.get())).await.unwrap();
        let next = claims.claim(Kind::Mutex, "tried");
        let hold = other.acquire(&next, &once).await.unwrap().expect("it is free");
        return other.release(&lease_of(&next, hold.token.get())).await.unwrap();
    }
    let Some((one, other)) = leases(&harness).await else { return };
    for kind in kinds(&*one) {
        let claim = claims.claim(kind, "tried");
        granted(&*one, &claim).await;
        for _ in 0..3 {
            assert!(is_busy(&*other, &claims.claim(kind, "tried")).await);
        }
        let query = Query::named("tried").with_kind(kind);
        let found = other.inspect(&query).await.unwrap();
        assert!(found.iter().all(|record| record.waiters.is_empty()), "{found:?}");
        release(&*one, &lease_of(&claim, 0)).await;
        let next = claims.claim(kind, "tried");
        granted(&*other, &next).await;
        release(&*other, &lease_of(&next, 0)).await;
    }
}

/// A release under the lock id of a waiter withdraws its claim.
pub async fn a_withdrawn_claim_leaves_no_waiter<F: Fixture>(harness: Harness<F>) {
    let Some((one, other)) = leases(&harness).await else { return };
    let claims = Claims::new();
    for kind in kinds(&*one) {
        let holder = claims.claim(kind, "withdrawn");
        granted(&*one, &holder).await;
        let waiting = Waiting::new(distlock_core::store::Inbox::new("protocol"), LONG, 1);
        let waiter = claims.claim(kind, "withdrawn").with_waiting(waiting);
        assert!(is_busy(&*other, &waiter).await);
        release(&*other, &lease_of(&waiter, 0)).await;
        assert!(matches!(release(&*one, &lease_of(&holder, 0)).await, Released::Done { .. }));
        // A store of several nodes may reply before the last of them is updated.
        let gone = wait_until_unused(&*other, kind, "withdrawn");
        harness.within(format!("the withdrawal of a waiter for the {kind}"), gone).await;
    }
}

/// Waits until the resource has neither holders nor waiters.
async fn wait_until_unused(store: &dyn LeaseStore, kind: Kind, name: &str) {
    let query = Query::named(name).with_kind(kind);
    loop {
        let found = store.inspect(&query).await.expect("inspect");
        if found.iter().all(|record| record.holders.is_empty() && record.waiters.is_empty()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A batch gets one answer per item, in order, and one invalid claim fails alone.
pub async fn a_batch_is_answered_item_by_item<F: Fixture>(harness: Harness<F>) {
    let Some((one, other)) = leases(&harness).await else { return };
    let claims = Claims::new();
    for kind in kinds(&*one) {
        let held = claims.claim(kind, "held before");
        granted(&*other, &held).await;
        let size = 100.min(one.capabilities().max_batch);
        let mut batch: Vec<Claim> =
            (2..size).map(|n| claims.claim(kind, &format!("batch/{}", (n * 7) % size))).collect();
        let busy = batch.len() / 2;
        batch.insert(busy, claims.claim(kind, "held before"));
        let mut invalid = None;
        if kind == Kind::Semaphore {
            invalid = Some(busy + 1);
            batch.insert(busy + 1, claims.claim(kind, "held before").with_capacity(2));
        }
        let answers = one.try_acquire(&batch).await.unwrap();
        assert_eq!(answers.len(), batch.len());
        let mut leases = Vec::new();
        for (n, (claim, answer)) in batch.iter().zip(answers).enumerate() {
            match answer {
                Err(error) if Some(n) == invalid => assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}"),
                Ok(Attempt::Busy { .. }) if n == busy => {}
                Ok(Attempt::Granted { token, .. }) if n != busy => leases.push(Lease::of(claim, token)),
                other => panic!("item {n} of a batch of {kind}: {other:?}"),
            }
        }
        let renewals = one.renew(&leases).await.unwrap();
        assert!(renewals.iter().all(|renewal| matches!(renewal, Ok(Renewal::Renewed))), "{renewals:?}");
        leases.push(lease_of(&claims.claim(kind, "never held"), 1));
        let released = one.release(&leases).await.unwrap();
        let (last, all) = released.split_last().unwrap();
        assert!(all.iter().all(|released| matches!(released, Ok(Released::Done { .. }))), "{released:?}");
        assert!(matches!(last, Ok(Released::NotYours)), "{last:?}");
    }
    assert!(one.try_acquire(&[]).await.unwrap().is_empty());
    assert!(one.renew(&[]).await.unwrap().is_empty());
    assert!(one.release(&[]).await.unwrap().is_empty());
}

/// Several claims for one resource in one batch: one of them is granted.
pub async fn a_batch_that_names_a_resource_twice_grants_it_once<F: Fixture>(harness: Harness<F>) {
    let Some((one, _)) = leases(&harness).await else { return };
    let claims = Claims::new();
    for kind in kinds(&*one) {
        if one.capabilities().max_batch < 3 {
            continue;
        }
        let batch: Vec<Claim> = (0..3).map(|_| claims.claim(kind, "twice")).collect();
        let answers = one.try_acquire(&batch).await.unwrap();
        let granted: Vec<_> =
            answers.iter().filter(|answer| matches!(answer, Ok(Attempt::Granted { .. }))).collect();
        assert_eq!(granted.len(), 1, "{kind}: {answers:?}");
        let leases: Vec<_> = batch.iter().map(|claim| lease_of(claim, 0)).collect();
        let released = one.release(&leases).await.unwrap();
        let done = released.iter().filter(|released| matches!(released, Ok(Released::Done { .. }))).count();
        assert_eq!(done, 1, "{released:?}");
    }
}

/// A busy lock reports when the current holder expires: without a wake-up, the waiter retries then.
pub async fn a_busy_lock_says_when_to_retry<F: Fixture>(harness: Harness<F>) {
    let Some((one, other)) = leases(&harness).await else { return };
    let claims = Claims::new();
    let expiry = harness.timing().expiry;
    for kind in kinds(&*one) {
        let claim = claims.claim(kind, "retry after").with_expiry(expiry);
        granted(&*one, &claim).await;
        match attempt(&*other, &claims.claim(kind, "retry after")).await {
            Attempt::Busy { retry_after: Some(after), .. } => {
                assert!(after <= expiry + Duration::from_millis(50), "{kind}: {after:?} of {expiry:?}");
            }
            other => panic!("{kind}: a busy lock that expires does not say when: {other:?}"),
        }
        release(&*one, &lease_of(&claim, 0)).await;
    }
}
