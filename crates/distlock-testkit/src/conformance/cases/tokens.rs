//! For one resource tokens strictly increase, whatever ends a hold.

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
    /// Takes the lock on an engine and compares its token with the last one.
    async fn acquire<F: Fixture>(
        &mut self,
        harness: &Harness<F>,
        locks: &Locks,
        after: &str,
    ) -> crate::history::RecordedGuard {
        let taken = harness.acquire(&self.recorder, locks, &self.spec).await;
        self.check(taken.token().get(), after);
        taken
    }

    fn check(&mut self, token: u64, after: &str) {
        let last = std::mem::replace(&mut self.last, token);
        assert!(token > last, "after {after} the token of {:?} is {token}, and it was {last}", self.spec);
    }
}

/// A release, a drop, an expiry, a crash, a forced release, the end of an engine: one after the other on one name,
/// for every way of being alone with it.
pub async fn tokens_increase_however_a_hold_ends<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    let specs = LockSpec::every_exclusive(locks.capabilities(), "counted");
    harness
        .for_each(specs, |harness, spec| async move {
            let recorder = harness.recorder("taker");
            end_in_every_way(&harness, TokenSequence { recorder, spec, last: 0 }).await;
        })
        .await;
}

async fn end_in_every_way<F: Fixture>(harness: &Harness<F>, mut sequence: TokenSequence) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    sequence.acquire(harness, &one, "nothing").await.release().await.unwrap();
    drop(sequence.acquire(harness, &other, "a release").await);
    sequence.acquire(harness, &one, "a drop").await.release().await.unwrap();

    let unextended = harness.locks_with(TestOptions { auto_extend: false, ..harness.short_lease() }).await;
    let expires = sequence.acquire(harness, &unextended, "a release").await;
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
    let left = sequence.acquire(harness, &other, "a release").await;
    other.shutdown().await.unwrap();
    drop(left);
    drop(sequence.acquire(harness, &one, "the end of an engine").await);
    one.shutdown().await.unwrap();
    let anew = harness.locks().await;
    sequence.acquire(harness, &anew, "the end of all engines").await.release().await.unwrap();
}

/// Those who hold together have tokens of their own, in the order of their grants.
pub async fn tokens_of_concurrent_holders_increase<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("sharers");
    for spec in [LockSpec::read("shared"), LockSpec::permits("shared", 50, 2)] {
        if !harness.supports(&one, &spec).await {
            continue;
        }
        let mut held = Vec::new();
        for locks in [&one, &other].into_iter().cycle().take(20) {
            held.push(harness.acquire(&recorder, locks, &spec).await);
        }
        let tokens: Vec<u64> = held.iter().map(|taken| taken.token().get()).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens of {spec:?}: {tokens:?}");
        held.remove(7).release().await.unwrap();
        let again = harness.acquire(&recorder, &one, &spec).await;
        assert!(again.token().get() > tokens[19], "a freed permit came back with an old token");
    }
}

/// Many short holds by many engines: more than one a millisecond on a fast store, where the clock alone would repeat
/// itself.
pub async fn tokens_increase_across_engines<F: Fixture>(harness: Harness<F>) {
    let recorder = harness.recorder("engines");
    let engines = [harness.locks().await, harness.locks().await, harness.locks().await];
    let mut sequence = TokenSequence { recorder, spec: LockSpec::mutex("quick"), last: 0 };
    for locks in engines.iter().cycle().take(60) {
        sequence.acquire(&harness, locks, "a release").await.release().await.unwrap();
    }
}
