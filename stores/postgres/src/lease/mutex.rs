//! Mutexes: one row of the lease table each.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::SystemTime;

use distlock_core::store::support::errors;
use distlock_core::store::{Attempt, Batch, Claim, Holder, Lease, Released, Renewal};
use distlock_core::{Error, ErrorKind, LockId, Resource, Result};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::full_queues;
use super::store::StoreState;
use crate::keys::{Key, channel};
use crate::statement::{Request, RowLockTimeout, Slot, Statement};
use crate::tables::Tables;
use crate::values::{
    GRANT_WINDOW_MICROS, column, from_attempt, from_micros, from_token, to_micros, to_token,
};

static ACQUIRE_ONE: [Type; 8] =
    [Type::TEXT, Type::TEXT, Type::INT8, Type::TEXT, Type::INT8, Type::BOOL, Type::BYTEA, Type::INT8];
static ACQUIRE_BATCH: [Type; 8] = [
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::BOOL_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
];
static INSPECT: [Type; 2] = [Type::TEXT, Type::TEXT];
static RENEW: [Type; 4] = [Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY];
static RELEASE_ONE: [Type; 3] = [Type::TEXT, Type::TEXT, Type::INT8];
static RELEASE_BATCH: [Type; 3] = [Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8];

/// A lone item has a statement without arrays: reading them is a good part of what a lone lock costs the server.
#[derive(Debug)]
pub(super) struct MutexStatements {
    acquire_one: Statement,
    acquire_batch: Statement,
    renew: Statement,
    release_one: Statement,
    release_batch: Statement,
    break_lock: Statement,
    pub(super) inspect: Statement,
}

impl MutexStatements {
    pub(super) fn new(tables: &Tables) -> Self {
        let acquire = |claims, waits, attempt, commit| {
            let text = include_str!("../sql/lock_acquire.sql").replace("{claims}", claims);
            let text = text.replace("{commit}", commit);
            let text = text.replace("{waits}", waits).replace("{attempt}", attempt);
            text.replace("{most}", &full_queues::MOST_WAITERS.to_string())
        };
        // `granted`: how many locks the statement hands off.
        let release = |leases, granted, broken| {
            let text = include_str!("../sql/lock_release.sql").replace("{leases}", leases);
            text.replace("{granted}", granted).replace("{broken}", broken).replace("{window}", "$3")
        };
        let commit = include_str!("../sql/lock_acquire_commit.sql");
        let acquire_one = acquire(include_str!("../sql/lock_acquire_one.sql"), "$5", "$8", commit);
        let acquire_batch = acquire(
            include_str!("../sql/lock_acquire_batch.sql"),
            "($5)[EXCLUDED.waits]",
            "($8)[EXCLUDED.waits]",
            "",
        );
        let (one, one_granted) =
            (include_str!("../sql/lock_release_one.sql"), "pg_catalog.num_nonnulls(n.next)");
        let release_one = release(one, one_granted, "");
        let release_batch =
            release(include_str!("../sql/lock_release_batch.sql"), "pg_catalog.count(n.next) OVER ()", "");
        let notify = include_str!("../sql/notify_broken.sql").replace("{id}", "d.value");
        let broken = format!("CASE WHEN d.released THEN {notify} END AS holder_notified,");
        let break_lock = release(one, one_granted, &broken);
        let renew = include_str!("../sql/lock_renew.sql");
        let inspect = include_str!("../sql/lock_inspect.sql");
        let statement = |slot, text, types| Statement::new(slot, text, tables, types);
        MutexStatements {
            acquire_one: statement(Slot::LockAcquireOne, &acquire_one, &ACQUIRE_ONE),
            acquire_batch: statement(Slot::LockAcquireBatch, &acquire_batch, &ACQUIRE_BATCH),
            renew: statement(Slot::LockRenew, renew, &RENEW),
            release_one: statement(Slot::LockReleaseOne, &release_one, &RELEASE_ONE),
            release_batch: statement(Slot::LockReleaseBatch, &release_batch, &RELEASE_BATCH),
            break_lock: statement(Slot::LockBreak, &break_lock, &RELEASE_ONE),
            inspect: statement(Slot::LockInspect, inspect, &INSPECT),
        }
    }
}

