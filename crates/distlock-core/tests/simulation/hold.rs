//! Holding a lock, and every way to end it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use distlock_core::{CancellationToken, Guard, ReleaseError, Resource};
use futures_util::FutureExt;
use futures_util::future::select_all;
use std::panic::AssertUnwindSafe;
use tokio::time::sleep;

use crate::client::User;
use crate::excuses;
use crate::observations::Verb;
use crate::rules;
use crate::runtimes::DropAfter;
use crate::world::World;

/// How soon a released lock passes to a waiter, if there is one and there are no faults.
const HANDOFF_LIMIT: Duration = Duration::from_millis(400);

impl User {
    /// Holds for a while, or until a lock is lost, and releases all.
    pub async fn hold(&mut self, holds: Vec<usize>) {
        if holds.is_empty() {
            return;
        }
        let signals: Vec<CancellationToken> = {
            let observed = self.world.observed();
            holds.iter().map(|hold| observed.holds[*hold].signal.clone()).collect()
        };
        let mut length = Duration::from_millis(self.rng.u64(0..=self.world.plan.hold));
        if self.rng.u32(0..12) == 0 {
            length *= 8;
        }
        let world = Arc::clone(&self.world);
        tokio::select! {
            biased;
            () = world.stop.cancelled() => sleep(length.min(Duration::from_millis(20))).await,
            _ = select_all(signals.iter().map(|signal| Box::pin(signal.cancelled()))) => {}
            () = sleep(length) => {}
        }
        let until = world.time();
        // A lost guard is kept for a while: other clients must not depend on its user.
        if self.rng.u32(0..4) == 0 && signals.iter().any(CancellationToken::is_cancelled) {
            sleep(Duration::from_millis(self.rng.u64(0..=500))).await;
        }
        for hold in holds {
            rules::broken(&self.world, hold);
            self.look_for_loss(hold, until);
            self.release_hold(hold).await;
        }
    }

    fn look_for_loss(&self, number: usize, held_until: Duration) {
        let hold = self.world.observed().holds[number].clone();
        let loss = hold.guard.lock().unwrap().as_ref().and_then(Guard::loss);
        if let Some(reason) = loss {
            self.world.note(|| {
                format!(
                    "{} sees that {} is lost: {reason}",
                    self.process,
                    crate::trace_format::shown(&hold.lock_id)
                )
            });
            rules::lost(&self.world, number, &reason, held_until);
        }
    }

    async fn release_hold(&mut self, number: usize) {
        let (guard, resource, options) = {
            let mut observed = self.world.observed();
            let now = self.world.time();
            let op = observed.holds[number].op;
            let options = observed.ops[op].choice.options.clone();
            let resource = observed.holds[number].resource.clone();
            (observed.end_hold(number, now), resource, options)
        };
        let Some(guard) = guard else { return };
        let half_way = self.rng.u32(0..100) < self.world.plan.drops;
        if self.rng.u32(0..4) == 0 {
            self.world.note(|| format!("{} drops {resource}", self.process));
            drop(guard);
            return;
        }
        let polls = half_way.then(|| self.rng.u32(0..3));
        self.world.note(|| {
            format!("{} releases {resource}{}", self.process, if half_way { " and cancels" } else { "" })
        });
        let begun = self.world.time();
        let released = AssertUnwindSafe(DropAfter::new(guard.release(), polls)).catch_unwind().await;
        let now = self.world.time();
        let took = now - begun;
        let most = options.get_hold_at_least() + 3 * options.get_request_timeout() + Duration::from_secs(3);
        let stalled = self.world.observed().stalled_for(self.process.slot, begun, now);
        if took > most + stalled {
            self.world
                .violated(rules::LIVENESS, format!("{} needs {took:?} to release {resource}", self.process));
        }
        match released {
            Err(_) => self.world.violated(rules::PANIC, format!("the release of {resource} panics")),
            Ok(Some(Err(ReleaseError::Unknown { error, .. }))) => {
                self.release_failed(&resource, &error, begun)
            }
            Ok(Some(Ok(()))) => self.expect_handoff(resource),
            _ => {}
        }
    }

    fn release_failed(&self, resource: &Resource, error: &distlock_core::Error, begun: Duration) {
        self.world.note(|| format!("{} cannot release {resource}: {error}", self.process));
        let observed = self.world.observed();
        let now = self.world.time();
        let troubled = observed.faulty_nodes(
            self.process.slot,
            &[Verb::Release],
            std::slice::from_ref(resource),
            begun,
            now,
        );
        let works = self.world.plan.nodes - troubled.len() >= self.world.majority();
        let excused = !works
            || !excuses::behind_unanswered(&self.world, &observed, self.process.slot, Verb::Release, begun)
                .is_zero()
            || !self.process.works()
            || self.process.shut_down.load(SeqCst)
            || observed.is_stalled_within(self.process.slot, begun, now);
        drop(observed);
        if !excused {
            self.world.violated(rules::FAILED, format!("the release of {resource} fails: {error}"));
        }
    }

    /// Without faults, and if the store can push, a waiter acquires the lock soon.
    fn expect_handoff(&self, resource: Resource) {
        if !self.world.plan.calm || !self.world.plan.push {
            return;
        }
        let (world, released): (Arc<World>, _) = (Arc::clone(&self.world), self.world.time());
        world.main_work.store(true, SeqCst);
        world.main.clone().spawn(async move {
            sleep(HANDOFF_LIMIT).await;
            rules::handoff(&world, &resource, released);
        });
    }
}
