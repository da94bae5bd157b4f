//! The transactions of the store. Each is one atomic step on the server.

use distlock_core::store::support::errors::unexpected_reply;
use distlock_core::{Error, Result};

use crate::api::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::api::range_request::{SortOrder, SortTarget};
use crate::api::request_op::Request;
use crate::api::response_op::Response;
use crate::api::*;
use crate::keys::{ClaimValue, KeyRange};

/// A claim as transactions see it.
#[derive(Clone, Debug)]
pub(crate) struct ClaimKey {
    pub(crate) key: Vec<u8>,
    pub(crate) value: ClaimValue,
    pub(crate) queue: KeyRange,
}

/// The session that a claim belongs to.
#[derive(Clone, Debug)]
pub(crate) struct SessionKey {
    pub(crate) key: Vec<u8>,
    pub(crate) lease: i64,
}

// ---- reads --------------------------------------------------------------------------------------------------

/// All claims of a queue, first come first.
pub(crate) fn list(queue: &KeyRange) -> RangeRequest {
    RangeRequest {
        key: queue.start.clone(),
        range_end: queue.end.clone(),
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// The last claim before this revision.
fn predecessor(queue: &KeyRange, revision: i64) -> RangeRequest {
    RangeRequest { max_create_revision: revision - 1, ..newest(queue, 1) }
}

/// The newest claims of a queue, newest first.
fn newest(queue: &KeyRange, limit: i64) -> RangeRequest {
    RangeRequest { sort_order: SortOrder::Descend.into(), limit, keys_only: true, ..list(queue) }
}

pub(crate) fn get(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

// ---- claims -------------------------------------------------------------------------------------------------

/// Enters the queue, unless the claim is in it already or the session's key was written since `fence`. Answers as
/// [`claims_before`] reads it; otherwise with the claim and the session's key.
///
/// The first claim of a queue is granted, and its value says so. Others read the queue: the two newest claims
/// (`newest_only`: a mutex needs no more), or all.
pub(crate) fn enter(claim: &ClaimKey, session: &SessionKey, fence: i64, newest_only: bool) -> TxnRequest {
    let read = if newest_only { newest(&claim.queue, 2) } else { list(&claim.queue) };
    let enter = TxnRequest {
        compare: vec![has_none_after(&claim.queue, 0)],
        success: vec![put(claim, session.lease, true)],
        failure: vec![put(claim, session.lease, false), op(read)],
    };
    TxnRequest {
        compare: vec![is_absent(&claim.key), was_written_at(&session.key, fence)],
        success: vec![RequestOp { request: Some(Request::RequestTxn(enter)) }],
        failure: vec![op(get(&claim.key)), op(get(&session.key))],
    }
}

/// The claims that an [`enter`] found in front of the one that was created at this revision, first come first.
pub(crate) fn claims_before(reply: &mut TxnResponse, revision: i64) -> Result<Vec<KeyValue>> {
    let Some(Response::ResponseTxn(mut entered)) =
        reply.responses.get_mut(0).and_then(|response| response.response.take())
    else {
        return Err(too_short());
    };
    if entered.succeeded {
        return Ok(Vec::new());
    }
    let mut found = kvs_at(&mut entered, 1)?;
    found.retain(|kv| kv.create_revision < revision);
    found.sort_by_key(|kv| kv.create_revision);
    Ok(found)
}

/// Enters a queue without claims that are newer than `revision`, 0 for an empty queue, to be granted at once. Answers like
/// [`enter`] if it does not.
pub(crate) fn enter_if_unchanged(
    claim: &ClaimKey,
    session: &SessionKey,
    fence: i64,
    revision: i64,
) -> TxnRequest {
    TxnRequest {
        compare: vec![
            has_none_after(&claim.queue, revision),
            is_absent(&claim.key),
            was_written_at(&session.key, fence),
        ],
        success: vec![put(claim, session.lease, true)],
        failure: vec![op(get(&claim.key)), op(get(&session.key))],
    }
}

/// If the claim is still ours: what is in front of it. `nearest_only`: only the direct predecessor.
pub(crate) fn check(claim: &ClaimKey, session: &SessionKey, revision: i64, nearest_only: bool) -> TxnRequest {
    let before = if nearest_only {
        predecessor(&claim.queue, revision)
    } else {
        RangeRequest { max_create_revision: revision - 1, ..list(&claim.queue) }
    };
    TxnRequest {
        compare: still_ours(claim, session, revision).into(),
        success: vec![op(before)],
        failure: Vec::new(),
    }
}

/// If the claim is still ours: writes its value again, with the mark that it is granted.
pub(crate) fn mark_granted(claim: &ClaimKey, session: &SessionKey, revision: i64) -> TxnRequest {
    TxnRequest {
        compare: still_ours(claim, session, revision).into(),
        success: vec![put(claim, session.lease, true)],
        failure: Vec::new(),
    }
}

/// Deletes a claim that was created at this revision.
pub(crate) fn leave(key: &[u8], revision: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![was_created_at(key, revision)],
        success: vec![delete(key)],
        failure: Vec::new(),
    }
}

/// Deletes a claim, if it is there, and writes the session's key: an [`enter`] of the claim that is still in flight then has
/// no effect.
pub(crate) fn leave_and_fence(key: &[u8], session: &SessionKey) -> TxnRequest {
    TxnRequest {
        compare: Vec::new(),
        success: vec![delete(key), put_op(&session.key, Vec::new(), session.lease)],
        failure: Vec::new(),
    }
}

/// Deletes a claim of another client and tells its session by writing the claim's key into the session's key, if it has one.
pub(crate) fn break_claim(key: &[u8], revision: i64, session: Option<&[u8]>) -> TxnRequest {
    let mut txn = leave(key, revision);
    if let Some(session) = session {
        txn.compare.push(Compare {
            result: CompareResult::Greater.into(),
            target: CompareTarget::Create.into(),
            key: session.to_vec(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            range_end: Vec::new(),
        });
        txn.success.push(RequestOp {
            request: Some(Request::RequestPut(PutRequest {
                key: session.to_vec(),
                value: key.to_vec(),
                ignore_lease: true,
                ..PutRequest::default()
            })),
        });
    }
    txn
}

// ---- sessions -----------------------------------------------------------------------------------------------

/// Writes the key of a new session.
pub(crate) fn begin_session(session: &SessionKey) -> TxnRequest {
    TxnRequest {
        compare: Vec::new(),
        success: vec![put_op(&session.key, Vec::new(), session.lease)],
        failure: Vec::new(),
    }
}

// ---- parts --------------------------------------------------------------------------------------------------

/// No key of the range was created after this revision.
fn has_none_after(range: &KeyRange, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Less.into(),
        target: CompareTarget::Create.into(),
        key: range.start.clone(),
        range_end: range.end.clone(),
        target_union: Some(TargetUnion::CreateRevision(revision + 1)),
    }
}

fn is_absent(key: &[u8]) -> Compare {
    was_created_at(key, 0)
}

fn was_created_at(key: &[u8], revision: i64) -> Compare {
    compare(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

fn was_written_at(key: &[u8], revision: i64) -> Compare {
    compare(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

fn still_ours(claim: &ClaimKey, session: &SessionKey, revision: i64) -> [Compare; 2] {
    [
        was_created_at(&claim.key, revision),
        compare(&claim.key, CompareTarget::Lease, TargetUnion::Lease(session.lease)),
    ]
}

fn compare(key: &[u8], target: CompareTarget, value: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.to_vec(),
        target_union: Some(value),
        range_end: Vec::new(),
    }
}

fn op(range: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(range)) }
}

fn put(claim: &ClaimKey, lease: i64, granted: bool) -> RequestOp {
    let value = if granted { claim.value.granted_now() } else { claim.value };
    put_op(&claim.key, value.encode(), lease)
}

fn put_op(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    let put = PutRequest { key: key.to_vec(), value, lease, ..PutRequest::default() };
    RequestOp { request: Some(Request::RequestPut(put)) }
}

fn delete(key: &[u8]) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.to_vec(), ..DeleteRangeRequest::default() };
    RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}

// ---- replies ------------------------------------------------------------------------------------------------

/// The revision of the store when it answered.
pub(crate) fn revision_of(header: Option<&ResponseHeader>) -> Result<i64> {
    header.map(|header| header.revision).ok_or_else(|| unexpected_reply("without a header"))
}

/// The keys that the read at this place of a transaction found.
pub(crate) fn kvs_at(reply: &mut TxnResponse, at: usize) -> Result<Vec<KeyValue>> {
    match reply.responses.get_mut(at).and_then(|response| response.response.take()) {
        Some(Response::ResponseRange(range)) => Ok(range.kvs),
        _ => Err(too_short()),
    }
}

/// How many keys the deletion at this place of a transaction deleted.
pub(crate) fn deleted_at(reply: &TxnResponse, at: usize) -> Result<i64> {
    match reply.responses.get(at).and_then(|response| response.response.as_ref()) {
        Some(Response::ResponseDeleteRange(deleted)) => Ok(deleted.deleted),
        _ => Err(too_short()),
    }
}

fn too_short() -> Error {
    unexpected_reply("a transaction without the reply to one of its requests")
}
