//! The protocol of the scripts: encodes claims and leases as items of a call, decodes the replies.

use std::io::Write;
use std::time::Duration;

use distlock_core::store::support::errors::{capacity_mismatch, unexpected_reply};
use distlock_core::store::{Attempt, Claim, GRANT_WINDOW, Lease, Released, Renewal};
use distlock_core::{Error, ErrorKind, FencingToken, RecordKind, Resource, Result};
use redis::{Cmd, RedisWrite, ToRedisArgs, Value};

use crate::error;
use crate::keys::{Key, Keys, ResourceKeys};
use crate::scripts::{Argument, ItemReply, Script, ScriptVerb};

/// Stands for no inbox: an inbox is never empty and contains no spaces.
const NO_INBOX: &str = "-";

/// The most words of an item.
const MAX_WORDS: usize = 9;

/// The words of a claim that is a single attempt for a mutex, behind its lock id and expiry. They may be left out.
const SINGLE_ATTEMPT: [Word<'static>; 4] =
    [Word::Text("g"), Word::Number(0), Word::Text(NO_INBOX), Word::Number(0)];

/// The reply codes, as in `batch.lua` and the scripts of the verbs.
mod code {
    pub(super) const NO: i64 = 0;
    pub(super) const YES: i64 = 1;
    pub(super) const RELEASED_AND_NOTIFIED: i64 = 2;
    pub(super) const OTHER_CAPACITY: i64 = 2;
    pub(super) const UNFINISHED: i64 = 5;
    pub(super) const UNFINISHED_NOT_OURS: i64 = 6;
    pub(super) const FAILED: i64 = 9;
}

/// A word of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word<'a> {
    Text(&'a str),
    Number(u64),
}

/// Writes a lock id and a token as the key of the lock has them.
fn write_holder(out: &mut Cmd, id: Word<'_>, token: u64) {
    let (mut digits, mut first, mut rest) = ([b'0'; 20], 20, token);
    loop {
        first -= 1;
        digits[first] += (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let Word::Text(id) = id else { return id.write_redis_args(out) };
    let mut word = out.writer_for_next_arg();
    // Writing into memory does not fail.
    let _ = word.write_all(id.as_bytes());
    let _ = word.write_all(b" ");
    let _ = word.write_all(digits.get(first..).unwrap_or_default());
}

impl ToRedisArgs for Word<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        match self {
            Word::Text(text) => out.write_arg(text.as_bytes()),
            Word::Number(number) => number.write_redis_args(out),
        }
    }
}

/// One item of a script call: its keys, all in one hash slot, and its words.
#[derive(Clone, Debug)]
pub(crate) struct ScriptItem<'a> {
    pub(crate) keys: ResourceKeys<'a>,
    /// Behind those that are used stand their defaults.
    words: [Word<'a>; MAX_WORDS],
    used: usize,
    /// Its first word, a lock id, is followed by this token. Not a word of its own: a batch copies hundreds of items.
    token: Option<u64>,
    /// It is sent again because the call before could not finish it.
    is_continued: bool,
}

impl<'a> ScriptItem<'a> {
    fn new<const N: usize>(keys: &'a Keys, resource: &'a Resource, used: [Word<'a>; N]) -> Self {
        let mut words = [Word::Number(0); MAX_WORDS];
        words[2..6].copy_from_slice(&SINGLE_ATTEMPT);
        words[..N].copy_from_slice(&used);
        ScriptItem {
            keys: keys.of(resource.kind(), resource.name()),
            words,
            used: N,
            token: None,
            is_continued: false,
        }
    }

    fn held_with(self, token: u64) -> Self {
        ScriptItem { token: Some(token), ..self }
    }

    /// Whether a word is that of another item too.
    fn shares(&self, column: usize, other: &ScriptItem<'_>) -> bool {
        self.words[column] == other.words[column] && (column > 0 || self.token == other.token)
    }

    /// A claim. `push`: a release may grant to it, and the message is all it needs.
    pub(crate) fn claim(keys: &'a Keys, claim: &'a Claim, push: bool) -> Self {
        let (id, expiry) = (Word::Text(claim.lock_id.as_str()), Word::Number(milliseconds(claim.expiry)));
        let is_lock = claim.resource.kind().record() == RecordKind::Lock;
        if is_lock && claim.waiting.is_none() && !claim.no_overtaking {
            return ScriptItem::new(keys, &claim.resource, [id, expiry]);
        }
        let mode = match (push, is_lock && claim.no_overtaking) {
            (true, false) => "g",
            (true, true) => "gt",
            (false, false) => "r",
            (false, true) => "rt",
        };
        let (ttl, inbox, attempt) = match &claim.waiting {
            Some(waiting) => (milliseconds(waiting.ttl), waiting.inbox.as_str(), waiting.attempt),
            None => (0, NO_INBOX, 0),
        };
        let (mode, ttl, inbox) = (Word::Text(mode), Word::Number(ttl), Word::Text(inbox));
        let attempt = Word::Number(attempt);
        if is_lock {
            return ScriptItem::new(keys, &claim.resource, [id, expiry, mode, ttl, inbox, attempt]);
        }
        let (weight, capacity) = (Word::Number(claim.weight.into()), Word::Number(claim.capacity.into()));
        if claim.resizes {
            let resizes = Word::Number(1);
            let words = [id, expiry, mode, ttl, inbox, attempt, weight, capacity, resizes];
            return ScriptItem::new(keys, &claim.resource, words);
        }
        ScriptItem::new(keys, &claim.resource, [id, expiry, mode, ttl, inbox, attempt, weight, capacity])
    }

    /// The renewal of a lease.
    pub(crate) fn renewal(keys: &'a Keys, lease: &'a Lease) -> Self {
        let (id, token) = (Word::Text(lease.lock_id.as_str()), lease.token.get());
        let expiry = Word::Number(milliseconds(lease.expiry));
        match lease.resource.kind().record() {
            RecordKind::Lock => ScriptItem::new(keys, &lease.resource, [id, expiry]).held_with(token),
            RecordKind::Pool => ScriptItem::new(keys, &lease.resource, [id, expiry, Word::Number(token)]),
        }
    }

    /// The release of a lease, or the withdrawal of a waiter.
    pub(crate) fn release(keys: &'a Keys, lease: &'a Lease) -> Self {
        let item = ScriptItem::new(keys, &lease.resource, [Word::Text(lease.lock_id.as_str())]);
        match lease.resource.kind().record() {
            RecordKind::Lock => item.held_with(lease.token.get()),
            RecordKind::Pool => item,
        }
    }

    /// The inspection of a resource, with its waiters from this queue entry on.
    pub(crate) fn inspection(keys: &'a Keys, resource: &'a Resource, from: u64) -> Self {
        ScriptItem::new(keys, resource, [Word::Number(from)])
    }

    /// The forced release of a resource.
    pub(crate) fn forced_release(keys: &'a Keys, resource: &'a Resource) -> Self {
        ScriptItem::new(keys, resource, [])
    }

    /// The keys of an item, in the order of the script.
    fn keys(&self, verb: ScriptVerb) -> [Option<Key<'a>>; 2] {
        let queue = self.keys.queue().filter(|_| verb != ScriptVerb::Renew);
        [self.keys.lock().or(self.keys.pool()), queue]
    }

    /// The key of the last token. A renewal in a Cluster first goes without it: while a slot moves, the key may be at another node than
    /// the lock, and then the Cluster serves no script that names both. The script needs it only for a token that is higher than
    /// the stored one, which the renewals of a guard do not carry.
    fn tokens(&self, verb: ScriptVerb) -> Option<Key<'a>> {
        let is_needed = verb != ScriptVerb::Renew || !self.keys.tokens_per_slot || self.is_continued;
        self.keys.tokens().filter(|_| is_needed)
    }

    /// The same item for the call that continues it.
    pub(crate) fn continued(&self) -> Self {
        ScriptItem { is_continued: true, ..self.clone() }
    }
}

/// How the server finds a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eval {
    BySha,
    BySource,
}

