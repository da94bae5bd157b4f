//! Telemetry: `tracing` spans and events, and counters, gauges and histograms behind the `metrics` feature.

use std::time::Duration;

use crate::error::Error;
use crate::resource::Resource;
use crate::store::{Lease, LossReason};

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
    pub(super) const EXTENSION: &str = "distlock_extension_seconds";
}

/// The span of an acquisition, including its wait.
pub(crate) fn acquire_span(resource: &Resource, store: &str) -> tracing::Span {
    tracing::debug_span!("acquire", %resource, store)
}

/// The span of a release that a user waits for.
pub(crate) fn release_span(lease: &Lease, store: &str) -> tracing::Span {
    tracing::debug_span!("release", resource = %lease.resource, store)
}

/// The span of a renewal batch.
pub(crate) fn renew_span(leases: usize, store: &str) -> tracing::Span {
    tracing::debug_span!("renew", leases, store)
}

/// A lock was granted after this wait.
pub(crate) fn acquired(lease: &Lease, waited: Duration) {
    tracing::debug!(resource = %lease.resource, lock_id = %lease.lock_id, token = lease.token.get(), ?waited, "acquired");
    #[cfg(feature = "metrics")]
    {
        let kind = lease.resource.kind().as_str();
        metrics::counter!(names::ACQUIRED, "kind" => kind).increment(1);
        metrics::histogram!(names::WAIT, "kind" => kind).record(waited.as_secs_f64());
        metrics::gauge!(names::HELD, "kind" => kind).increment(1.0);
    }
}

/// An attempt found the lock busy.
pub(crate) fn busy(resource: &Resource) {
    tracing::trace!(%resource, "busy");
    #[cfg(feature = "metrics")]
    metrics::counter!(names::BUSY, "kind" => resource.kind().as_str()).increment(1);
}

/// A waiter begins to wait.
pub(crate) fn waiting(resource: &Resource, retry_after: Option<Duration>) {
    tracing::debug!(%resource, ?retry_after, "waiting");
}

/// The time limit passed.
pub(crate) fn timed_out(resource: &Resource) {
    tracing::debug!(%resource, "timed out");
    #[cfg(feature = "metrics")]
    metrics::counter!(names::TIMED_OUT, "kind" => resource.kind().as_str()).increment(1);
}

/// A request failed. The engine retries where that can help.
pub(crate) fn failed(doing: &'static str, error: &Error) {
    tracing::warn!(error = %format_args!("{error:#}"), doing, "a request to the store failed");
    #[cfg(feature = "metrics")]
    metrics::counter!(names::ERRORS, "doing" => doing).increment(1);
}

/// A batch of leases was renewed.
pub(crate) fn renewed(leases: usize, latency: Duration) {
    tracing::trace!(leases, ?latency, "renewed");
    #[cfg(feature = "metrics")]
    metrics::histogram!(names::EXTENSION).record(latency.as_secs_f64());
}

/// A guard is lost.
pub(crate) fn lost(lease: &Lease, reason: &LossReason) {
    tracing::warn!(resource = %lease.resource, lock_id = %lease.lock_id, token = lease.token.get(), %reason, "lost");
    #[cfg(feature = "metrics")]
    {
        let kind = lease.resource.kind().as_str();
        metrics::counter!(names::LOST, "kind" => kind).increment(1);
        metrics::gauge!(names::HELD, "kind" => kind).decrement(1.0);
    }
}

/// A lock was released after this long.
pub(crate) fn released(lease: &Lease, held: Duration) {
    tracing::debug!(resource = %lease.resource, lock_id = %lease.lock_id, token = lease.token.get(), ?held, "released");
    #[cfg(feature = "metrics")]
    {
        let kind = lease.resource.kind().as_str();
        metrics::histogram!(names::HOLD, "kind" => kind).record(held.as_secs_f64());
        metrics::gauge!(names::HELD, "kind" => kind).decrement(1.0);
    }
}
