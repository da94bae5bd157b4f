//! Splits what a server sends into replies and pushes. The replies of the scripts (numbers, text and lists of them) are parsed
//! here; for everything else this finds the end, and the driver parses it.

use redis::Value;

/// Lists within lists deeper than this are no replies of ours.
const MAX_DEPTH: usize = 32;

/// The first frame of a buffer: its value and its length in bytes.
pub(super) type Frame = (Value, usize);

/// The first frame of a buffer; `Ok(None)` if it is not complete yet.
///
/// # Errors
/// [`Malformed`] if it is no RESP, or a value that the driver refuses, such as an error whose text is not UTF-8. The connection ends
/// then: it cannot be told which reply that was.
pub(super) fn first_frame(bytes: &[u8]) -> Result<Option<Frame>, Malformed> {
    let mut at = 0;
    match common_value(bytes, &mut at)? {
        Parsed::Value(value) => return Ok(Some((value, at))),
        Parsed::Incomplete => return Ok(None),
        Parsed::Other => {}
    }
    let mut end = 0;
    if !skip_value(bytes, &mut end, 0)? {
        return Ok(None);
    }
    let frame = bytes.get(..end).ok_or(Malformed)?;
    Ok(Some((redis::parse_redis_value(frame).map_err(|_| Malformed)?, end)))
}

/// What the server sent is no RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

enum Parsed {
    Value(Value),
    Incomplete,
    /// A type that is left to the driver.
    Other,
}

/// Parses a number, text or a list of them.
fn common_value(bytes: &[u8], at: &mut usize) -> Result<Parsed, Malformed> {
    let Some(&kind) = bytes.get(*at) else { return Ok(Parsed::Incomplete) };
    if !matches!(kind, b':' | b'$' | b'*') {
        return Ok(Parsed::Other);
    }
    let Some(number) = header(bytes, at)? else { return Ok(Parsed::Incomplete) };
    match (kind, usize::try_from(number)) {
        (b':', _) => Ok(Parsed::Value(Value::Int(number))),
        // The null values of RESP2.
        (_, Err(_)) => Ok(Parsed::Value(Value::Nil)),
        (b'$', Ok(length)) => {
            let end = at.checked_add(length).ok_or(Malformed)?;
            let Some(text) = bytes.get(*at..end) else { return Ok(Parsed::Incomplete) };
            if !line_break(bytes, end)? {
                return Ok(Parsed::Incomplete);
            }
            *at = end + 2;
            Ok(Parsed::Value(Value::BulkString(text.to_vec())))
        }
        (_, Ok(length)) => {
            // A value takes three bytes at least, so that no header makes us reserve more than arrived.
            let mut values = Vec::with_capacity(length.min(bytes.len() / 3));
            for _ in 0..length {
                // Lists within lists are left to the driver.
                if bytes.get(*at) == Some(&b'*') {
                    return Ok(Parsed::Other);
                }
                match common_value(bytes, at)? {
                    Parsed::Value(value) => values.push(value),
                    unparsed => return Ok(unparsed),
                }
            }
            Ok(Parsed::Value(Value::Array(values)))
        }
    }
}

/// Moves `at` behind the value that begins there. False if it is not complete.
fn skip_value(bytes: &[u8], at: &mut usize, depth: usize) -> Result<bool, Malformed> {
    let Some(&kind) = bytes.get(*at) else { return Ok(false) };
    if depth > MAX_DEPTH {
        return Err(Malformed);
    }
    let values = match kind {
        b'+' | b'-' | b',' | b'_' | b'#' | b'(' | b':' => {
            let Some(end) = line_end(bytes, *at) else { return Ok(false) };
            *at = end + 2;
            return Ok(true);
        }
        b'$' | b'!' | b'=' => {
            let Some(length) = header(bytes, at)? else { return Ok(false) };
            let Ok(length) = usize::try_from(length) else { return Ok(true) };
            let end = at.checked_add(length).ok_or(Malformed)?;
            if !line_break(bytes, end)? {
                return Ok(false);
            }
            *at = end + 2;
            return Ok(true);
        }
        b'*' | b'~' | b'>' => 1,
        b'%' => 2,
        // An attribute: its pairs, and the value that they are about.
        b'|' => 2,
        _ => return Err(Malformed),
    };
    let Some(length) = header(bytes, at)? else { return Ok(false) };
    let length = usize::try_from(length).unwrap_or(0);
    let count = length.checked_mul(values).and_then(|count| count.checked_add(usize::from(kind == b'|')));
    for _ in 0..count.ok_or(Malformed)? {
        if !skip_value(bytes, at, depth + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The number behind the letter at `at`, which moves behind its line; `None` if the line is not complete.
fn header(bytes: &[u8], at: &mut usize) -> Result<Option<i64>, Malformed> {
    let Some(end) = line_end(bytes, *at) else { return Ok(None) };
    let digits = bytes.get(*at + 1..end).ok_or(Malformed)?;
    let (negative, digits) = match digits.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, digits),
    };
    if digits.is_empty() {
        return Err(Malformed);
    }
    let mut number = 0_i64;
    for digit in digits {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10).ok_or(Malformed)?;
        number =
            number.checked_mul(10).and_then(|number| number.checked_sub(digit.into())).ok_or(Malformed)?;
    }
    *at = end + 2;
    if negative { Ok(Some(number)) } else { number.checked_neg().map(Some).ok_or(Malformed) }
}

