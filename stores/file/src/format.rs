//! The format of the files, and how a torn write is detected.
//!
//! Files are text in blocks of a fixed size, readable by people and overwritten in place. A block ends with its checksum
//! and is padded with spaces.
//!
//! | bytes | lock file of a mutex, `gate` of a pool | slot of a pool, file of a waiter |
//! | --- | --- | --- |
//! | 0–511 | counter: the last even ceiling | owner: the holder or waiter |
//! | 512–1023 | counter: the last odd ceiling | owner |
//! | 1024–2047 | owner: the holder (free in a `gate`), and the last token | |
//! | 2048– | the length of the name, and the name | |
//!
//! **The counter** is a ceiling of tokens: see `tokens`. Ceiling *n* goes into block *n* mod 2 and is on disk before a token
//! up to it is granted. The other block then still has the previous ceiling, durably: if a crash tears the write of *n*,
//! counting continues from there, and no token above it was granted. Nothing else is written into these blocks; a release does
//! not touch them.
//!
//! **The owner** is for people, with one exception: `least`, the minimum hold time in milliseconds. Until `since` + `least`
//! the lock counts as held although the kernel lock is free. Otherwise only the kernel lock decides.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use distlock_core::store::{Holder, Waiter};
use distlock_core::{FencingToken, LockId};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::names::{SUM_DIGITS, short_digest};
use crate::tokens::LastToken;

/// The size of a counter block. Disks write at least this much atomically.
pub(crate) const COUNTER: usize = 512;
/// The size of an owner block.
pub(crate) const OWNER: usize = 1024;
/// An owner block.
pub(crate) type OwnerBlock = [u8; OWNER];
/// The position of the owner in a lock file.
pub(crate) const OWNER_AT: u64 = 2 * COUNTER as u64;
/// The position of the name in a lock file.
pub(crate) const NAME_AT: u64 = OWNER_AT + OWNER as u64;

/// The version of this format, in the first line of every block.
const HEAD: &str = "distlock 1 ";
const SUM: &[u8] = b"\nsum ";
/// The body of an owner block of a free lock.
const FREE: &str = "free";

/// The content of a block.
#[derive(Debug, PartialEq, Eq)]
enum Block<'a> {
    /// Never written.
    Blank,
    /// The body, with a matching checksum.
    Whole(&'a str),
    /// The version is ours and the checksum does not match: a write was torn.
    Torn,
    /// Written by another program.
    Foreign,
}

/// A block that is being written. What does not fit is cut off, and the block then reads as torn.
struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl<const N: usize> Text<N> {
    fn push(&mut self, more: &[u8]) {
        let more = &more[..more.len().min(N - 1 - self.length)];
        self.bytes[self.length..][..more.len()].copy_from_slice(more);
        self.length += more.len();
    }
}

fn seal<const N: usize>(body: impl FnOnce(&mut Text<N>) -> fmt::Result) -> [u8; N] {
    let mut text = Text { bytes: [b' '; N], length: 0 };
    text.push(HEAD.as_bytes());
    // Writing to a block cannot fail.
    let _ = body(&mut text);
    let sum = short_digest(&text.bytes[..text.length]);
    text.push(SUM);
    text.push(&sum);
    text.push(b"\n");
    text.bytes[N - 1] = b'\n';
    text.bytes
}

fn unseal(block: &[u8]) -> Block<'_> {
    let text = without_padding(block);
    if text.first() != HEAD.as_bytes().first() && block.iter().all(|byte| matches!(byte, 0 | b' ' | b'\n')) {
        return Block::Blank;
    }
    if let Some((text, sum)) = text.split_last_chunk::<SUM_DIGITS>()
        && let Some(text) = text.strip_suffix(SUM)
        && let Some(body) = text.strip_prefix(HEAD.as_bytes())
        && *sum == short_digest(text)
        && let Ok(body) = std::str::from_utf8(body)
    {
        return Block::Whole(body);
    }
    let begins = &block[..HEAD.len().min(block.len())];
    if HEAD.as_bytes().starts_with(begins) { Block::Torn } else { Block::Foreign }
}

