//! Requests, replies and messages as text for the trace.

use std::fmt;

use distlock_core::LockId;
use distlock_core::store::{Batch, Claim, Lease, Wake};

/// A lock id without its random part, so that two runs of a seed have the same trace.
pub fn shown(lock_id: &LockId) -> String {
    let text = lock_id.as_str();
    let number = text.rsplit_once('-').map_or("?", |(_, number)| number);
    format!("{}-{number}", lock_id.label())
}

pub fn shown_claims(claims: &[Claim]) -> String {
    let one = |claim: &Claim| {
        let waits = if claim.waiting.is_some() { " waiting" } else { "" };
        format!("{} {}{waits}", shown(&claim.lock_id), claim.resource)
    };
    claims.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub fn shown_leases(leases: &[Lease]) -> String {
    let one = |lease: &Lease| format!("{} {}", shown(&lease.lock_id), lease.resource);
    leases.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub fn shown_wake(wake: &Wake) -> String {
    match wake {
        Wake::Retry { lock_id, .. } => format!("wake-up {}", shown(lock_id)),
        Wake::Granted { lock_id, grant, .. } => format!("pushed grant {} {grant:?}", shown(lock_id)),
        other => format!("{:?}", std::mem::discriminant(other)),
    }
}

pub fn shown_reply<T: fmt::Debug>(reply: &Batch<T>) -> String {
    match reply {
        Ok(items) => format!("{items:?}"),
        Err(error) => format!("{error}"),
    }
}
