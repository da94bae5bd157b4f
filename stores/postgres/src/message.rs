//! What sessions tell each other by NOTIFY.

use std::time::Duration;

use distlock_core::store::{PushedGrant, Wake};
use distlock_core::{FencingToken, LockId};

/// - `pushed ATTEMPT TOKEN AFTER WINDOW LOCK-ID`, with durations in microseconds.
/// - `granted TOKEN AFTER WINDOW LOCK-ID`: a grant to a session; or from a program of the version before, which counts no
///   attempts: attempt 0 is nobody's newest.
/// - `broken LOCK-ID`.
///
/// Anybody may notify: what is not one of these is `None`. A new sort of message needs a new first word, because programs of
/// the version before read what they know.
pub(crate) fn read(payload: &str) -> Option<Wake> {
    let (verb, rest) = payload.split_once(' ')?;
    let (attempt, rest) = match verb {
        "pushed" => {
            let (attempt, rest) = rest.split_once(' ')?;
            (attempt.parse().ok()?, rest)
        }
        "granted" => (0, rest),
        "broken" => return Some(Wake::broken(LockId::from_stored(rest))),
        _ => return None,
    };
    let mut words = rest.splitn(4, ' ');
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let token = FencingToken::new(number()?);
    let after = Duration::from_micros(number()?);
    let grant =
        PushedGrant::new(token, Duration::from_micros(number()?)).with_attempt(attempt).with_after(after);
    Some(Wake::granted(LockId::from_stored(words.next()?), grant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_read_and_nonsense_is_passed_over() {
        for (payload, attempt) in
            [("pushed 7 12 3400 2000000 my host#ab-1", 7), ("granted 12 3400 2000000 my host#ab-1", 0)]
        {
            let Some(Wake::Granted { lock_id, grant, .. }) = read(payload) else {
                panic!("a grant: {payload}")
            };
            assert_eq!((lock_id.as_str(), grant.token.get()), ("my host#ab-1", 12));
            assert_eq!((grant.after, grant.window), (Duration::from_micros(3400), Duration::from_secs(2)));
            assert_eq!(grant.attempt, attempt);
        }
        let broken = read("broken my host#ab-1");
        assert!(matches!(&broken, Some(Wake::Broken { lock_id, .. }) if lock_id.as_str() == "my host#ab-1"));
        for nonsense in [
            "",
            "granted",
            "granted 1 2",
            "granted -1 2 3 x",
            "granted x y z w",
            "hello world",
            "granted 1 2 3",
            "pushed 1 2 3 x",
            "pushed -1 2 3 4 x",
            "pushed 1 2 -3 4 x",
            "broken",
        ] {
            assert!(read(nonsense).is_none(), "{nonsense:?}");
        }
    }
}