/// The command that calls a script for items of one record kind; `batch.lua` describes its arguments. Words that are equal for
/// all items are sent once: each one takes the server time to parse. `deadline`: see [`Argument::Deadline`].
pub(crate) fn command(script: &Script, eval: Eval, deadline: u64, items: &[&ScriptItem<'_>]) -> Cmd {
    let keys_of = |item: &ScriptItem<'_>| item.keys(script.verb).iter().flatten().count();
    let tokens = items.first().and_then(|item| item.tokens(script.verb));
    let keys = items.iter().map(|item| keys_of(item)).sum::<usize>() + usize::from(tokens.is_some());
    let used = items.iter().map(|item| item.used).max().unwrap_or(0);
    let most = 6 + keys + used * items.len();
    let mut command = Cmd::with_capacity(most, 256 + 64 * most);
    match eval {
        Eval::BySha => command.arg("EVALSHA").arg(&script.sha),
        Eval::BySource => command.arg("EVAL").arg(&script.source),
    };
    command.arg(keys);
    for column in 0..2 {
        for key in items.iter().filter_map(|item| item.keys(script.verb)[column]) {
            command.arg(key);
        }
    }
    if let Some(tokens) = tokens {
        command.arg(tokens);
    }
    for argument in script.arguments {
        command.arg(match argument {
            Argument::Deadline => deadline,
            Argument::GrantWindow => milliseconds(GRANT_WINDOW),
        });
    }
    let mut columns = [b'1'; MAX_WORDS];
    for (column, letter) in columns[..used].iter_mut().enumerate() {
        if items.iter().any(|item| !item.shares(column, items[0])) {
            *letter = b'n';
        }
    }
    command.arg(&columns[..used]);
    for (column, letter) in columns[..used].iter().enumerate() {
        let distinct = if *letter == b'n' { items } else { &items[..1] };
        for item in distinct {
            match item.token {
                Some(token) if column == 0 => write_holder(&mut command, item.words[0], token),
                _ => drop(command.arg(item.words[column])),
            }
        }
    }
    command
}

/// Whole milliseconds, rounded up: a store may keep a lease longer than asked, never shorter.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    let whole = u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
    // PEXPIRE adds this to the clock and fails if the sum overflows.
    whole.clamp(1, 1 << 50)
}

