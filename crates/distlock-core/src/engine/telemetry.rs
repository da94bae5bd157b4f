//! Telemetry: `tracing` spans and events, and metrics behind the `metrics` feature. The tables of both are in
//! [`crate::telemetry`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::held::Held;
use crate::error::Error;
use crate::resource::{Kind, Resource};
use crate::store::LossReason;

/// The kind that a user asked for: the queue of a fair mutex is part of the mutex.
#[cfg(feature = "metrics")]
fn kind_of(resource: &Resource) -> &'static str {
    match resource.kind() {
        Kind::FairQueue => Kind::Mutex.as_str(),
        kind => kind.as_str(),
    }
}

/// Whether it is a lock of a user, and not the queue of a fair mutex.
fn is_users(resource: &Resource) -> bool {
    resource.kind() != Kind::FairQueue
}

/// The span of an acquisition, including its wait.
pub(crate) fn acquire_span(resource: &Resource, store: &str) -> tracing::Span {
    if is_users(resource) {
        tracing::debug_span!("distlock.acquire", %resource, store)
    } else {
        tracing::debug_span!("distlock.queue", %resource, store)
    }
}

/// The span of a release, for a user that waits for it or in the background.
pub(crate) fn release_span(held: &Held, store: &str) -> tracing::Span {
    tracing::debug_span!("distlock.release", resource = %held.resource, store)
}

/// The span of a renewal batch.
pub(crate) fn renew_span(leases: usize, store: &str) -> tracing::Span {
    tracing::debug_span!("distlock.renew", leases, store)
}

/// The span of the subscription for wake-ups.
pub(crate) fn listen_span(store: &str) -> tracing::Span {
    tracing::debug_span!("distlock.listen", store)
}

/// A lock was granted after this wait.
pub(crate) fn acquired(held: &Held, waited: Duration, store: &Arc<str>) {
    tracing::debug!(resource = %held.resource, lock_id = %held.lock_id(), token = held.token.get(), ?waited, "acquired");
    #[cfg(feature = "metrics")]
    if is_users(&held.resource) {
        let kind = kind_of(&held.resource);
        metrics::counter!(names::ACQUIRED, "kind" => kind, "store" => label(store)).increment(1);
        metrics::histogram!(names::WAIT, "kind" => kind, "store" => label(store))
            .record(waited.as_secs_f64());
        metrics::gauge!(names::HELD, "kind" => kind, "store" => label(store)).increment(1.0);
    }
    let _ = store;
}

/// An attempt found the lock busy.
pub(crate) fn busy(resource: &Resource, store: &Arc<str>) {
    tracing::trace!(%resource, "busy");
    #[cfg(feature = "metrics")]
    metrics::counter!(names::BUSY, "kind" => kind_of(resource), "store" => label(store)).increment(1);
    let _ = store;
}

/// Counts one acquisition among the waiting ones, from its first [`begin`](WaitGauge::begin) until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitGauge<'a> {
    resource: &'a Resource,
    store: &'a Arc<str>,
    begun: AtomicBool,
}

impl<'a> WaitGauge<'a> {
    pub(crate) fn new(resource: &'a Resource, store: &'a Arc<str>) -> Self {
        WaitGauge { resource, store, begun: AtomicBool::new(false) }
    }

    /// The acquisition waits. False if it waited before.
    pub(crate) fn begin(&self, retry_after: Option<Duration>) -> bool {
        if self.begun.swap(true, Ordering::Relaxed) {
            return false;
        }
        tracing::debug!(resource = %self.resource, ?retry_after, "waiting");
        self.add(1.0);
        true
    }

    fn add(&self, change: f64) {
        #[cfg(feature = "metrics")]
        metrics::gauge!(names::WAITING, "kind" => kind_of(self.resource), "store" => label(self.store))
            .increment(change);
        let _ = (self.store, change);
    }
}

impl Drop for WaitGauge<'_> {
    fn drop(&mut self) {
        if *self.begun.get_mut() {
            self.add(-1.0);
        }
    }
}

/// A task waits for what it holds itself.
pub(crate) fn waits_for_itself(resource: &Resource, store: &str) {
    tracing::warn!(
        %resource,
        store,
        "this task waits for a lock that it holds: locks are not re-entrant, and it waits until its own guard is released or lost"
    );
}

