//! What stands in the files, and how a torn write is noticed.
//!
//! Text in blocks of a fixed size, so that people can read it and every part is overwritten in place. A block ends
//! with a checksum of itself and is filled up with spaces.
//!
//! | bytes | lock file of a mutex, gate of a pool | slot of a pool, announcement of a waiter |
//! | --- | --- | --- |
//! | 0–511 | counter: the last even token | note: who |
//! | 512–1023 | counter: the last odd token | note |
//! | 1024–2047 | note: who holds (blank in a gate) | |
//! | 2048– | the length of the name, and the name | |
//!
//! **The counter.** Token *n* goes into block *n* mod 2 and is on the disk before the grant is returned. So the other
//! block always holds *n* − 1, durably: however a write of *n* is torn by a crash, the count goes on from *n* − 1,
//! which was granted, and *n* was not. Nothing else is ever written into these blocks; in particular a release does
//! not touch them.
//!
//! **The note** is for people and is not relied on: the kernel lock says whether somebody holds.

use std::time::{Duration, SystemTime};

use distlock_core::store::{Holder, Waiter};
use distlock_core::{FencingToken, LockId};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::names::short_hash;

/// The size of a counter block. Disks write at least this much as one.
pub(crate) const COUNTER: usize = 512;
/// The size of a note.
pub(crate) const NOTE: usize = 1024;
/// Where the note stands in a lock file.
pub(crate) const NOTE_AT: u64 = 2 * COUNTER as u64;
/// Where the name stands in a lock file.
pub(crate) const NAME_AT: u64 = NOTE_AT + NOTE as u64;

/// The version of this format, in the first line of every block.
const HEAD: &str = "distlock 1 ";
const SUM: &str = "\nsum ";
/// What a note says of a free lock.
const FREE: &str = "free";

/// What a block holds.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    /// Nothing was ever written into it.
    Blank,
    /// What was sealed in it.
    Whole(String),
    /// It begins like one of ours, and does not end like one: a write was torn.
    Torn,
    /// Somebody else wrote it.
    Foreign,
}

fn seal(body: &str, size: usize) -> Vec<u8> {
    let text = format!("{HEAD}{body}");
    let mut block = format!("{text}{SUM}{}\n", short_hash(&text)).into_bytes();
    block.resize(size - 1, b' ');
    block.push(b'\n');
    block
}

fn unseal(block: &[u8]) -> Block {
    if block.iter().all(|byte| matches!(byte, 0 | b' ' | b'\n')) {
        return Block::Blank;
    }
    let sealed = std::str::from_utf8(block).ok().and_then(|text| text.rsplit_once(SUM));
    if let Some((text, sum)) = sealed
        && let Some(body) = text.strip_prefix(HEAD)
        && sum.trim_end() == short_hash(text)
    {
        return Block::Whole(body.to_owned());
    }
    let begins = &block[..HEAD.len().min(block.len())];
    if HEAD.as_bytes().starts_with(begins) { Block::Torn } else { Block::Foreign }
}

/// What a counter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// No token was ever granted from it.
    New,
    /// The last token that was counted. It may not have been granted.
    Last(u64),
    /// Neither block is ours.
    Broken,
}

/// The block for a token.
pub(crate) fn counter_block(token: u64) -> Vec<u8> {
    seal(&format!("token {token}"), COUNTER)
}

/// Where that block belongs.
pub(crate) fn counter_at(token: u64) -> u64 {
    (token % 2) * COUNTER as u64
}

/// What stands in the two counter blocks at the start of a file, which may be shorter than that.
pub(crate) fn read_count(start: &[u8]) -> Count {
    let block = |at: usize| unseal(start.get(at..(at + COUNTER).min(start.len())).unwrap_or_default());
    let token = |block: &Block| match block {
        Block::Whole(body) => body.strip_prefix("token ").and_then(|number| number.parse::<u64>().ok()),
        Block::Blank | Block::Torn | Block::Foreign => None,
    };
    let (even, odd) = (block(0), block(COUNTER));
    match (token(&even), token(&odd)) {
        (Some(even), Some(odd)) => Count::Last(even.max(odd)),
        (Some(token), None) | (None, Some(token)) => Count::Last(token),
        (None, None) => match (even, odd) {
            // One block blank and the other torn: the first grant of all was interrupted.
            (Block::Blank, Block::Blank | Block::Torn) | (Block::Torn, Block::Blank) => Count::New,
            _ => Count::Broken,
        },
    }
}

/// Who holds or waits, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) lock_id: LockId,
    /// `host:pid`, whatever label the user chose for the lock id.
    pub(crate) process: String,
    /// `None`: waits.
    pub(crate) token: Option<u64>,
    pub(crate) since: Duration,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
}

/// What would break a line or the block, and the escape itself.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// The longest text of a field; a longer one is cut.
const LONGEST: usize = 350;

fn field(text: &str) -> String {
    let mut escaped = utf8_percent_encode(text, ESCAPED).to_string();
    if escaped.len() > LONGEST {
        // Only ASCII is left, so that any place is good to cut; but no escape may be cut in two.
        let cut = (LONGEST - 2..LONGEST).find(|at| escaped.as_bytes()[*at] == b'%').unwrap_or(LONGEST);
        escaped.truncate(cut);
    }
    escaped
}

