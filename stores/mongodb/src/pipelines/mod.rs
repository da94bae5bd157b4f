//! The aggregation pipelines: each is one atomic step that the server runs on one document. One file per pipeline;
//! expressions that several pipelines use stand here.
//!
//! Pipelines use only stages and operators of MongoDB 4.2. Every value from outside is wrapped in `$literal`, so a name
//! or a lock id that begins with `$` is text, not a path.
//!
//! **`$$NOW` may be old.** It is the server's clock, the same throughout a command, and the server reads it before the
//! command waits for its collection. A stalled command is therefore applied with an older reading than commands that
//! arrived later. Three rules follow:
//! - The reading is never earlier than the moment the client sent the command, and the client counts its local deadline
//!   from that moment. A grant or a renewal lasts as long as its answer says, however old the reading.
//! - An older reading finds a hold live rather than expired, so it never admits a second holder.
//! - No written time moves back: not the expiry of a hold ([`renewed_until`]), and not the time of a grant relative to
//!   the decision that its message counts from (`pool_document.rs`).

mod lock_acquire;
mod lock_break;
mod lock_document;
mod lock_handoff;
mod lock_release;
mod lock_renew;
mod pool_acquire;
mod pool_break;
mod pool_document;
mod pool_release;
mod pool_renew;
mod queue_next;
mod queue_register;
mod queue_wake;
mod queue_withdraw;

pub(crate) use lock_acquire::{LockClaim, lock_acquire, lock_acquire_each, new_lock};
pub(crate) use lock_break::lock_break;
pub(crate) use lock_handoff::{MergeHandoff, lock_merge_handoff, lock_transfer};
pub(crate) use lock_release::{lock_release, lock_release_each, lock_release_if, lock_release_if_held};
pub(crate) use lock_renew::{LockRenewEach, lock_renew};
pub(crate) use pool_acquire::{PoolClaim, pool_acquire};
pub(crate) use pool_break::pool_break;
pub(crate) use pool_document::GrantTerms;
pub(crate) use pool_release::{IfNotHeld, pool_release};
pub(crate) use pool_renew::pool_renew;
pub(crate) use queue_next::queue_next;
pub(crate) use queue_register::{QueueRegistration, queue_register};
pub(crate) use queue_wake::{queue_broken, queue_wake_head};
pub(crate) use queue_withdraw::queue_withdraw;

use mongodb::bson::{Bson, Document, doc};

/// The end of the year 9999.
pub(crate) const LAST_DATE_MS: i64 = 253_402_300_799_999;

/// The highest token that can be followed by another. Another program wrote any token above it, so close to the end of
/// the 64-bit integers that tokens could not keep rising.
pub(crate) const LAST_TOKEN: i64 = i64::MAX - (1 << 32);

/// The code of the error that [`conversion_failure`] causes.
pub(crate) const CONVERSION_FAILURE: i32 = 241;

/// A value from outside, never evaluated as an expression.
fn literal(value: impl Into<Bson>) -> Document {
    doc! { "$literal": value.into() }
}

/// The server's clock plus this many milliseconds.
fn from_now(ms: impl Into<Bson>) -> Document {
    doc! { "$add": ["$$NOW", ms.into()] }
}

/// The expiry of a hold renewed for this many milliseconds. It never moves back: a stalled renewal that is applied after
/// a later one of the same lock id has an older `$$NOW`.
fn renewed_until(expires_at: &str, ms: i64) -> Document {
    doc! { "$max": [expires_at, from_now(ms)] }
}

/// Whether a token can be followed by another: a number within the 64-bit integers, and not above [`LAST_TOKEN`].
fn is_countable(token: &str) -> Document {
    doc! { "$and": [{ "$gte": [token, i64::MIN] }, { "$lte": [token, LAST_TOKEN] }] }
}

/// The token of a new grant after a [countable](is_countable) token: the last one plus one, or the server's clock if that is
/// higher. `lowest` is the clock as this client has seen it; it keeps tokens rising after the clock was set back.
fn next_token(last: impl Into<Bson>, lowest: i64) -> Document {
    doc! { "$max": [{ "$add": [{ "$toLong": last.into() }, 1_i64] }, { "$toLong": "$$NOW" }, lowest] }
}

/// The time at which the server's clock alone yields higher tokens than this one. The record may not be purged before.
/// A token that is not a time, such as another program's, is clamped to the range of dates.
fn date_of_token(token: impl Into<Bson>) -> Document {
    // Clamp first: converting a number outside the range fails, and the lock could not be released.
    doc! { "$toDate": { "$toLong": { "$max": [0_i64, { "$min": [token.into(), LAST_DATE_MS] }] } } }
}

/// The entries of a list that have not expired.
fn live(list: &str) -> Document {
    doc! { "$filter": {
        "input": { "$ifNull": [list, []] },
        "cond": { "$gt": ["$$this.expiresAt", "$$NOW"] },
    } }
}

/// A list from this index on. `$slice` requires a count above zero.
fn slice_from(list: impl Into<Bson>, index: impl Into<Bson>) -> Document {
    let list = list.into();
    doc! { "$slice": [list.clone(), index.into(), { "$max": [1, { "$size": list }] }] }
}

/// The live entries of a wait queue behind this lock id; all live entries if it is not in the queue.
fn entries_behind(queue: &str, lock_id: &Document) -> Document {
    let mine_or_live = doc! { "$or": [
        { "$eq": ["$$this.lockId", lock_id.clone()] },
        { "$gt": ["$$this.expiresAt", "$$NOW"] },
    ] };
    let live = doc! { "$filter": { "input": queue, "cond": mine_or_live } };
    let index = doc! { "$add": [{ "$indexOfArray": ["$$live.lockId", lock_id.clone()] }, 1] };
    doc! { "$let": { "vars": { "live": live }, "in": slice_from("$$live", index) } }
}

/// Fails the pipeline with [`CONVERSION_FAILURE`] and leaves the document unchanged. Pipelines have no operator that
/// raises an error, but converting text that is not a date does. The text depends on the document: the server evaluates
/// a constant before it runs the pipeline.
fn conversion_failure() -> Document {
    doc! { "$toDate": { "$concat": ["not applied: ", { "$type": "$_id" }] } }
}

/// A message whose only argument is the clock: an update that changes nothing reaches no change stream.
fn stamped(address: impl Into<Bson>, verb: &str) -> Document {
    doc! { "$concat": [address.into(), verb, { "$toString": { "$toLong": "$$NOW" } }] }
}

/// The field `wake`: these messages, one per line. Without messages the field is removed.
fn wake_field(messages: impl Into<Bson>) -> Document {
    let separator = doc! { "$cond": [{ "$eq": ["$$value", ""] }, "", "\n"] };
    let text = doc! { "$reduce": {
        "input": messages.into(),
        "initialValue": "",
        "in": { "$concat": ["$$value", separator, "$$this"] },
    } };
    doc! { "$let": {
        "vars": { "text": text },
        "in": { "$cond": [{ "$eq": ["$$text", ""] }, "$$REMOVE", "$$text"] },
    } }
}
