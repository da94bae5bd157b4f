//! Locks whose engine runs: what a request, and an operator, ask of the store.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::timeout::TimeLimit;
use crate::engine::{Engine, contained};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::resource::{Kind, Resource};
use crate::store::support::errors;
use crate::store::{Capabilities, Finding, Holder, Query, Record, Store};

/// The time limit of an operator's request: list the locks, break a lock, examine the store. A stalled server never replies,
/// and a list may be long.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs an operator's request within the time limit. A panic in the store's code becomes an error.
async fn within_limit<T>(
    store: &dyn Store,
    doing: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(ADMIN_TIMEOUT, contained(store, doing, call)).await.unwrap_or_else(|_| {
        Err(errors::unavailable(format!("no reply within {ADMIN_TIMEOUT:?}")).with_request_in_flight())
    })
}

/// The name that a ping asks for. It need not exist.
const PING: &str = "distlock-ping";

/// A running engine, and the options of the locks that ask it.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) options: Arc<Options>,
}

impl Handle {
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.engine.shared.capabilities
    }

    pub(crate) fn store(&self) -> &str {
        &self.engine.shared.store_name
    }

    pub(crate) async fn ping(&self, limit: &TimeLimit) -> Result<()> {
        let (store, clock) = (self.engine.shared.backend.store(), &*self.engine.shared.clock);
        self.engine.check_running("reach the store")?;
        let query = Query::named(PING).with_kind(Kind::Mutex);
        let asked = contained(store, "reach the store", async { store.inspect(&query).await });
        let answer = limit.enforce(clock, pin!(asked)).await;
        answer.map(drop).map_err(|error| error.doing("reach the store").on(self.store().to_owned()))
    }

    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        let mut query = query.clone();
        let kind = query.kind.take();
        let store = self.engine.shared.backend.store();
        let found = within_limit(store, "list the locks", async { store.inspect(&query).await })
            .await
            .map_err(|error| error.doing("list the locks").on(self.store().to_owned()))?;
        let (queues, mut records): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|record| record.kind == Kind::FairQueue);
        for queue in queues.into_iter().filter(|queue| !queue.waiters.is_empty()) {
            let mutex =
                records.iter_mut().find(|record| record.kind == Kind::Mutex && record.name == queue.name);
            match mutex {
                Some(mutex) => mutex.waiters.extend(queue.waiters),
                None => records.push(Record { kind: Kind::Mutex, holders: Vec::new(), ..queue }),
            }
        }
        records.retain(|record| {
            kind.is_none_or(|wanted| wanted == record.kind)
                && record.name.as_deref().is_none_or(|name| query.matches(record.kind, name))
                && !(record.holders.is_empty() && record.waiters.is_empty())
        });
        records.sort_by(|a, b| (a.kind, &a.name, &a.key).cmp(&(b.kind, &b.name, &b.key)));
        Ok(records)
    }

    pub(crate) async fn holders(&self, kind: Kind, name: Arc<str>) -> Result<Vec<Holder>> {
        let query = Query::named(&*name).with_kind(kind);
        Ok(self.inspect(&query).await?.into_iter().flat_map(|record| record.holders).collect())
    }

    pub(crate) async fn break_lock(&self, kind: Kind, name: Arc<str>) -> Result<Vec<Holder>> {
        let resource = Resource::new(kind, name)?;
        let store = self.engine.shared.backend.store();
        let explain = |error: Error| {
            let error = if error.is_request_in_flight() { error.with_unknown_outcome() } else { error };
            error.doing("break").about(&resource).on(self.store().to_owned())
        };
        let broken = within_limit(store, "break", async { store.break_lock(&resource).await })
            .await
            .map_err(explain)?;
        if kind == Kind::Mutex && !broken.is_empty() && self.capabilities().has(Kind::FairQueue) {
            // A fair holder keeps the queue head until it notices the loss, and fair waiters would wait for that. At worst
            // a waiter loses its place.
            let queue = Resource::new(Kind::FairQueue, resource.name())?;
            within_limit(store, "break", async { store.break_lock(&queue).await }).await.map_err(explain)?;
        }
        Ok(broken)
    }

    pub(crate) async fn doctor(&self) -> Result<Vec<Finding>> {
        let store = self.engine.shared.backend.store();
        within_limit(store, "examine", async { store.doctor().await })
            .await
            .map_err(|error| error.doing("examine").on(self.store().to_owned()))
    }
}