/// What a busy reply says in text: the time until it is worth asking again, and how long the waiter may sleep.
fn busy_and_pause(text: &[u8]) -> Option<(i64, Duration)> {
    let (left, pause) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    Some((left.parse().ok()?, Duration::from_millis(pause.parse().ok()?)))
}

/// A code and a number, or the error of an item that failed alone.
fn code_and_number(reply: &ItemReply) -> Result<(i64, i64)> {
    match &reply.values {
        [Value::Int(code::FAILED), Value::BulkString(text)] => {
            Err(error::refused(&String::from_utf8_lossy(text)))
        }
        [Value::Int(code), Value::Int(value)] => Ok((*code, *value)),
        other => Err(unexpected_reply(other)),
    }
}

/// A code, or the error of an item that failed alone.
fn code(reply: &ItemReply) -> Result<i64> {
    match &reply.values[0] {
        Value::Int(code) => Ok(*code),
        Value::BulkString(text) => Err(error::refused(&String::from_utf8_lossy(text))),
        other => Err(unexpected_reply(other)),
    }
}

fn too_few_replicas() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "fewer replicas confirmed it in time than distlock.min_replicas requires",
    )
    .with_unknown_outcome()
    .advise("bring the replicas back, or require fewer")
}

/// Whether an item must be sent again because the call reached its limit of work for absent waiters.
pub(crate) fn is_unfinished(reply: &Result<ItemReply>) -> bool {
    let code = reply.as_ref().ok().map(|reply| &reply.values[0]);
    matches!(code, Some(Value::Int(code::UNFINISHED | code::UNFINISHED_NOT_OURS)))
}

/// Merges the replies of an unfinished item and of the call that continued it. A release that was applied once stays applied,
/// whatever the next reply says.
pub(crate) fn merge_continued(before: &Result<ItemReply>, next: Result<ItemReply>) -> Result<ItemReply> {
    let released = matches!(before, Ok(ItemReply { values: [Value::Int(code::UNFINISHED), Value::Nil], .. }));
    match next {
        Ok(mut next) if released => {
            next.values[0] = match next.values[0] {
                Value::Int(code::NO) => Value::Int(code::YES),
                Value::Int(code::UNFINISHED_NOT_OURS) => Value::Int(code::UNFINISHED),
                ref other => other.clone(),
            };
            Ok(next)
        }
        Err(_) if released => Ok(ItemReply { values: [Value::Int(code::YES), Value::Nil], confirmed: true }),
        other => other,
    }
}

pub(crate) fn attempt(claim: &Claim, reply: &ItemReply) -> Result<Attempt> {
    // A key lives through the whole of its last millisecond.
    let busy = |left: i64| {
        Attempt::busy(u64::try_from(left).ok().map(|left| Duration::from_millis(left.saturating_add(1))))
    };
    if let [Value::Int(code::NO), Value::BulkString(text)] = &reply.values {
        let (left, pause) = busy_and_pause(text).ok_or_else(|| unexpected_reply(&reply.values))?;
        return Ok(busy(left).with_poll_after(pause));
    }
    match code_and_number(reply)? {
        (code::YES, token) => match u64::try_from(token) {
            Ok(_) if !reply.confirmed => Err(too_few_replicas()),
            Ok(token) => Ok(Attempt::granted(FencingToken::new(token))),
            Err(_) => Err(unexpected_reply(token)),
        },
        (code::NO, left) => Ok(busy(left)),
        (code::UNFINISHED, _) => Ok(Attempt::busy(Duration::ZERO)),
        (code::OTHER_CAPACITY, theirs) => Err(capacity_mismatch(&claim.resource, theirs, claim.capacity)),
        other => Err(unexpected_reply(other)),
    }
}