/// Where the line that begins at `from` ends; `None` if it is not complete.
fn line_end(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    (rest.get(end + 1) == Some(&b'\n')).then_some(from + end)
}

/// Whether a line break stands at `at`; false if it has not arrived.
fn line_break(bytes: &[u8], at: usize) -> Result<bool, Malformed> {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(true),
        (Some(b'\r') | None, None) => Ok(false),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each type, as Redis 6 and later sends them.
    const FRAMES: &[&str] = &[
        ":1\r\n",
        ":-9223372036854775808\r\n",
        ":9223372036854775807\r\n",
        "$0\r\n\r\n",
        "$13\r\n1700000000000\r\n",
        "$4\r\na\r\nb\r\n",
        "$-1\r\n",
        "*0\r\n",
        "*-1\r\n",
        "*3\r\n:1700000000000\r\n:1\r\n$2\r\nab\r\n",
        "*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
        "+OK\r\n",
        "-ERR what it is\r\n",
        "!9\r\nERR x y z\r\n",
        "_\r\n",
        "#t\r\n",
        ",1.5\r\n",
        "(123456789012345678901234567890\r\n",
        "=7\r\ntxt:abc\r\n",
        "%1\r\n$1\r\na\r\n*1\r\n:1\r\n",
        "~2\r\n:1\r\n:2\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\nR id\r\n",
        "|1\r\n$1\r\na\r\n:1\r\n:2\r\n",
        "*2\r\n-ERR one\r\n:1\r\n",
    ];

    #[test]
    fn every_type_is_parsed_as_the_driver_parses_it() {
        for frame in FRAMES {
            let (value, length) = first_frame(frame.as_bytes()).unwrap().unwrap();
            assert_eq!(length, frame.len(), "{frame:?}");
            assert_eq!(Ok(value), redis::parse_redis_value(frame.as_bytes()), "{frame:?}");
        }
    }

    #[test]
    fn a_reply_in_pieces_is_one_reply_whatever_follows_it() {
        for frame in FRAMES {
            for end in 0..frame.len() {
                assert!(matches!(first_frame(&frame.as_bytes()[..end]), Ok(None)), "{frame:?} cut at {end}");
            }
            let followed = format!("{frame}:7\r\n");
            assert_eq!(first_frame(followed.as_bytes()).unwrap().unwrap().1, frame.len());
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error_and_no_panic() {
        for bad in
            ["HTTP/1.1 400\r\n", ":\r\n", ":1x\r\n", "$3\r\nabcd\r\n", "$99999999999999999999\r\n", "\r\n"]
        {
            assert_eq!(first_frame(bad.as_bytes()).map(|_| ()), Err(Malformed), "{bad:?}");
        }
        let deep = "*1\r\n".repeat(100);
        assert_eq!(first_frame(deep.as_bytes()).map(|_| ()), Err(Malformed));
        // A header that promises more than arrives reserves no memory for it.
        assert!(matches!(first_frame(b"*1000000000000\r\n:1\r\n"), Ok(None)));
        for _ in 0..20_000 {
            let length = fastrand::usize(..40);
            let alphabet = b":$*%>|-_#(,!=~0123456789\r\nab";
            let noise: Vec<u8> = (0..length).map(|_| alphabet[fastrand::usize(..alphabet.len())]).collect();
            let _ = first_frame(&noise);
        }
    }
}