impl Note {
    /// The block that says this.
    pub(crate) fn block(&self) -> Vec<u8> {
        let Note { weight, capacity, .. } = self;
        let since_ms = self.since.as_millis();
        let (lock_id, process) = (field(self.lock_id.as_str()), field(&self.process));
        let state = self.token.map_or_else(|| "waits".to_owned(), |token| format!("holds {token}"));
        let body = format!(
            "{state}\nlock-id {lock_id}\nprocess {process}\nsince {since_ms}\nweight {weight} of {capacity}"
        );
        seal(&body, NOTE)
    }

    /// The block that says that nobody holds.
    pub(crate) fn blank() -> Vec<u8> {
        seal(FREE, NOTE)
    }

    /// Whether a block says that the lock is free, or was never written.
    pub(crate) fn is_blank(block: &[u8]) -> bool {
        match unseal(block) {
            Block::Blank => true,
            Block::Whole(body) => body == FREE,
            Block::Torn | Block::Foreign => false,
        }
    }

    /// What a block says: `None` for nobody, and for what cannot be read.
    pub(crate) fn read(block: &[u8]) -> Option<Note> {
        let Block::Whole(body) = unseal(block) else { return None };
        let mut lines = body.lines();
        let state = lines.next()?;
        let mut value = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned);
        let text = |value: String| percent_decode_str(&value).decode_utf8_lossy().into_owned();
        let token = match state.split_once(' ') {
            Some(("holds", token)) => Some(token.parse().ok()?),
            None if state == "waits" => None,
            _ => return None,
        };
        let lock_id = LockId::from_stored(text(value("lock-id")?));
        let process = text(value("process")?);
        let since = Duration::from_millis(value("since")?.parse().ok()?);
        let weight = value("weight")?;
        let (weight, capacity) = weight.split_once(" of ")?;
        Some(Note {
            lock_id,
            process,
            token,
            since,
            weight: weight.parse().ok()?,
            capacity: capacity.parse().ok()?,
        })
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

/// The name as it stands at the end of a lock file. Its length comes first: a name may hold line breaks.
pub(crate) fn name_text(name: &str) -> Vec<u8> {
    format!("name {} {name}\n", name.len()).into_bytes()
}

/// The name that [`name_text`] wrote, if it is whole.
pub(crate) fn read_name(bytes: &[u8]) -> Option<String> {
    let rest = bytes.strip_prefix(b"name ")?;
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    let name = rest.get(space + 1..)?.get(..length)?;
    String::from_utf8(name.to_vec()).ok()
}

/// The time of day, by the clock of this machine.
pub(crate) fn since_1970() -> Duration {
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
    fn a_torn_write_never_takes_the_count_back_below_a_granted_token() {
        let before = written(&[41, 42]);
        let after = written(&[41, 42, 43]);
        assert_eq!(read_count(&before), Count::Last(42));
        for torn_at in COUNTER..=2 * COUNTER {
            let mut torn = after[..torn_at].to_vec();
            torn.extend_from_slice(&before[torn_at..]);
            let Count::Last(token) = read_count(&torn) else { panic!("nothing left at {torn_at}") };
            assert!(token == 42 || token == 43, "{token} at {torn_at}");
            // Sectors may also reach the disk in the other order, or as garbage.
            let mut torn = before[..torn_at].to_vec();
            torn.extend_from_slice(&after[torn_at..]);
            torn[COUNTER + 3] ^= 0x20;
            assert_eq!(read_count(&torn), Count::Last(42));
        }
    }

    #[test]
    fn an_interrupted_first_grant_counts_as_new_and_a_foreign_file_does_not() {
        assert_eq!(read_count(b""), Count::New);
        assert_eq!(read_count(&written(&[])), Count::New);
        assert_eq!(read_count(&vec![0; 4096]), Count::New);
        assert_eq!(read_count(&written(&[7])), Count::Last(7));
        assert_eq!(read_count(&written(&[8])[..100]), Count::Last(8));
        assert_eq!(read_count(&written(&[8])[..20]), Count::New);
        for foreign in [&b"x"[..], b"#!/bin/sh\n", &[b'x'; 2 * COUNTER]] {
            assert_eq!(read_count(foreign), Count::Broken);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_counter_is_noticed() {
        let block = counter_block(1_763_240_000_001);
        let text = block.iter().rposition(|byte| *byte != b' ' && *byte != b'\n').unwrap();
        for at in 0..=text {
            for bit in 0..8 {
                let mut flipped = block.clone();
                flipped[at] ^= 1 << bit;
                let mut start = flipped;
                start.extend_from_slice(&counter_block(1));
                assert_eq!(read_count(&start), Count::Last(1), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_note_says_who_whatever_the_label() {
        for label in ["web-3:812#00ff-1", "a b%\n\u{7}\u{e9}", &"ü%".repeat(2000)] {
            let note = Note {
                lock_id: LockId::from_stored(label),
                process: "web-3:812".into(),
                token: Some(u64::MAX),
                since: Duration::from_millis(1),
                weight: 1 << 30,
                capacity: 1 << 30,
            };
            let block = note.block();
            assert_eq!(block.len(), NOTE);
            let read = Note::read(&block).unwrap();
            assert!(label.starts_with(read.lock_id.as_str().trim_end_matches('\u{fffd}')), "{read:?}");
            assert_eq!(Note { lock_id: note.lock_id.clone(), ..read }, note);
            let waits = Note { token: None, ..note };
            assert_eq!(Note::read(&waits.block()).unwrap().token, None);
        }
        assert_eq!(Note::read(&Note::blank()), None);
        assert_eq!(Note::read(&[b' '; NOTE]), None);
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
