//! Holding what was granted, and every way to end it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use distlock_core::{CancellationToken, Guard, ReleaseError, Resource};
use futures_util::FutureExt;
use futures_util::future::select_all;
use std::panic::AssertUnwindSafe;
use tokio::time::sleep;

use crate::check::Verb;
use crate::client::User;
use crate::rules;
use crate::stage::DropAfter;
use crate::world::World;

/// How soon a lock that was given back is somebody else's, if somebody waits and nothing is wrong.
const HANDED_OVER: Duration = Duration::from_millis(400);

impl User {
    /// Holds for a while, or until something is lost, and gives everything back.
    pub async fn hold(&mut self, holds: Vec<usize>) {
        if holds.is_empty() {
            return;
        }
        let signals: Vec<CancellationToken> = {
            let checker = self.world.check();
            holds.iter().map(|hold| checker.holds[*hold].signal.clone()).collect()
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
        // A lost guard is kept for a while: nothing may depend on its user being quick.
        if self.rng.u32(0..4) == 0 && signals.iter().any(CancellationToken::is_cancelled) {
            sleep(Duration::from_millis(self.rng.u64(0..=500))).await;
        }
        for hold in holds {
            rules::broken(&self.world, hold);
            self.look_for_loss(hold, until);
            self.give_back(hold).await;
        }
    }

    fn look_for_loss(&self, number: usize, held_until: Duration) {
        let hold = self.world.check().holds[number].clone();
        let loss = hold.guard.lock().unwrap().as_ref().and_then(Guard::loss);
        if let Some(reason) = loss {
            self.world.note(|| {
                format!("{} sees that {} is lost: {reason}", self.process, crate::shown::shown(&hold.lock_id))
            });
            rules::lost(&self.world, number, &reason, held_until);
        }
    }

    async fn give_back(&mut self, number: usize) {
        let (guard, resource, options) = {
            let mut checker = self.world.check();
            let now = self.world.time();
            let op = checker.holds[number].op;
            let options = checker.ops[op].choice.options.clone();
            let resource = checker.holds[number].resource.clone();
            (checker.end_hold(number, now), resource, options)
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
            format!("{} releases {resource}{}", self.process, if half_way { " half-way" } else { "" })
        });
        let begun = self.world.time();
        let released = AssertUnwindSafe(DropAfter::new(guard.release(), polls)).catch_unwind().await;
        let now = self.world.time();
        let took = now - begun;
        let most = options.get_hold_at_least() + 3 * options.get_request_timeout() + Duration::from_secs(3);
        let stalled = self.world.check().stalled_for(self.process.slot, begun, now);
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
        let checker = self.world.check();
        let now = self.world.time();
        let troubled = checker.troubled_nodes(
            self.process.slot,
            &[Verb::Release],
            std::slice::from_ref(resource),
            begun,
            now,
        );
        let works = self.world.plan.nodes - troubled.len() >= self.world.majority();
        let excused = !works
            || !rules::behind_stuck(&self.world, &checker, self.process.slot, Verb::Release, begun).is_zero()
            || !self.process.works()
            || self.process.shut_down.load(SeqCst)
            || checker.is_stalled_within(self.process.slot, begun, now);
        drop(checker);
        if !excused {
            self.world.violated(rules::FAILED, format!("the release of {resource} fails: {error}"));
        }
    }

    /// Where nothing is wrong and the store can wake, a waiter has the lock soon.
    fn expect_handoff(&self, resource: Resource) {
        if !self.world.plan.calm || !self.world.plan.push {
            return;
        }
        let (world, released): (Arc<World>, _) = (Arc::clone(&self.world), self.world.time());
        world.main_work.store(true, SeqCst);
        world.main.clone().spawn(async move {
            sleep(HANDED_OVER).await;
            rules::handed_over(&world, &resource, released);
        });
    }
}