/// A block without the spaces and line breaks at its end: most of a block is that.
fn without_padding(block: &[u8]) -> &[u8] {
    const SPACES: &[u8] = &[b' '; 32];
    let mut text = block.strip_suffix(b"\n").unwrap_or(block);
    while let Some(rest) = text.strip_suffix(SPACES) {
        text = rest;
    }
    let end = text.iter().rposition(|byte| !matches!(byte, b' ' | b'\n')).map_or(0, |last| last + 1);
    &text[..end]
}

/// The state of a token counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// No token was ever granted from it.
    New,
    /// The highest ceiling that was written. No token above it was granted.
    Last(u64),
    /// Neither block was written by distlock.
    Broken,
}

/// The counter block of a ceiling.
pub(crate) fn counter_block(token: u64) -> Vec<u8> {
    seal::<COUNTER>(|text| write!(text, "token {token}")).to_vec()
}

/// The position of that block.
pub(crate) fn counter_at(token: u64) -> u64 {
    (token % 2) * COUNTER as u64
}

/// Reads the two counter blocks at the start of a file, which may be shorter than that.
pub(crate) fn read_counter(start: &[u8]) -> Counter {
    let block = |at: usize| unseal(start.get(at..(at + COUNTER).min(start.len())).unwrap_or_default());
    let token = |block: &Block<'_>| match block {
        Block::Whole(body) => body.strip_prefix("token ").and_then(|number| number.parse::<u64>().ok()),
        Block::Blank | Block::Torn | Block::Foreign => None,
    };
    let (even, odd) = (block(0), block(COUNTER));
    match (token(&even), token(&odd)) {
        (Some(even), Some(odd)) => Counter::Last(even.max(odd)),
        (Some(token), None) | (None, Some(token)) => Counter::Last(token),
        (None, None) => match (even, odd) {
            // One block blank and the other torn: the very first grant was interrupted.
            (Block::Blank, Block::Blank | Block::Torn) | (Block::Torn, Block::Blank) => Counter::New,
            _ => Counter::Broken,
        },
    }
}

/// The holder or waiter that a file belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) lock_id: LockId,
    /// `host:pid`, whatever label the user chose for the lock id.
    pub(crate) process: Arc<str>,
    /// `None` for a waiter.
    pub(crate) token: Option<u64>,
    pub(crate) since: Duration,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
    /// How long it holds at least, also if its process ends before.
    pub(crate) least: Duration,
}

/// Characters that would end a line or the block, and the escape character.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// The longest escaped field; a longer one is truncated.
const LONGEST: usize = 350;

fn field(text: &str) -> Cow<'_, str> {
    let mut escaped = Cow::from(utf8_percent_encode(text, ESCAPED));
    if escaped.len() > LONGEST {
        // Only ASCII is left, so any byte is a boundary; but no escape may be split.
        let cut = (LONGEST - 2..LONGEST).find(|at| escaped.as_bytes()[*at] == b'%').unwrap_or(LONGEST);
        escaped.to_mut().truncate(cut);
    }
    escaped
}

impl Owner {
    /// This owner as a block.
    pub(crate) fn block(&self) -> OwnerBlock {
        self.block_with(None)
    }

    /// This owner as a block, with the last token of its file.
    pub(crate) fn block_with(&self, last: Option<&LastToken>) -> OwnerBlock {
        let Owner { weight, capacity, .. } = self;
        let since_ms = self.since.as_millis();
        let (lock_id, process) = (field(self.lock_id.as_str()), field(&self.process));
        seal(|text| {
            match self.token {
                Some(token) => write!(text, "holds {token}")?,
                None => text.write_str("waits")?,
            }
            write!(
                text,
                "\nlock-id {lock_id}\nprocess {process}\nsince {since_ms}\nweight {weight} of {capacity}"
            )?;
            // Earlier versions do not look beyond the weight.
            match self.least.as_millis() {
                0 => {}
                least => write!(text, "\nleast {least}")?,
            }
            last.map_or(Ok(()), |last| write!(text, "\n{last}"))
        })
    }

    /// The owner block of a free lock, with the last token of its file.
    pub(crate) fn free_block(last: Option<&LastToken>) -> OwnerBlock {
        seal(|text| match last {
            // Earlier versions take the block for a damaged one: their `inspect` then tries the lock itself.
            Some(last) => write!(text, "{FREE}\n{last}"),
            None => text.write_str(FREE),
        })
    }

