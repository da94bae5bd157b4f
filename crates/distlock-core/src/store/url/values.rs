//! Text of a URL: escapes, times, and what may be shown.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;

/// What is wrong with a part, said after its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Escape,
    Nul,
    NotUtf8,
    Empty,
    NotAHost,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Escape => "has a % that begins no escape",
            Fault::Nul => "has a NUL character",
            Fault::NotUtf8 => "is not UTF-8",
            Fault::Empty => "has no name",
            Fault::NotAHost => "is no name of a host: letters, digits, dots, - and _",
        })
    }
}

/// Decodes once.
pub(super) fn decode(text: &str) -> Result<Vec<u8>, Fault> {
    let escapes = text.split('%').skip(1);
    let well_formed = |after: &str| after.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !escapes.clone().all(well_formed) {
        return Err(Fault::Escape);
    }
    let decoded: Vec<u8> = percent_decode_str(text).collect();
    if decoded.contains(&0) { Err(Fault::Nul) } else { Ok(decoded) }
}

pub(super) fn decode_text(text: &str) -> Result<String, Fault> {
    String::from_utf8(decode(text)?).map_err(|_| Fault::NotUtf8)
}

/// Letters, digits, `.`, `-` and `_`.
pub(super) fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || ".-_".contains(c))
}

/// A name as it may be shown: itself if it is made of letters, digits, `.`, `-` and `_`, and `***` otherwise. What has
/// other characters may be a piece of a password that was not escaped.
#[must_use]
pub fn plain(name: &str) -> &str {
    if is_plain(name) { name } else { "***" }
}

#[cfg(unix)]
pub(super) fn to_path(bytes: Vec<u8>) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

#[cfg(not(unix))]
pub(super) fn to_path(bytes: Vec<u8>) -> Option<PathBuf> {
    String::from_utf8(bytes).ok().map(PathBuf::from)
}

/// A text that is never shown: `Debug` prints `***`, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text, for the driver that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Reads a duration: a whole number and its unit, `500ms`, `10s`, `2m` or `1h`. `None` for anything else.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_millis)
}

/// `first`, `second`, `11th`.
pub(super) fn ordinal(place: usize) -> String {
    match place.saturating_add(1) {
        1 => "first".to_owned(),
        2 => "second".to_owned(),
        3 => "third".to_owned(),
        number => {
            let ending = match (number % 10, number % 100) {
                (_, 11..=13) => "th",
                (1, _) => "st",
                (2, _) => "nd",
                (3, _) => "rd",
                _ => "th",
            };
            format!("{number}{ending}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escape_is_decoded_once_and_a_broken_one_is_refused() {
        assert_eq!(decode_text("a%2540+b"), Ok("a%40+b".to_owned()));
        for (text, fault) in [
            ("%", Fault::Escape),
            ("%4", Fault::Escape),
            ("%4g", Fault::Escape),
            ("a%%41", Fault::Escape),
            ("%00", Fault::Nul),
        ] {
            assert_eq!(decode(text), Err(fault), "{text}");
        }
        assert_eq!((decode("%ff"), decode_text("%ff")), (Ok(vec![0xff]), Err(Fault::NotUtf8)));
    }

    #[test]
    fn a_time_has_a_number_and_a_unit() {
        for (text, ms) in [("500ms", 500), ("10s", 10_000), ("2m", 120_000), ("1h", 3_600_000), ("0s", 0)] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "10", "s", "1 s", "-1s", "+1s", "1.5s", "10d", "18446744073709551615h", "1m30s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new("hunter2");
        assert_eq!((format!("{secret:?}").as_str(), secret.expose()), ("***", "hunter2"));
    }

    #[test]
    fn places_are_counted_from_one() {
        let all: Vec<String> = [0, 1, 2, 3, 10, 11, 12, 20, 21, 110, 111].map(ordinal).into();
        assert_eq!(
            all,
            ["first", "second", "third", "4th", "11th", "12th", "13th", "21st", "22nd", "111th", "112th"]
        );
    }
}
