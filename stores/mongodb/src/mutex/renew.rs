//! Renewing mutexes: one command, however many there are.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use distlock_core::Result;
use distlock_core::store::support::batch::chunks_by_key;
use distlock_core::store::{Batch, Lease, Renewal};

use super::{read, update_held};
use crate::commands::{MULTI_UPDATE_SIZE, Namespace, Snapshot};
use crate::documents::{stored_token, whole_ms};
use crate::pipelines::{LockRenewEach, lock_renew};
use crate::raw_bson::RawElements;
use crate::renewals::{self, BatchedRenewal, FoundLease, RenewableRecord};
use crate::state::StoreState;

/// The most leases of one update that writes no tokens: it has no list that is searched for each document.
const KNOWN_TOKENS_SIZE: usize = 500;

/// One answer per lease.
pub(crate) async fn renew(state: &Arc<StoreState>, leases: Vec<&Lease>) -> Batch<Renewal> {
    renewals::renew::<LockRecord>(state, leases).await
}

struct LockRecord;

impl RenewableRecord for LockRecord {
    const NAMESPACE: Namespace = Namespace::Locks;

    fn document_id(lease: &Lease) -> Cow<'_, str> {
        lease.resource.name().into()
    }

    async fn renew_one(state: &Arc<StoreState>, lease: &Lease) -> Result<Renewal> {
        let pipeline = lock_renew(whole_ms(lease.expiry), stored_token(lease.token));
        let renewed = update_held(state, lease.resource.name(), &lease.lock_id, pipeline).await?;
        Ok(if renewed.is_some() { Renewal::Renewed } else { Renewal::NotYours })
    }

    async fn renew_together(state: &Arc<StoreState>, leases: &[&Lease]) -> Result<BatchedRenewal> {
        let are_known = leases.iter().all(|lease| lease.token_is_known);
        let most = if are_known { KNOWN_TOKENS_SIZE } else { MULTI_UPDATE_SIZE };
        let chunks = chunks_by_key(leases, most, |lease| lease.expiry);
        let mut updates = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            let expiry = chunk.first().map(|first| whole_ms(leases[*first].expiry)).unwrap_or_default();
            updates.push((LockRenewEach::new(expiry, are_known)?, chunk));
        }
        let size = LockRenewEach::size(leases) + 1024 * chunks.len();
        let write = |update: &mut RawElements, (renewal, chunk): (LockRenewEach, &Vec<usize>)| {
            renewal.write(update, chunk.iter().map(|index| leases[*index]));
        };
        let outcome = state.commands.update_written(Namespace::Locks, size, updates, write).await?;
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