/// The time limit passed.
pub(crate) fn timed_out(resource: &Resource, store: &Arc<str>) {
    tracing::debug!(%resource, "timed out");
    #[cfg(feature = "metrics")]
    metrics::counter!(names::TIMED_OUT, "kind" => kind_of(resource), "store" => label(store)).increment(1);
    let _ = store;
}

/// A request failed. The engine retries where that can help.
pub(crate) fn failed(doing: &'static str, error: &Error, store: &Arc<str>) {
    tracing::warn!(error = %format_args!("{error:#}"), doing, %store, "a request to the store failed");
    #[cfg(feature = "metrics")]
    metrics::counter!(names::ERRORS, "doing" => doing, "store" => label(store)).increment(1);
}

/// A batch of leases was renewed.
pub(crate) fn renewed(leases: usize, latency: Duration, store: &Arc<str>) {
    tracing::trace!(leases, ?latency, "renewed");
    #[cfg(feature = "metrics")]
    metrics::histogram!(names::RENEWAL, "store" => label(store)).record(latency.as_secs_f64());
    let _ = store;
}

/// A guard is lost.
pub(crate) fn lost(held: &Held, reason: &LossReason, store: &Arc<str>) {
    if !is_users(&held.resource) {
        tracing::debug!(resource = %held.resource, lock_id = %held.lock_id(), %reason, %store, "lost");
        return;
    }
    tracing::warn!(
        resource = %held.resource,
        lock_id = %held.lock_id(),
        token = held.token.get(),
        %reason,
        %store,
        "lost"
    );
    #[cfg(feature = "metrics")]
    {
        let kind = kind_of(&held.resource);
        metrics::counter!(names::LOST, "kind" => kind, "store" => label(store)).increment(1);
        metrics::gauge!(names::HELD, "kind" => kind, "store" => label(store)).decrement(1.0);
    }
}

/// A lock was released after this long.
pub(crate) fn released(held: &Held, after: Duration, store: &Arc<str>) {
    tracing::debug!(resource = %held.resource, lock_id = %held.lock_id(), token = held.token.get(), held = ?after, "released");
    #[cfg(feature = "metrics")]
    if is_users(&held.resource) {
        let kind = kind_of(&held.resource);
        metrics::histogram!(names::HOLD, "kind" => kind, "store" => label(store)).record(after.as_secs_f64());
        metrics::gauge!(names::HELD, "kind" => kind, "store" => label(store)).decrement(1.0);
    }
    let _ = store;
}

#[cfg(feature = "metrics")]
fn label(store: &Arc<str>) -> metrics::SharedString {
    Arc::clone(store).into()
}

/// Tells the recorder the unit and meaning of each metric. An application installs its recorder before it connects.
#[cfg(feature = "metrics")]
pub(crate) fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

    for (name, meaning) in [
        (names::ACQUIRED, "Locks granted."),
        (names::BUSY, "Attempts that found the lock held by another client."),
        (names::TIMED_OUT, "Acquisitions that reached their time limit."),
        (names::LOST, "Guards lost while they were held."),
        (names::ERRORS, "Requests to the store that failed; most are retried."),
    ] {
        describe_counter!(name, Unit::Count, meaning);
    }
    describe_gauge!(names::HELD, Unit::Count, "Locks held now.");
    describe_gauge!(names::WAITING, Unit::Count, "Acquisitions that wait now.");
    for (name, meaning) in [
        (names::WAIT, "Time from the request to the grant."),
        (names::HOLD, "Time from the grant to the release."),
        (names::RENEWAL, "Time that a batch of renewals took."),
    ] {
        describe_histogram!(name, Unit::Seconds, meaning);
    }
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn describe() {}

#[cfg(feature = "metrics")]
mod names {
    pub(super) const ACQUIRED: &str = "distlock_acquired_total";
    pub(super) const BUSY: &str = "distlock_busy_total";
    pub(super) const TIMED_OUT: &str = "distlock_timed_out_total";
    pub(super) const LOST: &str = "distlock_lost_total";
    pub(super) const ERRORS: &str = "distlock_errors_total";
    pub(super) const WAIT: &str = "distlock_wait_seconds";
    pub(super) const HOLD: &str = "distlock_hold_seconds";
    pub(super) const HELD: &str = "distlock_held";
    pub(super) const WAITING: &str = "distlock_waiting";
    pub(super) const RENEWAL: &str = "distlock_renewal_seconds";
}
