//! Renewing parts of pools: one command, however many there are.

use std::borrow::Cow;
use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::{Batch, Lease, Renewal};
use mongodb::bson::{Document, doc};

use super::{document_id, send};
use crate::commands::{DocumentUpdate, Namespace, Snapshot};
use crate::documents::{PoolDocument, stored_token, whole_ms};
use crate::pipelines;
use crate::renewals::{self, BatchedRenewal, FoundLease, RenewableRecord};
use crate::state::StoreState;

/// One answer per lease.
pub(crate) async fn renew(state: &Arc<StoreState>, leases: Vec<&Lease>) -> Batch<Renewal> {
    renewals::renew::<PoolRecord>(state, leases).await
}

/// Matches a document with a live holder of this lock id.
fn is_held_by(lease: &Lease) -> Document {
    let lock_id = lease.lock_id.as_str();
    let is_live = doc! { "$and": [
        { "$eq": ["$$this.lockId", { "$literal": lock_id }] },
        { "$gt": ["$$this.expiresAt", "$$NOW"] },
    ] };
    doc! {
        "holders.lockId": lock_id,
        "$expr": { "$anyElementTrue": [{ "$map": { "input": "$holders", "in": is_live } }] },
    }
}

fn renewal(state: &StoreState, lease: &Lease) -> DocumentUpdate {
    DocumentUpdate {
        id: document_id(lease.resource.kind(), lease.resource.name()),
        filter: is_held_by(lease),
        pipeline: pipelines::pool_renew(
            lease.lock_id.as_str(),
            whole_ms(lease.expiry),
            stored_token(lease.token),
            state.grant_terms(),
        ),
        upsert: false,
    }
}

struct PoolRecord;

impl RenewableRecord for PoolRecord {
    const NAMESPACE: Namespace = Namespace::Queues;

    fn document_id(lease: &Lease) -> Cow<'_, str> {
        document_id(lease.resource.kind(), lease.resource.name()).into()
    }

    async fn renew_one(state: &Arc<StoreState>, lease: &Lease) -> Result<Renewal> {
        let renewed = send(state, &renewal(state, lease)).await?;
        Ok(if renewed.is_some() { Renewal::Renewed } else { Renewal::NotYours })
    }

    async fn renew_together(state: &Arc<StoreState>, leases: &[&Lease]) -> Result<BatchedRenewal> {
        let updates: Vec<DocumentUpdate> = leases.iter().map(|lease| renewal(state, lease)).collect();
        let outcome = state.commands.update_each(Namespace::Queues, &updates).await?;
        let failed = outcome.failed.iter().map(|(index, error)| (*index, error.to_error())).collect();
        Ok(BatchedRenewal { renewed: outcome.matched, failed, time: outcome.time })
    }

    fn find(_: &StoreState, found: &Snapshot, lease: &Lease) -> Result<Option<FoundLease>> {
        let pool = PoolDocument::read(&found.document)?;
        let held = pool.holders.iter().find(|held| held.lock_id == lease.lock_id);
        Ok(held.map(|held| FoundLease { expires_at: held.expires_at, token: held.token }))
    }
}
