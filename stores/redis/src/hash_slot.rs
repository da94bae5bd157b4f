//! The hash slots of a Cluster.

use std::sync::LazyLock;

/// The number of slots of a Cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// CRC-16/XMODEM, as in the Cluster specification.
const TABLE: [u16; 256] = {
    let mut table = [0_u16; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Continues a checksum.
pub(crate) fn crc16(before: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(before, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The part of a key between its first `{` and the next `}`; only that is hashed, unless it is empty.
pub(crate) fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = &key[open + 1..];
    let close = rest.iter().position(|byte| *byte == b'}')?;
    (close > 0).then(|| &rest[..close])
}

/// The slot of a key.
#[cfg(test)]
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16(0, hash_tag(key).unwrap_or(key)) % SLOTS
}

const ALPHABET: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

/// For each slot three characters that hash to it. Built once, in about a millisecond.
static TAGS: LazyLock<Vec<[u8; 3]>> = LazyLock::new(|| {
    let mut tags = vec![[0; 3]; usize::from(SLOTS)];
    for first in ALPHABET {
        for second in ALPHABET {
            for third in ALPHABET {
                let tag = [*first, *second, *third];
                let entry = &mut tags[usize::from(crc16(0, &tag) % SLOTS)];
                if entry[0] == 0 {
                    *entry = tag;
                }
            }
        }
    }
    tags
});

/// A hash tag that puts a key into this slot.
///
/// The lock key cannot be the tag itself: keys such as `a}b` or `{}a` are hashed whole, and no tag can contain a `}`.
pub(crate) fn tag_for(slot: u16) -> [u8; 3] {
    TAGS[usize::from(slot % SLOTS)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_matches_the_specification() {
        assert_eq!(crc16(0, b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12_182);
    }

    #[test]
    fn only_the_first_tag_counts_and_only_if_it_is_not_empty() {
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), crc16(0, b"{bar") % SLOTS);
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(0, b"foo{}{bar}") % SLOTS);
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..SLOTS {
            let tag = tag_for(slot);
            assert_ne!(tag[0], 0, "slot {slot} has none");
            let key = [b"{".as_slice(), &tag, b"}anything"].concat();
            assert_eq!(slot_of(&key), slot);
        }
    }
}