fn keys<'a>(state: &StoreState, resources: impl Iterator<Item = &'a Resource>) -> Vec<Key> {
    resources.map(|resource| Key::new(resource, state.server.utf8)).collect()
}

/// No two of the claims may be for one lock.
pub(super) async fn try_acquire(
    state: &StoreState,
    claims: &[&Claim],
    timeout: RowLockTimeout,
) -> Batch<Attempt> {
    let keys = keys(state, claims.iter().map(|claim| &claim.resource));
    let names: Vec<&str> = keys.iter().map(|key| key.key.as_str()).collect();
    let ids: Vec<&str> = claims.iter().map(|claim| claim.lock_id.as_str()).collect();
    let expiries: Vec<i64> = claims.iter().map(|claim| to_micros(claim.expiry)).collect();
    // Without a listener a notification would be lost: such a waiter has no inbox, and no release grants to it.
    let waiting = || claims.iter().map(|claim| claim.waiting.as_ref());
    let inboxes: Vec<Option<String>> = waiting()
        .map(|waiting| waiting.filter(|_| state.listens).map(|waiting| channel(&waiting.inbox)))
        .collect();
    let waits: Vec<Option<i64>> =
        waiting().map(|waiting| waiting.map(|waiting| to_micros(waiting.ttl))).collect();
    let attempts: Vec<Option<i64>> =
        waiting().map(|waiting| waiting.map(|waiting| from_attempt(waiting.attempt))).collect();
    let no_overtaking: Vec<bool> = claims.iter().map(|claim| claim.no_overtaking).collect();
    let hashed: Vec<Option<&[u8]>> = keys.iter().map(|key| key.name.as_deref()).collect();
    let one: [&(dyn ToSql + Sync); 8];
    let batch: [&(dyn ToSql + Sync); 8];
    let request = match claims.len() {
        1 => {
            one = [
                &names[0],
                &ids[0],
                &expiries[0],
                &inboxes[0],
                &waits[0],
                &no_overtaking[0],
                &hashed[0],
                &attempts[0],
            ];
            Request::new(&state.mutex.acquire_one, &one)
        }
        _ => {
            batch = [&names, &ids, &expiries, &inboxes, &waits, &no_overtaking, &hashed, &attempts];
            Request::new(&state.mutex.acquire_batch, &batch)
        }
    };
    let rows = state.shared.query(&request.with_timeout(timeout)).await?;
    let rows = by_key(&rows)?;
    let answer = |(name, id): (&&str, &&str)| {
        let Some(row) = rows.get(name) else { return Err(errors::too_few_answers()) };
        if column::<&str>(row, "value")? == *id {
            return Ok(Attempt::granted(to_token(column(row, "token")?)));
        }
        let has_no_room = column::<Option<bool>>(row, "no_room")? == Some(true);
        if has_no_room {
            state.full_queues.note(name);
            return Ok(full_queues::no_room());
        }
        let remaining: Option<i64> = column(row, "remaining")?;
        Ok(Attempt::busy(remaining.map(from_micros)))
    };
    Ok(names.iter().zip(&ids).map(answer).collect())
}

fn by_key(rows: &[Row]) -> Result<HashMap<&str, &Row>> {
    rows.iter().map(|row| Ok((column(row, "key")?, row))).collect()
}

