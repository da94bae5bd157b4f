//! Renewing mutexes: one command, however many there are.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::support::batch::chunks_by_key;
use distlock_core::store::{Batch, Lease, Renewal};

use super::{is_held_by_any, read, update_held};
use crate::batch;
use crate::commands::{MULTI_UPDATE_SIZE, MultiUpdate, Namespace, Snapshot};
use crate::documents::{stored_token, whole_ms};
use crate::pipelines;
use crate::renewals::{self, BatchedRenewal, FoundLease, RenewableRecord};
use crate::state::StoreState;

/// One answer per lease.
pub(crate) async fn renew(state: &Arc<StoreState>, leases: Vec<&Lease>) -> Batch<Renewal> {
    renewals::renew::<LockRecord>(state, leases).await
}

/// Lock ids are unique: a document with one of these names and one of these lock ids belongs to one of these leases.
fn multi_update(leases: &[&Lease]) -> MultiUpdate {
    let lock_ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let tokens: Vec<i64> = leases.iter().map(|lease| stored_token(lease.token)).collect();
    let expiry = leases.first().map(|lease| whole_ms(lease.expiry)).unwrap_or_default();
    MultiUpdate {
        ids: leases.iter().map(|lease| lease.resource.name().to_owned()).collect(),
        filter: is_held_by_any(&lock_ids),
        pipeline: pipelines::lock_renew_each(expiry, &lock_ids, &tokens),
    }
}

struct LockRecord;

impl RenewableRecord for LockRecord {
    const NAMESPACE: Namespace = Namespace::Locks;

    fn document_id(lease: &Lease) -> Cow<'_, str> {
        lease.resource.name().into()
    }

    async fn renew_one(state: &Arc<StoreState>, lease: &Lease) -> Result<Renewal> {
        let pipeline = pipelines::lock_renew(whole_ms(lease.expiry), stored_token(lease.token));
        let renewed = update_held(state, lease.resource.name(), &lease.lock_id, pipeline).await?;
        Ok(if renewed.is_some() { Renewal::Renewed } else { Renewal::NotYours })
    }

    async fn renew_together(state: &Arc<StoreState>, leases: &[&Lease]) -> Result<BatchedRenewal> {
        let chunks = chunks_by_key(leases, MULTI_UPDATE_SIZE, |lease| lease.expiry);
        let updates = chunks.iter().map(|indices| multi_update(&batch::pick(leases, indices))).collect();
        let outcome = state.commands.update_many(Namespace::Locks, Vec::new(), updates).await?;
        let mut failed = HashMap::new();
        for (chunk, error) in &outcome.failed {
            // The documents before the one that failed were renewed.
            failed.extend(chunks[*chunk].iter().map(|index| (*index, error.to_error())));
        }
        Ok(BatchedRenewal { renewed: outcome.matched, failed, time: outcome.time })
    }

    fn find(state: &StoreState, found: &Snapshot, lease: &Lease) -> Result<Option<FoundLease>> {
        let lock = read(state, found)?;
        let expires_at = lock.expires_at.filter(|_| lock.lock_id == lease.lock_id);
        Ok(expires_at.map(|expires_at| FoundLease { expires_at, token: lock.token }))
    }
}
