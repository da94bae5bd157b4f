//! The end of a run: faults end, all operations end, and nothing may be left.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::rules;
use crate::run::Simulation;

impl Simulation {
    pub(crate) fn finish(&mut self) {
        self.heal();
        self.all_operations_end();
        self.no_leaks();
        self.ended_runtimes_are_reported();
        self.everything_expires();
    }

    fn heal(&mut self) {
        let world = Arc::clone(&self.world);
        world.note(|| "no more faults".to_owned());
        world.healed.store(true, SeqCst);
        let now = world.time();
        self.end_visit();
        for slot in 0..world.plan.clients {
            for (_, _, end) in world.observed().stalls.iter_mut().filter(|(client, ..)| *client == slot) {
                *end = (*end).min(now);
            }
            world.outages.lock().unwrap()[slot].fill(None);
            self.resume(slot);
        }
        for outage in &mut world.observed().outages {
            outage.3 = outage.3.min(now);
        }
        world.stop.cancel();
        self.clients.iter().for_each(|client| client.process.has_message.store(true, SeqCst));
        self.settle();
    }

    /// How long the leases and queue entries of ended processes can live.
    fn longest_leftover_lifetime(&self) -> Duration {
        let choices = &self.world.plan.choices;
        let longest = choices.iter().map(|choice| choice.options.get_expiry().max(choice.ttl)).max();
        longest.unwrap_or_default() + Duration::from_secs(2)
    }

    fn all_operations_end(&mut self) {
        let world = Arc::clone(&self.world);
        let now = world.time();
        let plan = &world.plan;
        let (pending, leftovers) = {
            let observed = world.observed();
            let pending = observed.live_ops.len() as u32;
            let gone = !observed.gone.is_empty() || observed.orphans_until > now;
            (
                pending,
                gone.then(|| {
                    self.longest_leftover_lifetime() * 2 + Duration::from_secs(2) * observed.gone.len() as u32
                }),
            )
        };
        let sleeps = plan.choices.iter().map(|choice| choice.options.get_busy_wait_sleep().1).max();
        let handoff = if plan.push { Duration::from_millis(1_700) } else { sleeps.unwrap_or_default() * 2 };
        let moved_back = world.observed().moved_back;
        let limit = 3 * plan.request_timeout + Duration::from_secs(7) + handoff * (pending + 1);
        let limit = now + limit + leftovers.unwrap_or_default() + moved_back;
        loop {
            let waiting = {
                let observed = world.observed();
                let op = observed.live_ops.first().copied();
                let held = observed.live_holds().find(|hold| hold.process.works()).map(|hold| hold.op);
                op.or(held).map(|number| (op.unwrap_or(usize::MAX), observed.ops[number].clone()))
            };
            let Some((number, op)) = waiting else { break };
            if world.is_over() {
                return;
            }
            if world.time() >= limit {
                let what = op.resources.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let text = match number {
                    usize::MAX => "a guard was never released".to_owned(),
                    _ => format!("op {number} of {} waits for {what} since {:?}", op.process, op.started),
                };
                world.violated(rules::LIVENESS, format!("{text}, and faults ended at {now:?}"));
                return;
            }
            self.step(limit);
        }
    }

    fn no_leaks(&mut self) {
        let world = Arc::clone(&self.world);
        // Some engines end when they are idle, some keep running.
        for client in self.clients.iter_mut().filter(|client| client.process.generation % 2 == 0) {
            client.locks = None;
        }
        let hung = world.observed().requests.iter().any(|request| request.answered.is_none());
        let patience = match hung {
            false => Duration::from_secs(3),
            true => Duration::from_secs(12) + 2 * world.plan.request_timeout,
        };
        self.advance_to(world.time() + patience);
        if !world.is_over() {
            rules::leaks(&world);
        }
    }

    fn ended_runtimes_are_reported(&mut self) {
        let world = Arc::clone(&self.world);
        let until = {
            let observed = world.observed();
            let theirs = observed.live_holds().filter(|hold| hold.process.ended.load(SeqCst));
            let ends =
                theirs.map(|hold| hold.granted_at + observed.ops[hold.op].choice.options.get_expiry() * 2);
            ends.max().map(|end| end + Duration::from_millis(2_100))
        };
        if let Some(until) = until {
            self.advance_to(until);
            if !world.is_over() {
                rules::ended_runtimes(&world);
            }
        }
    }

    fn everything_expires(&mut self) {
        if self.world.is_over() {
            return;
        }
        for client in &mut self.clients {
            client.process.dead.store(true, SeqCst);
            client.runtime = None;
        }
        let moved_back = self.world.observed().moved_back;
        let until = self.world.time().max(self.world.observed().orphans_until);
        self.advance_to(until + self.longest_leftover_lifetime() + Duration::from_secs(5) + moved_back);
        if !self.world.is_over() {
            rules::empty(&self.world);
        }
    }
}
