//! A batch as SQL: numbers and hexadecimal digits only, so that no value can be read as anything else. One request carries
//! several statements, which the driver cannot send with bound parameters.

mod json;

use std::time::Duration;

use distlock_core::store::{Claim, Lease};
use distlock_core::{Error, ErrorKind, Kind, RecordKind, Resource, Result};
use sha2::{Digest, Sha256};

/// The longest lock id, which is part of a primary key.
const LONGEST_ID: usize = 2048;

/// A century: longer times are cut, so that no sum overflows.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The primary key of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    pub(crate) fn of(resource: &Resource) -> Self {
        Key::hash(resource.kind(), resource.name())
    }

    pub(crate) fn hash(kind: Kind, name: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(kind.as_str());
        hash.update([0]);
        hash.update(name);
        Key(hash.finalize().into())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Key)
    }

    /// Its first bytes as a number: keys are in the order of these numbers, apart from those that have the same.
    fn beginning(&self) -> u64 {
        self.0[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// A part of it as text, enough to tell keys apart.
    pub(crate) fn short_hex(&self) -> String {
        self.0[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// As a literal.
    pub(crate) fn literal(&self) -> String {
        literal(&self.0)
    }
}

/// Bytes as a literal that no setting of the session changes: `X'6162'`.
pub(crate) fn literal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len() + 3);
    text.push_str("X'");
    push_hex(&mut text, bytes);
    text.push('\'');
    text
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    // Many digits at once: a process may renew tens of thousands of locks a second.
    for part in bytes.chunks(32) {
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(part) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        text.push_str(std::str::from_utf8(&digits[..2 * part.len()]).unwrap_or_default());
    }
}

/// A number in decimal digits.
fn push_number(text: &mut String, number: u64) {
    let mut digits = [0; 20];
    let (mut first, mut rest) = (digits.len(), number);
    loop {
        first -= 1;
        digits[first] = b"0123456789"[(rest % 10) as usize];
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.push_str(std::str::from_utf8(&digits[first..]).unwrap_or_default());
}

/// Whole microseconds, rounded up: a lease is never shorter than asked for.
pub(crate) fn micros(duration: Duration) -> u64 {
    let duration = duration.min(LONGEST);
    let whole = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 1000);
    whole + u64::from(!duration.subsec_nanos().is_multiple_of(1000))
}

/// One item of a batch, as the statements see it.
#[derive(Clone, Debug)]
pub(crate) struct Item<'a> {
    /// Its place in the request.
    pub(crate) n: usize,
    pub(crate) key: Key,
    pub(crate) resource: &'a Resource,
    id: &'a str,
    expiry: u64,
    /// For how long it waits without another attempt; zero for a single attempt.
    ttl: u64,
    weight: u32,
    capacity: u32,
    token: u64,
    /// The row has its token already: see [`Lease::token_is_known`].
    token_is_known: bool,
    in_order: bool,
    /// A pool in use gets the capacity of this claim.
    pub(crate) resizes: bool,
    /// It may make the row of its resource, which then has a kind and a name. A lease never does.
    makes_row: bool,
}

impl<'a> Item<'a> {
    pub(crate) fn of_claim(n: usize, claim: &'a Claim) -> Self {
        Item {
            n,
            key: Key::of(&claim.resource),
            resource: &claim.resource,
            id: claim.lock_id.as_str(),
            expiry: micros(claim.expiry).max(1),
            ttl: claim.waiting.as_ref().map_or(0, |waiting| micros(waiting.ttl).max(1)),
            weight: claim.weight,
            capacity: claim.capacity,
            token: 0,
            token_is_known: false,
            in_order: claim.no_overtaking,
            resizes: claim.resizes,
            makes_row: true,
        }
    }

    pub(crate) fn of_lease(n: usize, lease: &'a Lease) -> Self {
        Item {
            n,
            key: Key::of(&lease.resource),
            resource: &lease.resource,
            id: lease.lock_id.as_str(),
            expiry: micros(lease.expiry).max(1),
            ttl: 0,
            weight: lease.weight,
            capacity: lease.capacity,
            token: lease.token.get(),
            token_is_known: lease.token_is_known,
            in_order: false,
            resizes: false,
            makes_row: false,
        }
    }

    /// An item that cannot be stored fails alone.
    pub(crate) fn check(&self) -> Result<()> {
        let length = self.id.len();
        if (1..=LONGEST_ID).contains(&length) {
            return Ok(());
        }
        let what = format!("a lock id of {length} bytes is not between 1 and {LONGEST_ID}");
        Err(Error::new(ErrorKind::InvalidInput, what).about(self.resource).advise("use a shorter label"))
    }

    pub(crate) fn is_pool(&self) -> bool {
        self.resource.kind().record() == RecordKind::Pool
    }

    /// About how many bytes of SQL it becomes.
    fn size(&self) -> usize {
        2 * (2 * self.resource.name().len() + self.id.len()) + 250
    }
}

/// A batch to be put into statements.
#[derive(Clone, Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) items: Vec<Item<'a>>,
}

