//! Lists holders and waiters, and releases locks by force.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use distlock_core::store::support::inspect::select;
use distlock_core::store::{Holder, Query, Record, Waiter};
use distlock_core::{FencingToken, Kind, LockId, Resource, Result, WRITER_WEIGHT};

use crate::api::{KeyValue, LeaseTimeToLiveRequest};
use crate::keys::ClaimValue;
use crate::queue::{Predecessor, granted_count};
use crate::store::Shared;
use crate::txn;

/// A claim as an operator sees it.
struct Shown {
    lock_id: LockId,
    kv: KeyValue,
    value: Option<ClaimValue>,
}

impl Shown {
    fn weight(&self) -> u32 {
        self.value.map_or(1, |value| value.weight)
    }

    fn holder(&self, expires_in: Option<Duration>) -> Holder {
        let granted = self.value.and_then(|value| value.granted_ms);
        Holder::new(self.lock_id.clone(), self.weight())
            .with_token(u64::try_from(self.kv.create_revision).ok().map(FencingToken::new))
            .with_acquired_at(granted.map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms)))
            .with_expires_in(expires_in)
    }
}

/// The resources that a query selects and that have holders or waiters.
pub(crate) async fn records(shared: &Shared, query: &Query) -> Result<Vec<Record>> {
    let mut queues: BTreeMap<(Kind, String), Vec<Shown>> = BTreeMap::new();
    for kind in Kind::VISIBLE.into_iter().filter(|kind| query.kind.is_none_or(|wanted| wanted == *kind)) {
        let keys = &shared.config.keys;
        let range = match &query.name {
            Some(name) => keys.queue(&Resource::new(kind, name.as_str())?),
            None => keys.kind(kind),
        };
        let found = shared.client.send(txn::list(&range)).await.map_err(|failure| failure.error)?;
        for kv in found.reply.kvs {
            // Keys that distlock did not write are shown by nothing but their key, and so left out.
            if let Some((kind, name, lock_id)) = keys.parse(&kv.key) {
                let value = ClaimValue::parse(&kv.value);
                queues.entry((kind, name)).or_default().push(Shown { lock_id, kv, value });
            }
        }
    }
    queues.retain(|(kind, name), _| query.matches(*kind, name));
    let mut times = HashMap::new();
    let mut found = Vec::new();
    for ((kind, name), claims) in queues {
        let (holders, waiters) = split(kind, &claims);
        let mut shown = Vec::new();
        for claim in holders {
            shown.push(claim.holder(time_left(shared, claim.kv.lease, &mut times).await?));
        }
        let waiters =
            waiters.iter().map(|claim| Waiter::new(claim.lock_id.clone(), claim.weight())).collect();
        let record = Record::new(kind, capacity(kind, &claims)).with_name(name).with_holders(shown);
        found.push(record.with_waiters(waiters));
    }
    Ok(select(found, query))
}

/// Holders and waiters of a queue.
fn split(kind: Kind, claims: &[Shown]) -> (&[Shown], &[Shown]) {
    let all: Vec<Predecessor> = claims.iter().map(|claim| Predecessor::of(&claim.kv)).collect();
    claims.split_at(granted_count(kind, &all))
}

fn capacity(kind: Kind, claims: &[Shown]) -> u32 {
    match kind {
        Kind::RwLock => WRITER_WEIGHT,
        Kind::Semaphore => claims.iter().find_map(|claim| claim.value).map_or(1, |value| value.capacity),
        _ => 1,
    }
}

/// The time left on a lease; each is asked for once. `None` for a key without a lease, and for a lease that has just ended.
async fn time_left(
    shared: &Shared,
    lease: i64,
    known: &mut HashMap<i64, Option<Duration>>,
) -> Result<Option<Duration>> {
    if lease == 0 {
        return Ok(None);
    }
    if let Some(left) = known.get(&lease) {
        return Ok(*left);
    }
    let request = LeaseTimeToLiveRequest { id: lease, keys: false };
    let reply = shared.client.send(request).await.map_err(|failure| failure.error)?.reply;
    let left = u64::try_from(reply.ttl).ok().map(Duration::from_secs);
    known.insert(lease, left);
    Ok(left)
}

/// Takes a resource from all its holders.
pub(crate) async fn break_lock(shared: &Shared, resource: &Resource) -> Result<Vec<Holder>> {
    let keys = &shared.config.keys;
    let request = txn::list(&keys.queue(resource));
    let found = shared.client.send(request).await.map_err(|failure| failure.error)?;
    let shown = |kv: KeyValue| {
        let (_, _, lock_id) = keys.parse(&kv.key)?;
        Some(Shown { lock_id, value: ClaimValue::parse(&kv.value), kv })
    };
    let claims: Vec<Shown> = found.reply.kvs.into_iter().filter_map(shown).collect();
    let mut broken = Vec::new();
    for claim in split(resource.kind(), &claims).0 {
        if break_claim(shared, &claim.kv).await? {
            broken.push(claim.holder(None));
        }
    }
    Ok(broken)
}

/// Deletes the key of a holder. Returns whether it was there.
async fn break_claim(shared: &Shared, kv: &KeyValue) -> Result<bool> {
    let session = (kv.lease != 0).then(|| shared.config.keys.session(kv.lease));
    for session in [session.as_deref(), None] {
        let request = txn::break_claim(&kv.key, kv.create_revision, session);
        let answer = shared.client.send(request).await.map_err(|failure| failure.error)?;
        if answer.reply.succeeded {
            return Ok(txn::deleted_at(&answer.reply, 0)? > 0);
        }
        if answer.repeated {
            // The attempt without a reply may be what deleted it.
            return Ok(true);
        }
        // The holder is gone, or it is another program without a session of ours.
    }
    Ok(false)
}