pub(super) async fn renew(state: &StoreState, leases: &[&Lease], timeout: RowLockTimeout) -> Batch<Renewal> {
    let keys: Vec<Cow<'_, str>> =
        leases.iter().map(|lease| Key::text(&lease.resource, state.server.utf8)).collect();
    let names: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
    let ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let (expiries, tokens) = expiries_and_tokens(leases);
    let parameters: [&(dyn ToSql + Sync); 4] = [&names, &ids, &expiries, &tokens];
    let request = Request::new(&state.mutex.renew, &parameters).with_timeout(timeout);
    let rows = state.shared.query(&request).await?;
    let [row] = &rows[..] else {
        return Err(errors::unexpected_reply(format!("{} rows instead of one", rows.len())));
    };
    let renewed = which_renewed(leases.len(), column(row, "renewed")?, column(row, "numbers")?)?;
    Ok(renewed.into_iter().map(Ok).collect())
}

/// The parameters of a renewal: one expiry if it is that of all leases, and no tokens if all rows are known to have them.
fn expiries_and_tokens(leases: &[&Lease]) -> (Vec<i64>, Vec<i64>) {
    let are_equal = leases.windows(2).all(|pair| pair[0].expiry == pair[1].expiry);
    let count = if are_equal { leases.len().min(1) } else { leases.len() };
    let expiries = leases[..count].iter().map(|lease| to_micros(lease.expiry)).collect();
    let tokens = match leases.iter().all(|lease| lease.token_is_known) {
        true => Vec::new(),
        false => leases.iter().map(|lease| from_token(lease.token)).collect(),
    };
    (expiries, tokens)
}

/// One answer for each lease. Numbers begin with one; there are none if all were renewed, or no lease was. A reply that does not
/// agree with itself renews nothing.
fn which_renewed(leases: usize, renewed: i64, numbers: Option<Vec<i64>>) -> Result<Vec<Renewal>> {
    let unexpected = || errors::unexpected_reply(format!("{renewed} of {leases} leases renewed"));
    let renewed = usize::try_from(renewed).map_err(|_| unexpected())?;
    let Some(numbers) = numbers else {
        return match renewed {
            0 => Ok(vec![Renewal::NotYours; leases]),
            _ if renewed == leases => Ok(vec![Renewal::Renewed; leases]),
            _ => Err(unexpected()),
        };
    };
    let mut answers = vec![Renewal::NotYours; leases];
    for number in &numbers {
        let place = usize::try_from(*number).ok().and_then(|number| number.checked_sub(1));
        *place.and_then(|place| answers.get_mut(place)).ok_or_else(unexpected)? = Renewal::Renewed;
    }
    match numbers.len() == renewed
        && answers.iter().filter(|answer| **answer == Renewal::Renewed).count() == renewed
    {
        true => Ok(answers),
        false => Err(unexpected()),
    }
}

pub(super) async fn release(
    state: &StoreState,
    leases: &[&Lease],
    timeout: RowLockTimeout,
) -> Batch<Released> {
    let keys = keys(state, leases.iter().map(|lease| &lease.resource));
    let names: Vec<&str> = keys.iter().map(|key| key.key.as_str()).collect();
    let ids: Vec<&str> = leases.iter().map(|lease| lease.lock_id.as_str()).collect();
    let (one, batch): ([&(dyn ToSql + Sync); 3], [&(dyn ToSql + Sync); 3]);
    let request = match leases.len() {
        1 => {
            one = [&names[0], &ids[0], &GRANT_WINDOW_MICROS];
            Request::new(&state.mutex.release_one, &one)
        }
        _ => {
            batch = [&names, &ids, &GRANT_WINDOW_MICROS];
            Request::new(&state.mutex.release_batch, &batch)
        }
    };
    let rows = state.shared.query(&request.with_timeout(timeout)).await?;
    let rows = by_key(&rows)?;
    let answer = |(name, id): (&&str, &&str)| match rows.get(name) {
        Some(row) => released(row, id),
        None => Ok(Released::NotYours),
    };
    Ok(names.iter().zip(&ids).map(answer).collect())
}