impl<'a> Rows<'a> {
    /// Items in the order of their keys: every batch locks rows in this order.
    pub(crate) fn new(items: Vec<Item<'a>>) -> Self {
        // An item is large, and so is a key: the beginnings of the keys are sorted, and each item is moved once.
        let mut order: Vec<(u64, usize)> =
            items.iter().enumerate().map(|(at, item)| (item.key.beginning(), at)).collect();
        order.sort_unstable_by(|(one, at), (other, other_at)| {
            let rest = || (items[*at].key, items[*at].n).cmp(&(items[*other_at].key, items[*other_at].n));
            one.cmp(other).then_with(rest)
        });
        Rows { items: order.into_iter().map(|(_, at)| items[at].clone()).collect() }
    }

    /// Splits a batch whose statement would be longer than this many bytes.
    pub(crate) fn split(self, most: usize) -> Vec<Rows<'a>> {
        if !self.items.is_empty() && self.items.iter().map(Item::size).sum::<usize>() <= most {
            return vec![self];
        }
        let mut parts: Vec<Rows<'a>> = Vec::new();
        let mut size = 0;
        for item in self.items {
            size += item.size();
            match parts.last_mut() {
                Some(part) if size <= most => part.items.push(item),
                _ => {
                    size = item.size();
                    parts.push(Rows { items: vec![item] });
                }
            }
        }
        parts
    }

    /// The statements of a file for this batch.
    pub(crate) fn fill(&self, statement: &str) -> String {
        let (before, batch) = match &self.items[..] {
            [one] => (String::new(), one_row(one)),
            items => json::table(items),
        };
        let mut text = statement
            .replace("{free}", &format!("(SELECT * FROM {batch} f WHERE FIND_IN_SET(f.n, @distlock_free))"))
            .replace("{batch}", &batch);
        if text.contains("{rows}") {
            text = text.replace("{rows}", &self.values());
        }
        before + &text
    }

    /// The rows of an INSERT: one for each key.
    fn values(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        for item in &self.items {
            if last.replace(item.key) == Some(item.key) {
                continue;
            }
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str("(X'");
            push_hex(&mut text, &item.key.0);
            text.push_str("', X'");
            push_hex(&mut text, item.resource.name().as_bytes());
            text.push_str("')");
        }
        text
    }
}

fn one_row(item: &Item<'_>) -> String {
    format!(
        "(SELECT {} AS n, {} AS k, {} AS id, {} AS expiry, {} AS ttl, {} AS weight, {} AS capacity, {} AS token, {} AS in_order, \
         {} AS resizes, {} AS kind, {} AS name)",
        item.n,
        item.key.literal(),
        literal(item.id.as_bytes()),
        item.expiry,
        item.ttl,
        item.weight,
        item.capacity,
        item.token,
        u8::from(item.in_order),
        u8::from(item.resizes),
        literal(item.resource.kind().as_str().as_bytes()),
        literal(item.resource.name().as_bytes()),
    )
}

#[cfg(test)]
pub(super) mod tests {
    use distlock_core::{FencingToken, LockId};

    use super::*;

    pub(super) fn lease(name: &str, id: &str) -> Lease {
        let resource = Resource::new(Kind::Mutex, name).unwrap();
        Lease::new(resource, LockId::from_stored(id), FencingToken::new(7), Duration::from_secs(3))
    }

    #[test]
    fn no_value_can_leave_its_literal() {
        let leases = [lease("a'); DROP TABLE x; --", "id' OR 1=1"), lease("\\'\"`\0", "\"]]")];
        let claims = leases
            .each_ref()
            .map(|lease| Claim::new(lease.resource.clone(), lease.lock_id.clone(), lease.expiry));
        let of_claims = claims.iter().enumerate().map(|(n, claim)| Item::of_claim(n, claim));
        let of_leases = leases.iter().enumerate().map(|(n, lease)| Item::of_lease(n + 2, lease));
        let rows = Rows::new(of_claims.chain(of_leases).collect());
        let text = rows.fill("{batch} {rows}");
        let values = text.split_once('\n').unwrap().0.to_owned() + text.rsplit(')').next().unwrap();
        assert!(values.chars().all(|c| !"\\`-".contains(c)), "{values}");
        assert!(!text.contains("DROP"), "{text}");
    }

    #[test]
    fn rows_are_locked_in_the_order_of_their_keys_and_created_once() {
        let leases: Vec<Lease> = (0..20).map(|n| lease(&format!("n{}", n % 10), &n.to_string())).collect();
        let rows = Rows::new(leases.iter().enumerate().map(|(n, lease)| Item::of_lease(n, lease)).collect());
        assert!(rows.items.is_sorted_by_key(|item| item.key));
        assert_eq!(rows.values().matches("(X'").count(), 10);
        let parts = rows.split(1000);
        assert!(parts.len() > 3 && parts.iter().map(|part| part.items.len()).sum::<usize>() == 20);
    }

    #[test]
    fn names_and_kinds_have_keys_of_their_own() {
        let keys = [(Kind::Mutex, "a"), (Kind::Mutex, "A"), (Kind::Mutex, "a "), (Kind::Semaphore, "a")]
            .map(|(kind, name)| Key::hash(kind, name));
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[at + 1..].contains(key));
        }
    }

    #[test]
    fn times_are_rounded_up_and_cannot_overflow() {
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_micros(5)), 5);
        assert!(micros(Duration::MAX) < u64::MAX / 1000);
    }
}
