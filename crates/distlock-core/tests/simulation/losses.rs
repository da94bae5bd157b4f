//! Nodes that forget and operators that break locks: which holds may be lost then.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use distlock_core::store::{LeaseStore, Query, Store};
use distlock_core::{Kind, Resource};
use futures_util::FutureExt;

use crate::plan::Choice;
use crate::run::Simulation;

impl Simulation {
    /// A node is about to lose its leases. Holds with a majority of the other nodes are safe.
    pub(crate) fn forgets(&self, node: usize) {
        let world = &self.world;
        let mut observed = world.observed();
        observed.last_loss_of_memory = Some(world.time());
        let quorum = world.plan.nodes > 1;
        observed.excuse(
            |_| true,
            |hold| {
                let left = hold.guard.lock().unwrap().as_ref().and_then(distlock_core::Guard::time_left);
                quorum
                    && left.is_some_and(|left| {
                        world.votes(&hold.resource, &hold.lock_id, left, node) >= world.majority()
                    })
            },
        );
    }

    /// A replica takes over, without the requests since its last message. A fail-over takes time: it does not happen before the
    /// clock, which both have, is past the last token.
    pub(crate) fn fail_over(&self, node: usize) {
        let world = &self.world;
        let server = &world.servers[node];
        if !server.may_forget() || !server.fail_over() {
            return;
        }
        self.forgets(node);
        let longest = |choice: &Choice| choice.options.get_expiry().max(choice.ttl);
        let longest = world.plan.choices.iter().map(longest).max().unwrap_or_default();
        {
            let mut observed = world.observed();
            // What was released since is there again.
            for record in server.records(&Query::default()) {
                observed.orphans.extend(record.holders.into_iter().map(|holder| holder.lock_id));
                observed.orphans.extend(record.waiters.into_iter().map(|waiter| waiter.lock_id));
            }
            observed.orphans_until = observed.orphans_until.max(world.time() + longest);
        }
        self.disconnect(node);
    }

    pub(crate) fn disconnect(&self, node: usize) {
        self.clients.iter().for_each(|client| client.links[node].end_stream());
        self.clients.iter().for_each(|client| client.process.has_message.store(true, SeqCst));
    }

    pub(crate) fn forget_tokens(&self, node: usize) {
        let world = &self.world;
        let mut observed = world.observed();
        for (resource, token) in observed.highest_tokens() {
            let others = world.servers.iter().enumerate().filter(|(at, _)| *at != node);
            let know = others.filter(|(_, server)| {
                server.memory().last_token(&resource).is_some_and(|last| last.get() >= token)
            });
            if know.count() < world.majority() {
                observed.forget_tokens(&resource);
            }
        }
    }

    pub(crate) fn break_locks(&self, name: usize) {
        let world = &self.world;
        let name = format!("n{name}");
        let mine = |resource: &Resource| resource.name() == name;
        world.observed().excuse(mine, |_| false);
        for server in &world.servers {
            for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue] {
                let resource = Resource::new(kind, name.as_str()).unwrap();
                let store: Arc<dyn LeaseStore> = server.store();
                let Some(Ok(broken)) = Store::break_lock(&*store, &resource).now_or_never() else { continue };
                let mut observed = world.observed();
                for hold in
                    observed.holds.iter_mut().filter(|hold| broken.iter().any(|b| b.lock_id == hold.lock_id))
                {
                    hold.broken = Some(world.time());
                }
            }
        }
        world.main_work.store(true, SeqCst);
    }
}
