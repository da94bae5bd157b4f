//! The atomic steps, each an aggregation pipeline that the server runs on one document. One file a step, written as
//! the pipeline is; what several of them say is here.
//!
//! Only stages and operators of MongoDB 4.2 are used. `$$NOW` is the server's clock, the same throughout a command: it is
//! read before the command waits for its collection, so a stalled command is applied with an older reading than
//! commands that came later. Three rules follow. A reading is never earlier than the moment the client sent the command,
//! from which the client counts its local deadline, so a grant or a renewal lasts as long as its answer says, however old
//! the reading. An older reading finds a hold live rather than expired, so it never lets another client in. And what is
//! written must not go back: the expiry of a hold ([`extended`]), the moment of a grant after the decision that its
//! message counts from (`pool.rs`).
//! Whatever comes from outside is wrapped in `$literal`: a name or a lock id that begins with `$` is text, not a path.

mod line_break;
mod line_next;
mod line_register;
mod line_ring;
mod line_withdraw;
mod lock;
mod lock_acquire;
mod lock_break;
mod lock_pass;
mod lock_release;
mod lock_renew;
mod lock_transfer;
mod pool;
mod pool_attempt;
mod pool_break;
mod pool_release;
mod pool_renew;

pub(crate) use line_break::line_break;
pub(crate) use line_next::line_next;
pub(crate) use line_register::{Registration, line_register};
pub(crate) use line_ring::line_ring;
pub(crate) use line_withdraw::line_withdraw;
pub(crate) use lock_acquire::{Taking, lock_acquire, lock_acquire_each, lock_beginning};
pub(crate) use lock_break::lock_break;
pub(crate) use lock_pass::{NO_HEIR, NOT_OURS, Passing, lock_pass};
pub(crate) use lock_release::{Marked, lock_release};
pub(crate) use lock_renew::{lock_renew, lock_renew_each};
pub(crate) use lock_transfer::{Heir, lock_transfer};
pub(crate) use pool_attempt::{Asking, pool_attempt};
pub(crate) use pool_break::pool_break;
pub(crate) use pool_release::{NotOurs, pool_release};
pub(crate) use pool_renew::pool_renew;

use mongodb::bson::{Bson, Document, doc};

/// The end of the year 9999.
pub(crate) const LAST_DATE_MS: i64 = 253_402_300_799_999;

/// No token above this is counted on from: another program wrote it, and it is so close to the end of the numbers that
/// tokens could not rise for ever.
pub(crate) const LAST_TOKEN: i64 = i64::MAX - (1 << 32);

/// A value from outside, never read as an expression.
fn literal(value: impl Into<Bson>) -> Document {
    doc! { "$literal": value.into() }
}

/// The server's clock, so many milliseconds from now.
fn in_ms(ms: impl Into<Bson>) -> Document {
    doc! { "$add": ["$$NOW", ms.into()] }
}

/// When a hold ends that is to last for so many milliseconds from now, and lasted until `before`. Never earlier than
/// that: a renewal that was stalled and is applied after a later one of the same lock id has an older `$$NOW`.
fn extended(before: &str, ms: i64) -> Document {
    doc! { "$max": [before, in_ms(ms)] }
}

/// Whether a token can be counted on from. What is not a number, or lies beyond the whole numbers, cannot.
fn is_countable(token: &str) -> Document {
    doc! { "$and": [{ "$gte": [token, i64::MIN] }, { "$lte": [token, LAST_TOKEN] }] }
}

/// The next token of one [that can be counted on](is_countable): one more than the last, the server's clock if that is higher, and never below the clock as we
/// have seen it before, should it have been set back.
fn next_token(last: impl Into<Bson>, floor: i64) -> Document {
    doc! { "$max": [{ "$add": [{ "$toLong": last.into() }, 1_i64] }, { "$toLong": "$$NOW" }, floor] }
}

/// The moment at which the server's clock alone gives higher tokens than this one: the record of a name may not be
/// purged before. A token that is no time at all, such as another program's, stays within what a date can hold.
fn moment_of(token: impl Into<Bson>) -> Document {
    // First the bounds: what does not fit into a whole number would fail, and the lock could not be released.
    doc! { "$toDate": { "$toLong": { "$max": [0_i64, { "$min": [token.into(), LAST_DATE_MS] }] } } }
}

/// Those entries of a list whose time is not over.
fn live(list: &str) -> Document {
    doc! { "$filter": {
        "input": { "$ifNull": [list, []] },
        "cond": { "$gt": ["$$this.expiresAt", "$$NOW"] },
    } }
}

/// A list from a place on. `$slice` wants a count above zero.
fn from_place(list: impl Into<Bson>, place: impl Into<Bson>) -> Document {
    let list = list.into();
    doc! { "$slice": [list.clone(), place.into(), { "$max": [1, { "$size": list }] }] }
}

/// Those of a line who stand behind a lock id and whose time is not over; all of them if it is not there.
fn behind(line: &str, lock_id: &Document) -> Document {
    let mine_or_live = doc! { "$or": [
        { "$eq": ["$$this.lockId", lock_id.clone()] },
        { "$gt": ["$$this.expiresAt", "$$NOW"] },
    ] };
    let live = doc! { "$filter": { "input": line, "cond": mine_or_live } };
    let place = doc! { "$add": [{ "$indexOfArray": ["$$live.lockId", lock_id.clone()] }, 1] };
    doc! { "$let": { "vars": { "live": live }, "in": from_place("$$live", place) } }
}

/// Fails with these words, and leaves the document as it is. No pipeline can fail by itself; but what is no date cannot
/// be made one, and the error repeats it. With something of the document in it the server cannot work it out beforehand; not
/// the id, since servers cut long messages in the middle of a letter.
fn failing(words: &str) -> Document {
    doc! { "$toDate": { "$concat": [words, { "$type": "$_id" }] } }
}

/// A message whose only argument is the clock: an update that changes nothing is told to nobody.
fn stamped(call: impl Into<Bson>, verb: &str) -> Document {
    doc! { "$concat": [call.into(), verb, { "$toString": { "$toLong": "$$NOW" } }] }
}

/// The field `wake` of these messages, one a line; without any there is no such field.
fn messages(list: impl Into<Bson>) -> Document {
    let line = doc! { "$cond": [{ "$eq": ["$$value", ""] }, "", "\n"] };
    let text = doc! { "$reduce": {
        "input": list.into(),
        "initialValue": "",
        "in": { "$concat": ["$$value", line, "$$this"] },
    } };
    doc! { "$let": {
        "vars": { "text": text },
        "in": { "$cond": [{ "$eq": ["$$text", ""] }, "$$REMOVE", "$$text"] },
    } }
}
