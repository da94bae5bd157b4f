//! The wire format of wake-ups, which are payloads of NOTIFY.
//!
//! - `pushed ATTEMPT TOKEN AFTER WINDOW LOCK-ID`: a grant to a waiter; durations are microseconds.
//! - `granted TOKEN AFTER WINDOW LOCK-ID`: a grant to a session; or a grant from a program of an earlier version, which
//!   counts no attempts: no waiter accepts attempt 0.
//! - `broken LOCK-ID`: a forced release.
//!
//! Any program may notify: other payloads are ignored. A new kind of message needs a new first word, because programs of
//! earlier versions read the words that they know.

use distlock_core::store::support::wake_codec::{Field, GrantFormat, Unit, WakeFormat};

const PUSHED: GrantFormat = GrantFormat {
    unit: Unit::Microseconds,
    fields: &[Field::Attempt, Field::Token, Field::After, Field::Window],
};
const GRANTED: GrantFormat =
    GrantFormat { unit: Unit::Microseconds, fields: &[Field::Token, Field::After, Field::Window] };

pub(crate) const WAKE_FORMAT: WakeFormat =
    WakeFormat { retry: None, broken: "broken", grants: &[("pushed", PUSHED), ("granted", GRANTED)] };

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_core::store::Wake;

    use super::*;

    #[test]
    fn the_payloads_that_our_statements_send_are_read() {
        for (payload, attempt) in
            [("pushed 7 12 3400 2000000 my host#ab-1", 7), ("granted 12 3400 2000000 my host#ab-1", 0)]
        {
            let Some(Wake::Granted { lock_id, grant, .. }) = WAKE_FORMAT.parse(payload) else {
                panic!("not read as a grant: {payload}")
            };
            assert_eq!((lock_id.as_str(), grant.token.get()), ("my host#ab-1", 12));
            assert_eq!((grant.after, grant.window), (Duration::from_micros(3400), Duration::from_secs(2)));
            assert_eq!(grant.attempt, attempt);
        }
        let broken = WAKE_FORMAT.parse("broken my host#ab-1");
        assert!(matches!(&broken, Some(Wake::Broken { lock_id, .. }) if lock_id.as_str() == "my host#ab-1"));
    }

    #[test]
    fn payloads_of_other_programs_are_no_wake_ups() {
        for payload in [
            "",
            "granted",
            "granted 1 2",
            "granted -1 2 3 x",
            "hello world",
            "pushed 1 2 3 x",
            "broken",
            "R x",
        ] {
            assert!(WAKE_FORMAT.parse(payload).is_none(), "{payload:?}");
        }
    }
}
