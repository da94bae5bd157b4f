//! From the name of a resource to a file name, and back.
//!
//! A name may be any text; a file name may not. Lower-case letters, digits, `-`, `_` and inner dots are kept, and every other
//! byte becomes `%` and two hexadecimal digits. So
//!
//! * there is no `/`, no NUL and no leading dot: no name leaves the folder or is hidden in it;
//! * there is no upper case: names that differ only in case stay distinct on file systems that ignore case;
//! * there is only ASCII: names that differ only in how an accent is composed stay distinct on file systems that normalise
//!   Unicode.
//!
//! A name that is too long for a file name becomes `~` and its SHA-256; an escaped name never begins with `~`. The file
//! itself contains the whole name.

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

/// The longest escaped name that is not hashed. eCryptfs leaves 143 bytes for a file name, and we append up to five.
const LONGEST: usize = 130;

const HASHED: char = '~';

/// The file name for a name.
pub(crate) fn file_name(name: &str) -> String {
    // Room for a few escapes, and for what the caller appends.
    let mut escaped = String::with_capacity((name.len() + 16).min(LONGEST + 16));
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => escaped.push(char::from(byte)),
            b'.' if at > 0 => escaped.push('.'),
            _ => {
                escaped.push('%');
                escaped.extend(hex_digits(byte).map(char::from));
            }
        }
        if escaped.len() > LONGEST {
            return format!("{HASHED}{}", hex(Sha256::digest(name.as_bytes()).as_slice()));
        }
    }
    escaped
}

/// Whether a file name has only the hash of the name.
pub(crate) fn is_hashed(file_name: &str) -> bool {
    file_name.starts_with(HASHED)
}

/// The name of a file name: `None` if it is hashed, or not written by distlock.
pub(crate) fn original(escaped: &str) -> Option<String> {
    let name = percent_decode_str(escaped).decode_utf8().ok()?;
    (!name.is_empty() && file_name(&name) == escaped).then(|| name.into_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| hex_digits(*byte)).map(char::from).collect()
}

fn hex_digits(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

/// The first 64 bits of a text's SHA-256.
pub(crate) fn short_hash(text: &str) -> String {
    short_digest(text.as_bytes()).map(char::from).iter().collect()
}

/// How many digits [`short_digest`] has.
pub(crate) const SUM_DIGITS: usize = 16;

/// The same as digits.
pub(crate) fn short_digest(bytes: &[u8]) -> [u8; SUM_DIGITS] {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    let mut digits = [0; SUM_DIGITS];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&hex_digits(byte));
    }
    digits
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const STRANGE: [&str; 22] = [
        ".",
        "..",
        "/",
        "../../etc/passwd",
        "a/b",
        "a%2fb",
        "%",
        "~",
        "-",
        "con",
        "nul.lock",
        " ",
        "a ",
        "a",
        "A",
        "\0",
        "a\0b",
        "\u{7}\n",
        "\u{e9}",
        "e\u{301}",
        "\u{130}",
        "日本語",
    ];

    #[test]
    fn no_name_leaves_the_folder_or_is_hidden_in_it() {
        for name in STRANGE {
            let file = file_name(name);
            assert!(!file.is_empty() && !file.starts_with('.') && !file.contains(['/', '\0']), "{file:?}");
            assert!(file.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()), "{file:?}");
        }
    }

    #[test]
    fn no_two_names_share_a_file_on_a_case_folding_file_system() {
        let long: Vec<String> = (0..20).map(|n| format!("{}{n}", "x".repeat(4000))).collect();
        let names = STRANGE.iter().copied().chain(long.iter().map(String::as_str));
        let folded: Vec<String> = names.map(|name| file_name(name).to_lowercase()).collect();
        assert_eq!(folded.iter().collect::<HashSet<_>>().len(), folded.len());
    }

    #[test]
    fn a_name_is_read_back_from_its_file_name() {
        for name in STRANGE {
            assert_eq!(original(&file_name(name)).as_deref(), Some(name));
        }
        for foreign in ["", "A", "a%2Fb", "a%2", ".x", "%ff", "a%61"] {
            assert_eq!(original(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn a_long_name_is_hashed_and_fits_every_file_system() {
        for name in ["x".repeat(131), "x".repeat(4096), "\u{e9}".repeat(2048), "/".repeat(44)] {
            let file = file_name(&name);
            assert!(is_hashed(&file) && file.len() == 65, "{file}");
            assert_eq!(original(&file), None);
        }
        assert!(!is_hashed(&file_name(&"x".repeat(130))));
        assert!(!is_hashed(&file_name("~x")));
    }
}
