//! A batch whose items go to different records, and whose answers come back in request order.

use std::collections::BTreeMap;
use std::future::Future;

use super::errors;
use crate::error::{Error, Result};
use crate::resource::{RecordKind, Resource};
use crate::store::{Batch, Claim, Lease};

/// An item of a batch: it says which record it is about.
pub trait BatchItem: Sync {
    /// Kind and name.
    fn resource(&self) -> &Resource;

    /// The record that holds the resource.
    fn record_kind(&self) -> RecordKind {
        self.resource().kind().record()
    }
}

impl BatchItem for Claim {
    fn resource(&self) -> &Resource {
        &self.resource
    }
}

impl BatchItem for Lease {
    fn resource(&self) -> &Resource {
        &self.resource
    }
}

impl<T: BatchItem> BatchItem for &T {
    fn resource(&self) -> &Resource {
        (**self).resource()
    }
}

/// Sends items about lock records to `locks`, items about pool records to `pools`, both concurrently, and returns the
/// answers in request order. A part without items is not sent.
///
/// If one part fails as a whole, each of its items fails alone: the other part may have been applied, and its callers
/// must learn of it. If there is only one part, its error is the error of the batch.
///
/// ```
/// # use distlock_core::store::support::batch;
/// # use distlock_core::store::{Batch, Lease, Renewal};
/// # async fn lock_rows(_: Vec<&Lease>) -> Batch<Renewal> { Ok(vec![]) }
/// # async fn pool_rows(_: Vec<&Lease>) -> Batch<Renewal> { Ok(vec![]) }
/// # async fn renew(leases: &[Lease]) -> Batch<Renewal> {
/// batch::by_record_kind(leases, |locks| lock_rows(locks), |pools| pool_rows(pools)).await
/// # }
/// ```
///
/// # Errors
/// The error of a part that carries the whole batch.
///
/// # Cancel safety
/// As cancel safe as the parts: dropping it drops both.
pub async fn by_record_kind<'a, T, A, L, P>(
    items: impl IntoIterator<Item = &'a T>,
    locks: impl FnOnce(Vec<&'a T>) -> L,
    pools: impl FnOnce(Vec<&'a T>) -> P,
) -> Batch<A>
where
    T: BatchItem + 'a,
    L: Future<Output = Batch<A>>,
    P: Future<Output = Batch<A>>,
{
    let items: Vec<&T> = items.into_iter().collect();
    let is_lock = |item: &&T| item.record_kind() == RecordKind::Lock;
    let lock_count = items.iter().filter(|item| is_lock(item)).count();
    // Awaited here and boxed below: a helper that takes a future by value has room for it twice, and every request would be
    // several times as large as its parts.
    if lock_count == items.len() {
        return Ok(complete(locks(items).await?, lock_count));
    }
    if lock_count == 0 {
        let count = items.len();
        return Ok(complete(pools(items).await?, count));
    }
    let order: Vec<bool> = items.iter().map(is_lock).collect();
    let (lock_items, pool_items): (Vec<&T>, Vec<&T>) = items.into_iter().partition(is_lock);
    let pool_count = pool_items.len();
    let (lock_answers, pool_answers) =
        futures_util::future::join(Box::pin(locks(lock_items)), Box::pin(pools(pool_items))).await;
    let mut lock_answers = each(lock_answers, lock_count).into_iter();
    let mut pool_answers = each(pool_answers, pool_count).into_iter();
    let next = |is_lock: bool| if is_lock { lock_answers.next() } else { pool_answers.next() };
    Ok(order.into_iter().map(next).map(|answer| answer.unwrap_or_else(unanswered)).collect())
}

/// As many answers as there are items.
fn complete<A>(mut answers: Vec<Result<A>>, count: usize) -> Vec<Result<A>> {
    answers.truncate(count);
    answers.resize_with(count, unanswered);
    answers
}

fn unanswered<A>() -> Result<A> {
    Err(errors::too_few_answers())
}

/// The answers of a part of `count` items, one each. A part that failed as a whole failed for each of its items.
#[must_use]
pub fn each<A>(answers: Batch<A>, count: usize) -> Vec<Result<A>> {
    answers.unwrap_or_else(|error| all_failed(&error, count))
}

/// One error for each of `count` items.
#[must_use]
pub fn all_failed<A>(error: &Error, count: usize) -> Vec<Result<A>> {
    std::iter::repeat_with(|| Err(error.clone())).take(count).collect()
}

/// Answers each claim of an impossible weight with its own error, sends the others to `send`, and returns all answers
/// in request order. A batch without a possible claim is not sent.
///
/// # Errors
/// What `send` returns.
///
/// # Cancel safety
/// As cancel safe as `send`.
pub async fn with_possible_weights<'a, A, F>(
    claims: impl IntoIterator<Item = &'a Claim>,
    send: impl FnOnce(Vec<&'a Claim>) -> F,
) -> Batch<A>
where
    F: Future<Output = Batch<A>>,
{
    let mut possible = Vec::new();
    // Where the answer of each refused claim belongs, in order.
    let mut refusals: Vec<(usize, Error)> = Vec::new();
    for (at, claim) in claims.into_iter().enumerate() {
        match claim.check_weight() {
            Ok(()) => possible.push(claim),
            Err(error) => refusals.push((at, error)),
        }
    }
    let count = possible.len();
    let mut answers = if count == 0 { Vec::new() } else { complete(send(possible).await?, count) };
    for (at, refusal) in refusals {
        answers.insert(at, Err(refusal));
    }
    Ok(answers)
}

/// The positions of items in chunks of at most `most`, each chunk of items that share a key.
pub fn chunks_by_key<T, K: Ord>(items: &[T], most: usize, key: impl Fn(&T) -> K) -> Vec<Vec<usize>> {
    let mut by_key: BTreeMap<K, Vec<usize>> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        by_key.entry(key(item)).or_default().push(at);
    }
    by_key.values().flat_map(|positions| positions.chunks(most.max(1))).map(<[usize]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;
    use crate::resource::{FencingToken, Kind, LockId};

    fn lease(kind: Kind, name: &str) -> Lease {
        Lease {
            resource: Resource::new(kind, name).unwrap(),
            lock_id: LockId::from_stored(name),
            token: FencingToken::new(1),
            token_is_known: false,
            expiry: Duration::from_secs(1),
            weight: 1,
            capacity: 1,
        }
    }

    fn mixed() -> Vec<Lease> {
        [(Kind::Mutex, "a"), (Kind::Semaphore, "b"), (Kind::Mutex, "c"), (Kind::RwLock, "d")]
            .map(|(kind, name)| lease(kind, name))
            .into()
    }

    async fn names(leases: Vec<&Lease>) -> Batch<String> {
        Ok(leases.into_iter().map(|lease| Ok(lease.resource.name().to_owned())).collect())
    }

    async fn fails(_: Vec<&Lease>) -> Batch<String> {
        Err(Error::new(ErrorKind::Unavailable, "down"))
    }

    async fn must_not_run(leases: Vec<&Lease>) -> Batch<String> {
        panic!("sent an empty part of {} items", leases.len())
    }

    fn shown(answers: Batch<String>) -> Vec<String> {
        answers.unwrap().into_iter().map(|answer| answer.unwrap_or_else(|error| error.to_string())).collect()
    }

    #[tokio::test]
    async fn answers_come_back_in_request_order() {
        assert_eq!(shown(by_record_kind(&mixed(), names, names).await), ["a", "b", "c", "d"]);
    }

    #[tokio::test]
    async fn a_part_that_fails_does_not_hide_what_the_other_part_did() {
        assert_eq!(shown(by_record_kind(&mixed(), names, fails).await), ["a", "down", "c", "down"]);
        assert_eq!(shown(by_record_kind(&mixed(), fails, names).await), ["down", "b", "down", "d"]);
    }

    #[tokio::test]
    async fn the_only_part_fails_as_a_whole_and_the_empty_one_is_not_sent() {
        let locks = [lease(Kind::Mutex, "a")];
        assert_eq!(shown(by_record_kind(&locks, names, must_not_run).await), ["a"]);
        assert!(by_record_kind(&locks, fails, must_not_run).await.is_err());
        let pools = [lease(Kind::Semaphore, "a")];
        assert_eq!(shown(by_record_kind(&pools, must_not_run, names).await), ["a"]);
        assert!(by_record_kind(&pools, must_not_run, fails).await.is_err());
        assert!(shown(by_record_kind(&[], names, must_not_run).await).is_empty());
    }

    #[tokio::test]
    async fn an_item_without_an_answer_has_an_unknown_outcome() {
        let silent = |_: Vec<&Lease>| async { Ok(Vec::<Result<String>>::new()) };
        for answers in [
            by_record_kind(&mixed(), silent, silent).await,
            by_record_kind(&[lease(Kind::Mutex, "a")], silent, silent).await,
        ] {
            for answer in answers.unwrap() {
                assert!(answer.unwrap_err().is_outcome_unknown());
            }
        }
    }

    #[tokio::test]
    async fn both_parts_are_in_flight_at_once() {
        let meet = tokio::sync::Barrier::new(2);
        let part = |leases: Vec<&Lease>| {
            let (meet, count) = (&meet, leases.len());
            async move {
                meet.wait().await;
                Ok((0..count).map(|_| Ok(String::new())).collect())
            }
        };
        let leases = [lease(Kind::Mutex, "a"), lease(Kind::RwLock, "b")];
        let both = by_record_kind::<_, String, _, _>(&leases, part, part);
        let answered = tokio::time::timeout(Duration::from_secs(10), both).await;
        assert_eq!(answered.expect("one part waits for the other").unwrap().len(), 2);
    }

    fn claim(name: &str, weight: u32) -> Claim {
        Claim {
            resource: Resource::new(Kind::Semaphore, name).unwrap(),
            lock_id: LockId::from_stored(name),
            weight,
            capacity: 2,
            expiry: Duration::from_secs(1),
            waiting: None,
            cadence: None,
            no_overtaking: false,
            resizes: false,
            hold_at_least: Duration::ZERO,
        }
    }

    async fn claim_names(claims: Vec<&Claim>) -> Batch<String> {
        Ok(claims.iter().map(|claim| Ok(claim.resource.name().to_owned())).collect())
    }

    #[tokio::test]
    async fn a_claim_of_an_impossible_weight_fails_alone() {
        let claims = [claim("a", 1), claim("b", 3), claim("c", 2), claim("d", 0)];
        let answers = with_possible_weights(&claims, claim_names).await.unwrap();
        let kinds: Vec<_> = answers.into_iter().map(|answer| answer.map_err(|error| error.kind())).collect();
        let refused = || Err(ErrorKind::InvalidInput);
        assert_eq!(kinds, [Ok("a".to_owned()), refused(), Ok("c".to_owned()), refused()]);
    }

    #[test]
    fn chunks_are_small_and_of_one_key() {
        assert_eq!(chunks_by_key(&[30, 31, 20, 32, 33], 3, |n| *n / 10), [vec![2], vec![0, 1, 3], vec![4]]);
    }
}
