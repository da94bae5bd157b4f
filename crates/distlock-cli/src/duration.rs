//! Durations on the command line: `500ms`, `10s`, `2m`, `1h`, `1m30s`, `0.5s`.

use std::time::Duration;

const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Parses a duration. Every number needs a unit: `10` could mean seconds or milliseconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("it is empty; write a number and a unit, such as 500ms, 10s, 2m or 1h".to_owned());
    }
    let mut seconds = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let Ok(number) = number.parse::<f64>() else {
            return Err("it is not a number and a unit, such as 500ms, 10s, 2m or 1h".to_owned());
        };
        if unit.is_empty() {
            return Err(format!("the unit is missing; write {text}s or {text}ms"));
        }
        let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("the unit {unit:?} is not known; write ms, s, m or h"));
        };
        seconds += number * factor;
        rest = after;
    }
    // Rounded to microseconds: 0.1 + 0.2 must not become 0.30000000000000004.
    Duration::try_from_secs_f64((seconds * 1e6).round() / 1e6).map_err(|_| "it is too long".to_owned())
}

/// A short form for people: `420ms`, `3.2s`, `4m 10s`, `2h 05m`, `3d 04h`.
pub(crate) fn show(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..=9 => format!("{}.{}s", seconds, duration.subsec_millis() / 100),
        10..=59 => format!("{seconds}s"),
        60..=3599 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_spellings_are_parsed() {
        for (text, millis) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0s", 0),
            ("0.5s", 500),
            ("1m30s", 90_000),
            (" 3s ", 3_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("0.3s"), Ok(Duration::from_millis(300)));
    }

    #[test]
    fn ambiguous_and_absurd_durations_are_refused() {
        for bad in
            ["", "10", "s", "-1s", "1.2.3s", "10 s", "10x", "1e9h", "99999999999999999999h", "ms10", "NaNs"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse("10").unwrap_err(), "the unit is missing; write 10s or 10ms");
    }

    #[test]
    fn a_shown_duration_is_short() {
        for (millis, text) in [
            (7, "7ms"),
            (3_250, "3.2s"),
            (59_999, "59s"),
            (250_000, "4m 10s"),
            (7_500_000, "2h 05m"),
            (273_600_000, "3d 04h"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), text);
        }
    }
}