    /// Whether an owner block is that of a free lock, or was never written.
    pub(crate) fn is_free_block(block: &[u8]) -> bool {
        match unseal(block) {
            Block::Blank => true,
            Block::Whole(body) => body.lines().next() == Some(FREE),
            Block::Torn | Block::Foreign => false,
        }
    }

    /// The owner in a block; `None` if the lock is free or the block cannot be read.
    pub(crate) fn read(block: &[u8]) -> Option<Owner> {
        Owner::read_with_last(block).0
    }

    /// The owner in a block, and the last token of its file.
    pub(crate) fn read_with_last(block: &[u8]) -> (Option<Owner>, Option<LastToken>) {
        let Block::Whole(body) = unseal(block) else { return (None, None) };
        (Owner::parse(body), body.lines().next_back().and_then(LastToken::parse))
    }

    fn parse(body: &str) -> Option<Owner> {
        let mut lines = body.lines();
        let state = lines.next()?;
        let mut value = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ');
        let text = |value: &str| percent_decode_str(value).decode_utf8_lossy().into_owned();
        let token = match state.split_once(' ') {
            Some(("holds", token)) => Some(token.parse().ok()?),
            None if state == "waits" => None,
            _ => return None,
        };
        let lock_id = LockId::from_stored(text(value("lock-id")?));
        let process = text(value("process")?).into();
        let since = Duration::from_millis(value("since")?.parse().ok()?);
        let weight = value("weight")?;
        let (weight, capacity) = weight.split_once(" of ")?;
        let least = value("least").and_then(|least| least.parse().ok()).unwrap_or_default();
        Some(Owner {
            lock_id,
            process,
            token,
            since,
            weight: weight.parse().ok()?,
            capacity: capacity.parse().ok()?,
            least: Duration::from_millis(least),
        })
    }

    /// How long the lock stays held although its owner may be dead: the rest of its minimum hold time, by the clock of this
    /// machine. None after that clock was set back by more than that time.
    pub(crate) fn kept_for(&self) -> Option<Duration> {
        self.token?;
        let left = (self.since + self.least).checked_sub(time_of_day())?;
        (!left.is_zero() && left <= self.least * 2).then_some(left)
    }

    pub(crate) fn holder(&self) -> Holder {
        Holder::new(self.lock_id.clone(), self.weight)
            .with_token(self.token.map(FencingToken::new))
            .with_acquired_at(SystemTime::UNIX_EPOCH.checked_add(self.since))
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter::new(self.lock_id.clone(), self.weight)
    }
}

/// The name as written at the end of a lock file. Its length comes first: a name may contain line breaks.
pub(crate) fn name_text(name: &str) -> Vec<u8> {
    format!("name {} {name}\n", name.len()).into_bytes()
}

/// The name that [`name_text`] wrote, if it is complete.
pub(crate) fn read_name(bytes: &[u8]) -> Option<String> {
    let rest = bytes.strip_prefix(b"name ")?;
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    let name = rest.get(space + 1..)?.get(..length)?;
    String::from_utf8(name.to_vec()).ok()
}