pub(crate) fn renewal(reply: &ItemReply) -> Result<Renewal> {
    match code(reply)? {
        code::YES if !reply.confirmed => Err(too_few_replicas()),
        code::YES => Ok(Renewal::Renewed),
        code::NO => Ok(Renewal::NotYours),
        other => Err(unexpected_reply(other)),
    }
}

pub(crate) fn released(reply: &ItemReply) -> Result<Released> {
    match code(reply)? {
        code::NO | code::UNFINISHED_NOT_OURS => Ok(Released::NotYours),
        code::YES | code::UNFINISHED => Ok(Released::Done { woke: false }),
        code::RELEASED_AND_NOTIFIED => Ok(Released::Done { woke: true }),
        other => Err(unexpected_reply(other)),
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::{Kind, LockId};

    use super::*;
    use crate::scripts::{ScriptSettings, Scripts};

    /// The arguments of a call, from the number of keys on, without the prefix of keys.
    fn sent(script: &Script, items: &[ScriptItem<'_>]) -> Vec<String> {
        let items: Vec<&ScriptItem<'_>> = items.iter().collect();
        let command = command(script, Eval::BySha, 7, &items);
        let words = command.args_iter().skip(2).map(|arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).replace("{p}", ""),
            other => panic!("{other:?}"),
        });
        words.collect()
    }

    fn claim(kind: Kind, name: &str, ms: u64) -> Claim {
        let id = LockId::from_stored(format!("id-{name}"));
        Claim::new(Resource::new(kind, name).unwrap(), id, Duration::from_millis(ms))
    }

    #[test]
    fn words_that_all_items_share_are_sent_once() {
        let settings = ScriptSettings { channel: String::new(), retention: 1, counts_subscribers: true };
        let (scripts, keys) = (Scripts::new(&settings), Keys::new("{p}").unwrap());
        let item = |claim| ScriptItem::claim(&keys, claim, true);
        let acquire = scripts.get(ScriptVerb::Acquire, RecordKind::Lock);
        let [a, b, c] = [("a", 30), ("b", 30), ("c", 40)].map(|(name, ms)| claim(Kind::Mutex, name, ms));
        assert_eq!(sent(acquire, &[item(&a)])[4..], ["7", "11", "id-a", "30"]);
        let both = sent(acquire, &[item(&a), item(&b)]);
        assert_eq!(both[..3], ["5", "a", "b"]);
        assert_eq!(both[3..6], ["\u{fffd}w:a", "\u{fffd}w:b", "\u{fffd}n:"]);
        assert_eq!(both[6..], ["7", "n1", "id-a", "id-b", "30"]);
        let three = sent(acquire, &[item(&a), item(&b), item(&c)]);
        assert_eq!(three[8..], ["7", "nn", "id-a", "id-b", "id-c", "30", "30", "40"]);
        // One that says more than the others: they get the defaults.
        let in_order = b.clone().with_no_overtaking(true);
        let mixed = sent(acquire, &[item(&a), item(&in_order)]);
        assert_eq!(mixed[6..], ["7", "n1n111", "id-a", "id-b", "30", "g", "gt", "0", "-", "0"]);

        let renew = scripts.get(ScriptVerb::Renew, RecordKind::Lock);
        let leases =
            [(&a, 0), (&b, u64::MAX)].map(|(claim, token)| Lease::of(claim, FencingToken::new(token)));
        let renewals = leases.each_ref().map(|lease| ScriptItem::renewal(&keys, lease));
        assert_eq!(sent(renew, &renewals)[4..], ["n1", "id-a 0", "id-b 18446744073709551615", "30"]);

        let pool = claim(Kind::Semaphore, "s", 30);
        let acquire = scripts.get(ScriptVerb::Acquire, RecordKind::Pool);
        let window = milliseconds(GRANT_WINDOW).to_string();
        let sent = sent(acquire, &[item(&pool)]);
        assert_eq!(sent[..2], ["1", "\u{fffd}s:s"]);
        assert_eq!(sent[2..], ["7", &window, "11111111", "id-s", "30", "g", "0", "-", "0", "1", "1"]);
    }
}
