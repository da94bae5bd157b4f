//! Wake-ups and pushed grants as text: one table for each wire format, one parser for all.
//!
//! The formats differ by store and stay as they are: programs of an earlier version read them. What does not differ is
//! here: words that are separated by one space, numbers in decimal, durations in whole units, and a lock id, which may
//! contain spaces, at the end.

use std::fmt::Write;
use std::time::Duration;

use crate::resource::{FencingToken, LockId};
use crate::store::{PushedGrant, Wake};

/// The unit of the durations in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Whole milliseconds.
    Milliseconds,
    /// Whole microseconds.
    Microseconds,
}

impl Unit {
    const fn duration(self, number: u64) -> Duration {
        match self {
            Unit::Milliseconds => Duration::from_millis(number),
            Unit::Microseconds => Duration::from_micros(number),
        }
    }

    const fn number(self, duration: Duration) -> u128 {
        match self {
            Unit::Milliseconds => duration.as_millis(),
            Unit::Microseconds => duration.as_micros(),
        }
    }
}

/// A number of a pushed grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// [`PushedGrant::token`].
    Token,
    /// [`PushedGrant::attempt`]. A format without it gives attempt 0, which no waiter accepts: it asks again.
    Attempt,
    /// [`PushedGrant::after`].
    After,
    /// [`PushedGrant::window`].
    Window,
}

/// The numbers of a pushed grant, in the order in which a format has them.
#[derive(Clone, Copy, Debug)]
pub struct GrantFormat {
    /// The unit of `after` and `window`.
    pub unit: Unit,
    /// The numbers.
    pub fields: &'static [Field],
}

impl GrantFormat {
    /// Reads the numbers at the beginning of a text, and returns the grant and the text after the next space: empty if
    /// there is none. `None` if a number is missing or is none.
    #[must_use]
    pub fn parse<'t>(&self, mut text: &'t str) -> Option<(PushedGrant, &'t str)> {
        let (mut token, mut attempt, mut after, mut window) = (0, 0, Duration::ZERO, Duration::ZERO);
        for field in self.fields {
            let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
            let number: u64 = word.parse().ok()?;
            match field {
                Field::Token => token = number,
                Field::Attempt => attempt = number,
                Field::After => after = self.unit.duration(number),
                Field::Window => window = self.unit.duration(number),
            }
            text = rest;
        }
        Some((PushedGrant { token: FencingToken::new(token), attempt, after, window }, text))
    }

    /// Writes the numbers, separated by spaces.
    #[must_use]
    pub fn encode(&self, grant: &PushedGrant) -> String {
        let mut text = String::new();
        for field in self.fields {
            let number = match field {
                Field::Token => grant.token.get().into(),
                Field::Attempt => grant.attempt.into(),
                Field::After => self.unit.number(grant.after),
                Field::Window => self.unit.number(grant.window),
            };
            let space = if text.is_empty() { "" } else { " " };
            // Writing to a string does not fail.
            let _ = write!(text, "{space}{number}");
        }
        text
    }
}

/// A wire format of wake-ups: `VERB LOCK-ID` for two kinds, `VERB NUMBERS LOCK-ID` for grants.
///
/// ```
/// use distlock_core::store::Wake;
/// use distlock_core::store::support::wake_codec::{Field, GrantFormat, Unit, WakeFormat};
///
/// const GRANT: GrantFormat = GrantFormat {
///     unit: Unit::Milliseconds,
///     fields: &[Field::Token, Field::After, Field::Window, Field::Attempt],
/// };
/// const FORMAT: WakeFormat = WakeFormat { retry: Some("R"), broken: "B", grants: &[("P", GRANT)] };
/// assert!(matches!(FORMAT.parse("R web-3:812#0f-1"), Some(Wake::Retry { .. })));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WakeFormat {
    /// The verb of [`Wake::Retry`], if the store sends it.
    pub retry: Option<&'static str>,
    /// The verb of [`Wake::Broken`].
    pub broken: &'static str,
    /// The verbs of [`Wake::Granted`], newest format first: [`encode`](WakeFormat::encode) writes the first one.
    pub grants: &'static [(&'static str, GrantFormat)],
}