/// The answer to one of the leases that a row is about.
fn released(row: &Row, id: &str) -> Result<Released> {
    let was_holder = column(row, "released")? && column::<&str>(row, "value")? == id;
    let was_waiter = || -> Result<bool> {
        let Some(withdrawn) = column::<Option<&str>>(row, "withdrawn")? else { return Ok(false) };
        let ids: Vec<String> = serde_json::from_str(withdrawn).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("the wait queue cannot be read: {error}"))
        })?;
        Ok(ids.iter().any(|withdrawn| withdrawn == id))
    };
    match was_holder || was_waiter()? {
        true => Ok(Released::Done { woke: column(row, "woke")? }),
        false => Ok(Released::NotYours),
    }
}

pub(super) async fn break_lock(
    state: &StoreState,
    resource: &Resource,
    timeout: RowLockTimeout,
) -> Result<Vec<Holder>> {
    let key = Key::new(resource, state.server.utf8).key;
    let any_holder: Option<&str> = None;
    let parameters: [&(dyn ToSql + Sync); 3] = [&key, &any_holder, &GRANT_WINDOW_MICROS];
    let request = Request::new(&state.mutex.break_lock, &parameters).with_timeout(timeout);
    let rows = state.shared.query(&request).await?;
    let mut broken = Vec::new();
    for row in &rows {
        if column(row, "released")? {
            broken.push(holder(row)?);
        }
    }
    Ok(broken)
}

/// The holder in a row.
pub(super) fn holder(row: &Row) -> Result<Holder> {
    let remaining: i64 = column(row, "remaining")?;
    let acquired_at: SystemTime = column(row, "acquired_at")?;
    Ok(Holder::new(LockId::from_stored(column::<&str>(row, "value")?), 1)
        .with_token(to_token(column(row, "token")?))
        .with_acquired_at(acquired_at)
        .with_expires_in(from_micros(remaining)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_core::{FencingToken, Kind};

    use super::*;

    #[test]
    fn a_reply_that_does_not_agree_with_itself_renews_nothing() {
        let renewed = |count, numbers: &[i64]| {
            let numbers = (!numbers.is_empty()).then(|| numbers.to_vec());
            let answers = which_renewed(3, count, numbers).ok()?;
            Some(answers.iter().map(|answer| *answer == Renewal::Renewed).collect::<Vec<_>>())
        };
        assert_eq!(renewed(3, &[]), Some(vec![true; 3]));
        assert_eq!(renewed(0, &[]), Some(vec![false; 3]));
        assert_eq!(renewed(2, &[3, 1]), Some(vec![true, false, true]));
        for (count, numbers) in [
            (1, &[][..]),
            (4, &[]),
            (-1, &[]),
            (2, &[1]),
            (1, &[1, 2]),
            (2, &[1, 1]),
            (1, &[0]),
            (1, &[4]),
            (1, &[-1]),
            (1, &[i64::MIN]),
        ] {
            assert_eq!(renewed(count, numbers), None, "{count} {numbers:?}");
        }
    }

    #[test]
    fn one_lease_with_a_token_from_elsewhere_makes_a_batch_write_tokens() {
        let lease = |n: u64, seconds| {
            let resource = Resource::new(Kind::Mutex, format!("n{n}")).unwrap();
            let token = FencingToken::new(n);
            Lease::new(resource, LockId::from_stored("id"), token, Duration::from_secs(seconds))
        };
        let parameters = |leases: &[Lease]| expiries_and_tokens(&leases.iter().collect::<Vec<_>>());
        let known = |n, seconds| lease(n, seconds).with_known_token(true);
        assert_eq!(parameters(&[known(7, 9), known(8, 9)]), (vec![9_000_000], vec![]));
        assert_eq!(parameters(&[known(7, 9), known(8, 3)]), (vec![9_000_000, 3_000_000], vec![]));
        assert_eq!(parameters(&[known(7, 9), lease(8, 9)]), (vec![9_000_000], vec![7, 8]));
        let raised = known(7, 9).with_token(FencingToken::new(70));
        assert_eq!(parameters(&[raised, known(8, 9)]), (vec![9_000_000], vec![70, 8]));
    }
}
