//! Renewing many leases, and finding out which were renewed if not all were.
//!
//! The server says how many documents a command changed, not which. One lease that was released or lost makes the count
//! differ, and a process that releases many locks releases some of every batch. So the documents are read: a lease is
//! renewed if by the server's clock it has at least the time left that its renewal promises. It does not matter which
//! command wrote that. A lease that has less may have been renewed by an earlier, stalled renewal, or the read took longer
//! than the update; it is sent once more, in a batch of half the size, so that a few such leases do not fail all others
//! again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::store::support::batch::all_failed;
use distlock_core::store::support::errors;
use distlock_core::store::{Batch, Lease, Renewal};
use distlock_core::{Error, Result};
use futures_util::future::join_all;
use mongodb::bson::Timestamp;

use crate::batch;
use crate::commands::{Namespace, Snapshot};
use crate::documents::{positive_ms, stored_token};
use crate::state::StoreState;

/// A record whose leases are renewed in batches.
pub(crate) trait RenewableRecord {
    const NAMESPACE: Namespace;

    /// The id of the document that has a lease.
    fn document_id(lease: &Lease) -> Cow<'_, str>;

    /// Renews a lease alone.
    fn renew_one(state: &Arc<StoreState>, lease: &Lease) -> impl Future<Output = Result<Renewal>> + Send;

    /// Renews leases in one command.
    fn renew_together(
        state: &Arc<StoreState>,
        leases: &[&Lease],
    ) -> impl Future<Output = Result<BatchedRenewal>> + Send;

    /// A lease as its document shows it. `None`: the document does not have it.
    fn find(state: &StoreState, found: &Snapshot, lease: &Lease) -> Result<Option<FoundLease>>;
}

/// A lease in a document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundLease {
    pub(crate) expires_at: i64,
    pub(crate) token: i64,
}

/// The answer to a command that renews leases.
#[derive(Debug, Default)]
pub(crate) struct BatchedRenewal {
    /// How many leases were renewed, also of a part that failed.
    pub(crate) renewed: i64,
    /// The leases that failed or may have failed, by their index.
    pub(crate) failed: HashMap<usize, Error>,
    /// The time of the last write, for a read that must see it.
    pub(crate) time: Option<Timestamp>,
}

/// One answer per lease.
pub(crate) async fn renew<R: RenewableRecord>(
    state: &Arc<StoreState>,
    leases: Vec<&Lease>,
) -> Batch<Renewal> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let mut answers = renew_part::<R>(state, &leases).await?;
    let mut parts = halves(open(&answers));
    while !parts.is_empty() {
        let renewed = parts.iter().map(|part| {
            let part = batch::pick(&leases, part);
            async move {
                let renewed = renew_part::<R>(state, &part).await;
                renewed.unwrap_or_else(|error| all_failed(&error, part.len()).into_iter().map(Some).collect())
            }
        });
        let renewed = join_all(renewed).await;
        let mut next = Vec::new();
        for (part, renewed) in parts.iter().zip(renewed) {
            next.extend(halves(open(&renewed).into_iter().map(|index| part[index]).collect()));
            for (index, answer) in part.iter().zip(renewed) {
                answers[*index] = answer;
            }
        }
        parts = next;
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(errors::too_few_answers()))).collect())
}

/// The indices without an answer.
fn open(answers: &[Option<Result<Renewal>>]) -> Vec<usize> {
    (0..answers.len()).filter(|index| answers[*index].is_none()).collect()
}

fn halves(mut indices: Vec<usize>) -> Vec<Vec<usize>> {
    let second = indices.split_off(indices.len().div_ceil(2));
    [indices, second].into_iter().filter(|half| !half.is_empty()).collect()
}