impl WakeFormat {
    /// Reads a wake-up. `None` for any other text: a wake-up is a hint, and other programs may write to the channel.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<Wake> {
        let (verb, rest) = text.split_once(' ')?;
        if self.retry == Some(verb) {
            return Some(Wake::Retry { lock_id: LockId::from_stored(rest) });
        }
        if self.broken == verb {
            return Some(Wake::Broken { lock_id: LockId::from_stored(rest) });
        }
        let (_, format) = self.grants.iter().find(|(name, _)| *name == verb)?;
        let (grant, lock_id) = format.parse(rest)?;
        (!lock_id.is_empty()).then(|| Wake::Granted { lock_id: LockId::from_stored(lock_id), grant })
    }

    /// Writes a wake-up; `None` for one that the format has no verb for.
    #[must_use]
    pub fn encode(&self, wake: &Wake) -> Option<String> {
        match wake {
            Wake::Retry { lock_id } => self.retry.map(|verb| format!("{verb} {}", lock_id.as_str())),
            Wake::Broken { lock_id } => Some(format!("{} {}", self.broken, lock_id.as_str())),
            Wake::Granted { lock_id, grant } => {
                let (verb, format) = self.grants.first()?;
                Some(format!("{verb} {} {}", format.encode(grant), lock_id.as_str()))
            }
            Wake::Missed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: GrantFormat =
        GrantFormat { unit: Unit::Milliseconds, fields: &[Field::Token, Field::After, Field::Window] };
    const REDIS: WakeFormat = WakeFormat {
        retry: Some("R"),
        broken: "B",
        grants: &[
            (
                "P",
                GrantFormat {
                    unit: Unit::Milliseconds,
                    fields: &[Field::Token, Field::After, Field::Window, Field::Attempt],
                },
            ),
            ("G", OLD),
        ],
    };
    const POSTGRES: WakeFormat = WakeFormat {
        retry: None,
        broken: "broken",
        grants: &[
            (
                "pushed",
                GrantFormat {
                    unit: Unit::Microseconds,
                    fields: &[Field::Attempt, Field::Token, Field::After, Field::Window],
                },
            ),
            ("granted", GrantFormat { unit: Unit::Microseconds, ..OLD }),
        ],
    };

    fn granted(format: &WakeFormat, text: &str) -> (String, PushedGrant) {
        match format.parse(text) {
            Some(Wake::Granted { lock_id, grant }) => (lock_id.as_str().to_owned(), grant),
            other => panic!("{text:?} was read as {other:?}"),
        }
    }

    #[test]
    fn each_store_reads_its_present_format_and_the_one_before() {
        let grant = |attempt, after| PushedGrant {
            token: FencingToken::new(12),
            attempt,
            after,
            window: Duration::from_secs(2),
        };
        let (ms, us) = (Duration::from_millis(34), Duration::from_micros(3400));
        for (format, text, expected) in [
            (&REDIS, "P 12 34 2000 7 my host#ab-1", grant(7, ms)),
            (&REDIS, "G 12 34 2000 my host#ab-1", grant(0, ms)),
            (&POSTGRES, "pushed 7 12 3400 2000000 my host#ab-1", grant(7, us)),
            (&POSTGRES, "granted 12 3400 2000000 my host#ab-1", grant(0, us)),
        ] {
            assert_eq!(granted(format, text), ("my host#ab-1".to_owned(), expected), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_back_whatever_the_lock_id() {
        let grant = PushedGrant {
            token: FencingToken::new(u64::MAX),
            attempt: 3,
            after: Duration::from_millis(5),
            window: Duration::from_secs(2),
        };
        for lock_id in ["web-3:812#00ff-1", "a b", " ", "1 2 3", "ü"].map(LockId::from_stored) {
            for format in [&REDIS, &POSTGRES] {
                for wake in [
                    Wake::Retry { lock_id: lock_id.clone() },
                    Wake::Broken { lock_id: lock_id.clone() },
                    Wake::Granted { lock_id: lock_id.clone(), grant },
                ] {
                    let Some(text) = format.encode(&wake) else { continue };
                    assert_eq!(format!("{:?}", format.parse(&text)), format!("{:?}", Some(wake)));
                }
            }
        }
        assert!(REDIS.encode(&Wake::Missed).is_none());
    }

    #[test]
    fn text_of_other_programs_is_no_wake_up() {
        for text in [
            "",
            "P",
            "P 1 2",
            "P 1 2 3 y z",
            "P 1 2 3 4",
            "P 1 2 3 4 ",
            "G 1 2 x y",
            "hello",
            "hello world",
            "B",
        ] {
            assert!(REDIS.parse(text).is_none(), "{text:?}");
        }
        for text in [
            "granted",
            "granted 1 2",
            "granted -1 2 3 x",
            "granted x y z w",
            "granted 1 2 3",
            "pushed 1 2 3 x",
            "pushed -1 2 3 4 x",
            "pushed 1 2 -3 4 x",
            "broken",
            "R x",
        ] {
            assert!(POSTGRES.parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn numbers_alone_can_be_read_where_the_lock_id_is_elsewhere() {
        let (grant, rest) = OLD.parse("17 5 2000 3").unwrap();
        assert_eq!((grant.token.get(), grant.attempt, rest), (17, 0, "3"));
        assert!(OLD.parse("17 5").is_none());
        assert!(OLD.parse("17 5 ").is_none());
    }
}