/// The time since 1970, by the clock of this machine.
pub(crate) fn time_of_day() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(tokens: &[u64]) -> Vec<u8> {
        let mut start = vec![b' '; 2 * COUNTER];
        for token in tokens {
            let at = usize::try_from(counter_at(*token)).unwrap();
            start[at..at + COUNTER].copy_from_slice(&counter_block(*token));
        }
        start
    }

    #[test]
    fn a_torn_write_never_sets_the_counter_below_a_granted_token() {
        let before = written(&[41, 42]);
        let after = written(&[41, 42, 43]);
        assert_eq!(read_counter(&before), Counter::Last(42));
        for torn_at in COUNTER..=2 * COUNTER {
            let mut torn = after[..torn_at].to_vec();
            torn.extend_from_slice(&before[torn_at..]);
            let Counter::Last(token) = read_counter(&torn) else { panic!("no token at {torn_at}") };
            assert!(token == 42 || token == 43, "{token} at {torn_at}");
            // Sectors may also reach the disk in the other order, or as garbage.
            let mut torn = before[..torn_at].to_vec();
            torn.extend_from_slice(&after[torn_at..]);
            torn[COUNTER + 3] ^= 0x20;
            assert_eq!(read_counter(&torn), Counter::Last(42));
        }
    }

    #[test]
    fn an_interrupted_first_grant_counts_as_new_and_a_foreign_file_does_not() {
        assert_eq!(read_counter(b""), Counter::New);
        assert_eq!(read_counter(&written(&[])), Counter::New);
        assert_eq!(read_counter(&vec![0; 4096]), Counter::New);
        assert_eq!(read_counter(&written(&[7])), Counter::Last(7));
        assert_eq!(read_counter(&written(&[8])[..100]), Counter::Last(8));
        assert_eq!(read_counter(&written(&[8])[..20]), Counter::New);
        for foreign in [&b"x"[..], b"#!/bin/sh\n", &[b'x'; 2 * COUNTER]] {
            assert_eq!(read_counter(foreign), Counter::Broken);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_counter_is_detected() {
        let block = counter_block(1_763_240_000_001);
        let text = block.iter().rposition(|byte| *byte != b' ' && *byte != b'\n').unwrap();
        for at in 0..=text {
            for bit in 0..8 {
                let mut flipped = block.clone();
                flipped[at] ^= 1 << bit;
                let mut start = flipped;
                start.extend_from_slice(&counter_block(1));
                assert_eq!(read_counter(&start), Counter::Last(1), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn an_owner_with_any_label_is_read_back() {
        for label in ["web-3:812#00ff-1", "a b%\n\u{7}\u{e9}", &"ü%".repeat(2000)] {
            let owner = Owner {
                lock_id: LockId::from_stored(label),
                process: "web-3:812".into(),
                token: Some(u64::MAX),
                since: Duration::from_millis(1),
                weight: 1 << 30,
                capacity: 1 << 30,
                least: Duration::from_millis(u64::from(u32::MAX)),
            };
            let block = owner.block();
            assert_eq!(block.len(), OWNER);
            let read = Owner::read(&block).unwrap();
            assert!(label.starts_with(read.lock_id.as_str().trim_end_matches('\u{fffd}')), "{read:?}");
            assert_eq!(Owner { lock_id: owner.lock_id.clone(), ..read }, owner);
            let last = LastToken::parse(&format!("last {0} below {0} boot {1:032x}", u64::MAX, u128::MAX));
            let with_last = owner.block_with(last.as_ref());
            assert_eq!((with_last.len(), Owner::read_with_last(&with_last).1), (OWNER, last));
            assert_eq!(Owner::read(&with_last), Owner::read(&block));
            let waits = Owner { token: None, ..owner };
            assert_eq!(Owner::read(&waits.block()).unwrap().token, None);
        }
        assert_eq!(Owner::read(&Owner::free_block(None)), None);
        assert_eq!(Owner::read(&[b' '; OWNER]), None);
    }

    #[test]
    fn a_minimum_hold_time_ends_also_if_the_clock_was_set_back() {
        let hour = Duration::from_secs(3600);
        let kept = |since: Duration, least: Duration, token| {
            let (lock_id, process) = (LockId::from_stored("a"), "web-3:812".into());
            let owner = Owner { lock_id, process, token, since, weight: 1, capacity: 1, least };
            Owner::read(&owner.block()).unwrap().kept_for()
        };
        let now = time_of_day();
        assert!(kept(now, hour, Some(1)).is_some_and(|left| left <= hour));
        assert!(kept(now + hour / 2, hour, Some(1)).is_some(), "a small step back");
        assert_eq!(kept(now - hour, hour, Some(1)), None, "it has passed");
        assert_eq!(kept(now + 24 * hour, hour, Some(1)), None, "the clock was set back by a day");
        assert_eq!(kept(now, Duration::ZERO, Some(1)), None);
        assert_eq!(kept(now, hour, None), None, "a waiter keeps nothing");
    }

    #[test]
    fn a_name_with_line_breaks_is_read_back_whole() {
        for name in ["a", "a\nb\n", "\0", &"日".repeat(1000)] {
            let text = name_text(name);
            assert_eq!(read_name(&text).as_deref(), Some(name));
            assert_eq!(read_name(&text[..text.len() - 2]), None);
        }
    }
}