/// An answer per lease, or `None`: it has to be sent once more. A single lease always has an answer.
async fn renew_part<R: RenewableRecord>(
    state: &Arc<StoreState>,
    leases: &[&Lease],
) -> Result<Vec<Option<Result<Renewal>>>> {
    if let [lease] = leases {
        return Ok(vec![Some(R::renew_one(state, lease).await)]);
    }
    let sent = Instant::now();
    let mut outcome = R::renew_together(state, leases).await?;
    if outcome.failed.is_empty() && usize::try_from(outcome.renewed) == Ok(leases.len()) {
        return Ok(leases.iter().map(|_| Some(Ok(Renewal::Renewed))).collect());
    }
    let ids: Vec<Cow<'_, str>> = leases.iter().map(|lease| R::document_id(lease)).collect();
    let mut ids: Vec<&str> = ids.iter().map(AsRef::as_ref).collect();
    // Of several leases in one document.
    ids.sort_unstable();
    ids.dedup();
    let read = state.commands.read_at(R::NAMESPACE, &ids, outcome.time).await?;
    let before_read = read.sent.saturating_duration_since(sent);
    let answer = |(index, lease): (usize, &&Lease)| {
        if let Some(error) = outcome.failed.remove(&index) {
            return Some(Err(error));
        }
        let Some(found) = read.found.get(R::document_id(lease).as_ref()) else {
            return Some(Ok(Renewal::NotYours));
        };
        match R::find(state, found, lease) {
            Ok(Some(held)) => held.shows(lease, found.now, before_read).map(Ok),
            Ok(None) => Some(Ok(Renewal::NotYours)),
            Err(error) => Some(Err(error)),
        }
    };
    Ok(leases.iter().enumerate().map(answer).collect())
}

impl FoundLease {
    /// What it shows of a renewal that was sent this long before the read. The renewal promises the whole expiry from the
    /// moment it was sent, and that the token is kept if it is the larger one. `None`: it may not be renewed.
    fn shows(self, lease: &Lease, now: Option<i64>, sent_before_read: Duration) -> Option<Renewal> {
        // Servers before 4.4 do not send their clock.
        let Some(left) = positive_ms(self.expires_at.saturating_sub(now?)) else {
            return Some(Renewal::NotYours);
        };
        let lasts = left.saturating_add(sent_before_read) >= lease.expiry;
        (lasts && self.token >= stored_token(lease.token)).then_some(Renewal::Renewed)
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::{FencingToken, Kind, LockId, Resource};

    use super::*;

    const NOW: i64 = 1_000_000;
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_lease_is_renewed_if_it_lasts_as_long_as_the_renewal_promises() {
        let resource = Resource::new(Kind::Mutex, "name").expect("a good name");
        let lease = Lease::new(resource, LockId::from_stored("ours"), FencingToken::new(7), 9000 * MS);
        let shown =
            |ends: i64, token, now| FoundLease { expires_at: ends, token }.shows(&lease, now, 20 * MS);
        let left = |ms: i64| shown(NOW + ms, 7, Some(NOW));
        assert_eq!(left(8980), Some(Renewal::Renewed));
        assert_eq!(left(8979), None, "an earlier renewal: it ends a millisecond before what was promised");
        assert_eq!(left(60_000), Some(Renewal::Renewed), "renewed for longer");
        assert_eq!(left(1), None);
        assert_eq!(left(0), Some(Renewal::NotYours), "expiry is final");
        assert_eq!(shown(i64::MIN, 7, Some(NOW)), Some(Renewal::NotYours));
        assert_eq!(shown(NOW + 8980, 7, None), None, "a server that does not send its clock");
        assert_eq!(shown(NOW + 8980, 6, Some(NOW)), None, "the larger token is not written");
        assert_eq!(shown(NOW + 8980, 8, Some(NOW)), Some(Renewal::Renewed), "a waiter raised the token");
    }

    #[test]
    fn parts_get_smaller_until_each_lease_is_alone() {
        assert!(halves(Vec::new()).is_empty());
        assert_eq!(halves(vec![7]), [[7]]);
        assert_eq!(halves(vec![7, 8, 9]), [vec![7, 8], vec![9]]);
    }
}
