//! For one resource tokens strictly increase, whatever ends a hold.

use distlock_core::Locks;

use crate::actors::Terms;
use crate::conformance::{Fixture, Stage};
use crate::history::{Recorder, Want};
use std::sync::Arc;

struct Rising {
    recorder: Arc<Recorder>,
    want: Want,
    last: u64,
}

impl Rising {
    /// Takes the lock on an engine and compares its token with the last one.
    async fn take<F: Fixture>(
        &mut self,
        stage: &Stage<F>,
        locks: &Locks,
        after: &str,
    ) -> crate::history::Taken {
        let taken = stage.take(&self.recorder, locks, &self.want).await;
        self.check(taken.token().get(), after);
        taken
    }

    fn check(&mut self, token: u64, after: &str) {
        let last = std::mem::replace(&mut self.last, token);
        assert!(token > last, "after {after} the token of {:?} is {token}, and it was {last}", self.want);
    }
}

/// A release, a drop, an expiry, a crash, a forced release, the end of an engine: one after the other on one name,
/// for every way of being alone with it.
pub async fn tokens_rise_whatever_ends_a_hold<F: Fixture>(stage: Stage<F>) {
    let locks = stage.locks().await;
    let wants = Want::every_exclusive(locks.capabilities(), "counted");
    stage
        .for_each(wants, |stage, want| async move {
            let recorder = stage.recorder("taker");
            end_in_every_way(&stage, Rising { recorder, want, last: 0 }).await;
        })
        .await;
}

async fn end_in_every_way<F: Fixture>(stage: &Stage<F>, mut rising: Rising) {
    let (one, other) = (stage.locks().await, stage.locks().await);
    rising.take(stage, &one, "nothing").await.release().await.unwrap();
    drop(rising.take(stage, &other, "a release").await);
    rising.take(stage, &one, "a drop").await.release().await.unwrap();

    let unextended = stage.locks_on(Terms { auto_extend: false, ..stage.expiring() }).await;
    let expires = rising.take(stage, &unextended, "a release").await;
    if stage.has_leases().await {
        stage.within("the end of a lease", expires.wait_for_loss()).await;
    }
    drop(expires);
    rising.take(stage, &other, "an expiry").await.release().await.unwrap();

    let actor = stage.actor("victim", stage.expiring());
    let token = stage.within("a grant", actor.take(1, &rising.want)).await;
    rising.check(token, "a release");
    actor.kill().await;
    rising.take(stage, &one, "a crash").await.release().await.unwrap();

    if one.capabilities().forced_release {
        let broken = rising.take(stage, &one, "a release").await;
        stage.break_lock(&other, &rising.want).await;
        let next = rising.take(stage, &other, "a forced release").await;
        drop(broken);
        next.release().await.unwrap();
    }
    let left = rising.take(stage, &other, "a release").await;
    other.shutdown().await.unwrap();
    drop(left);
    drop(rising.take(stage, &one, "the end of an engine").await);
    one.shutdown().await.unwrap();
    let anew = stage.locks().await;
    rising.take(stage, &anew, "the end of all engines").await.release().await.unwrap();
}

/// Those who hold together have tokens of their own, in the order of their grants.
pub async fn tokens_of_those_who_share_rise_too<F: Fixture>(stage: Stage<F>) {
    let (one, other) = (stage.locks().await, stage.locks().await);
    let recorder = stage.recorder("sharers");
    for want in [Want::read("shared"), Want::permits("shared", 50, 2)] {
        if !stage.offers(&one, &want).await {
            continue;
        }
        let mut held = Vec::new();
        for locks in [&one, &other].into_iter().cycle().take(20) {
            held.push(stage.take(&recorder, locks, &want).await);
        }
        let tokens: Vec<u64> = held.iter().map(|taken| taken.token().get()).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens of {want:?}: {tokens:?}");
        held.remove(7).release().await.unwrap();
        let again = stage.take(&recorder, &one, &want).await;
        assert!(again.token().get() > tokens[19], "a freed permit came back with an old token");
    }
}

/// Many short holds by many engines: more than one a millisecond on a fast store, where the clock alone would repeat
/// itself.
pub async fn tokens_rise_from_engine_to_engine<F: Fixture>(stage: Stage<F>) {
    let recorder = stage.recorder("engines");
    let engines = [stage.locks().await, stage.locks().await, stage.locks().await];
    let mut rising = Rising { recorder, want: Want::mutex("quick"), last: 0 };
    for locks in engines.iter().cycle().take(60) {
        rising.take(&stage, locks, "a release").await.release().await.unwrap();
    }
}
