//! Tokens of a resource strictly increase, however a hold ends.

use distlock_core::Locks;

use crate::actors::TestOptions;
use crate::conformance::{Fixture, Harness};
use crate::history::{LockSpec, Recorder};
use std::sync::Arc;

struct TokenSequence {
    recorder: Arc<Recorder>,
    spec: LockSpec,
    last: u64,
}

impl TokenSequence {
    /// Acquires the lock and asserts that its token is higher than the last one.
    async fn acquire<F: Fixture>(
        &mut self,
        harness: &Harness<F>,
        locks: &Locks,
        after: &str,
    ) -> crate::history::RecordedGuard {
        let guard = harness.acquire(&self.recorder, locks, &self.spec).await;
        self.check(guard.token().get(), after);
        guard
    }

    fn check(&mut self, token: u64, after: &str) {
        let last = std::mem::replace(&mut self.last, token);
        assert!(
            token > last,
            "after {after} the token of {:?} is {token}, and the one before was {last}",
            self.spec
        );
    }
}

/// Release, drop, expiry, crash, forced release and shutdown follow each other on one name, for every exclusive lock.
pub async fn tokens_increase_however_a_hold_ends<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let specs = LockSpec::every_exclusive(locks.capabilities(), "counted");
    harness
        .for_each(specs, |harness, spec| async move {
            let recorder = harness.recorder("holder");
            end_hold_in_every_way(&harness, TokenSequence { recorder, spec, last: 0 }).await;
        })
        .await;
}

async fn end_hold_in_every_way<F: Fixture>(harness: &Harness<F>, mut sequence: TokenSequence) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    sequence.acquire(harness, &one, "nothing").await.release().await.unwrap();
    drop(sequence.acquire(harness, &other, "a release").await);
    sequence.acquire(harness, &one, "a drop").await.release().await.unwrap();

    let not_renewed = harness.locks_with(TestOptions { auto_extend: false, ..harness.short_lease() }).await;
    let expires = sequence.acquire(harness, &not_renewed, "a release").await;
    if harness.has_leases().await {
        harness.within("the end of a lease", expires.wait_for_loss()).await;
    }
    drop(expires);
    sequence.acquire(harness, &other, "an expiry").await.release().await.unwrap();

    let actor = harness.actor("victim", harness.short_lease());
    let token = harness.within("a grant", actor.acquire(1, &sequence.spec)).await;
    sequence.check(token, "a release");
    actor.kill().await;
    sequence.acquire(harness, &one, "a crash").await.release().await.unwrap();

    if one.capabilities().forced_release {
        let broken = sequence.acquire(harness, &one, "a release").await;
        harness.break_lock(&other, &sequence.spec).await;
        let next = sequence.acquire(harness, &other, "a forced release").await;
        drop(broken);
        next.release().await.unwrap();
    }
    let abandoned = sequence.acquire(harness, &other, "a release").await;
    other.shutdown().await.unwrap();
    drop(abandoned);
    drop(sequence.acquire(harness, &one, "a shutdown").await);
    one.shutdown().await.unwrap();
    let fresh = harness.locks().await;
    sequence.acquire(harness, &fresh, "the shutdown of all engines").await.release().await.unwrap();
}

/// Concurrent holders have different tokens, in the order of their grants.
pub async fn tokens_of_concurrent_holders_increase<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("holders");
    for spec in [LockSpec::read("shared"), LockSpec::permits("shared", 50, 2)] {
        if !harness.supports(&one, &spec).await {
            continue;
        }
        let mut held = Vec::new();
        for locks in [&one, &other].into_iter().cycle().take(20) {
            held.push(harness.acquire(&recorder, locks, &spec).await);
        }
        let tokens: Vec<u64> = held.iter().map(|guard| guard.token().get()).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens of {spec:?}: {tokens:?}");
        held.remove(7).release().await.unwrap();
        let again = harness.acquire(&recorder, &one, &spec).await;
        assert!(again.token().get() > tokens[19], "a freed permit was granted with an old token");
    }
}

/// Many short holds by several engines: on a fast store more than one per millisecond, so that the clock alone would repeat
/// a token.
pub async fn tokens_increase_across_engines<F: Fixture>(harness: Harness<F>) {
    let recorder = harness.recorder("engines");
    let engines = [harness.locks().await, harness.locks().await, harness.locks().await];
    let mut sequence = TokenSequence { recorder, spec: LockSpec::mutex("short holds"), last: 0 };
    for locks in engines.iter().cycle().take(60) {
        sequence.acquire(&harness, locks, "a release").await.release().await.unwrap();
    }
}
