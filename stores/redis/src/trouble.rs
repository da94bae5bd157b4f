//! What the server's and the driver's errors mean to us.

use std::time::Duration;

use distlock_core::{Error, ErrorKind};
use redis::RedisError;

/// An error code of the server, what it means and what to do about it.
struct Meaning {
    code: &'static str,
    kind: ErrorKind,
    detail: &'static str,
    advice: &'static str,
}

const DEMOTED: &str = "WAIT cannot be used with replica";

/// In a script, Redis 6 wraps the code into a longer text, so codes are looked for anywhere in it; the first entry
/// that is found counts.
const MEANINGS: &[Meaning] = &[
    Meaning {
        code: "READONLY",
        kind: ErrorKind::Unavailable,
        detail: "the server is a replica and takes no writes",
        advice: "connect to the master, or by redis+sentinel:// or redis+cluster:// so that it is found",
    },
    // A master that was demoted after it had carried out a script and before it confirmed it.
    Meaning {
        code: DEMOTED,
        kind: ErrorKind::Unavailable,
        detail: "the server has become a replica",
        advice: "wait for the fail-over, or connect to the master",
    },
    Meaning {
        code: "LOADING",
        kind: ErrorKind::Unavailable,
        detail: "the server is loading its data",
        advice: "wait until it has started",
    },
    Meaning {
        code: "MASTERDOWN",
        kind: ErrorKind::Unavailable,
        detail: "the server is a replica that lost its master",
        advice: "wait for the fail-over, or connect to the master",
    },
    Meaning {
        code: "CLUSTERDOWN",
        kind: ErrorKind::Unavailable,
        detail: "the cluster does not serve the slot of this name",
        advice: "wait for the fail-over, or repair the cluster (redis-cli --cluster check)",
    },
    Meaning {
        code: "TRYAGAIN",
        kind: ErrorKind::Unavailable,
        detail: "the slot of this name is being moved",
        advice: "wait until it has been moved",
    },
    Meaning {
        code: "NOREPLICAS",
        kind: ErrorKind::Unavailable,
        detail: "the server has fewer replicas than min-replicas-to-write asks for",
        advice: "bring the replicas back",
    },
    Meaning {
        code: "BUSY ",
        kind: ErrorKind::Unavailable,
        detail: "the server is busy with somebody's script",
        advice: "find out which with SLOWLOG; SCRIPT KILL ends it",
    },
    Meaning {
        code: "OOM ",
        kind: ErrorKind::Exhausted,
        detail: "the server has reached its maxmemory",
        advice: "give it more memory, or remove data that is not needed; held locks are still extended",
    },
    Meaning {
        code: "MISCONF",
        kind: ErrorKind::Exhausted,
        detail: "the server cannot write its data to disk and takes no writes",
        advice: "free the disk, or see the server's log",
    },
    Meaning {
        code: "WRONGTYPE",
        kind: ErrorKind::Corrupt,
        detail: "a key of this name holds something else",
        advice: "use another name, or a prefix (distlock.prefix=app:) that nobody else uses",
    },
    Meaning {
        code: "was not written by distlock",
        kind: ErrorKind::Corrupt,
        detail: "a key of this name holds something that distlock did not write",
        advice: "use another name or prefix, or delete the key",
    },
    Meaning {
        code: "NOPERM",
        kind: ErrorKind::Denied,
        detail: "the user lacks a right",
        advice: "give it the keys and channels that begin with the prefix (~distlock:* &distlock:*) and the commands \
                 that `distlock doctor` names",
    },
    // So says Redis 6 and 7.0 of a command inside a script; later ones say the other.
    Meaning {
        code: "The user executing the script can't",
        kind: ErrorKind::Denied,
        detail: "the user lacks a right that our scripts need",
        advice: "give it the keys and channels that begin with the prefix (~distlock:* &distlock:*) and the commands \
                 that `distlock doctor` names",
    },
    Meaning {
        code: "ACL failure in script",
        kind: ErrorKind::Denied,
        detail: "the user lacks a right that our scripts need",
        advice: "give it the keys and channels that begin with the prefix (~distlock:* &distlock:*) and the commands \
                 that `distlock doctor` names",
    },
    Meaning {
        code: "NOAUTH",
        kind: ErrorKind::Denied,
        detail: "the server wants a password",
        advice: "put it into the URL: redis://user:password@host",
    },
    Meaning {
        code: "WRONGPASS",
        kind: ErrorKind::Denied,
        detail: "the server knows no such user and password",
        advice: "check both",
    },
    Meaning {
        code: "MOVED ",
        kind: ErrorKind::Unsupported,
        detail: "the server is part of a cluster",
        advice: "connect by redis+cluster://",
    },
    Meaning {
        code: "unknown command",
        kind: ErrorKind::Unsupported,
        detail: "the server lacks a command that we need",
        advice: "use Redis 6 or later, or Valkey, without renamed commands",
    },
];

/// What the server answered instead of carrying the request out.
pub(crate) fn refused(text: &str) -> Error {
    let found = MEANINGS.iter().find(|meaning| text.contains(meaning.code));
    let said = text.trim().replace(['\r', '\n'], " ");
    match found {
        Some(meaning) => {
            Error::new(meaning.kind, format!("{} ({said})", meaning.detail)).advise(meaning.advice)
        }
        None => Error::new(ErrorKind::Internal, format!("the server said: {said}")),
    }
}

/// The whole text of an error that the server answered with: code and detail.
pub(crate) fn text_of(error: &redis::ServerError) -> String {
    match error.details() {
        Some(detail) => format!("{} {detail}", error.code()),
        None => error.code().to_owned(),
    }
}

/// Whether another server, or another connection, would do better: we talk to one that cannot serve us.
pub(crate) fn wants_another_server(text: &str) -> bool {
    ["READONLY", "MASTERDOWN", "LOADING", DEMOTED].iter().any(|code| text.contains(code))
}

/// A connection could not be made; nothing was sent.
pub(crate) fn cannot_connect(error: RedisError) -> Error {
    let code = error.code().unwrap_or_default();
    let text = format!("{code} {error}");
    if MEANINGS.iter().any(|meaning| text.contains(meaning.code)) {
        return refused(&text);
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            Error::new(ErrorKind::Denied, "the server did not accept user and password")
                .advise("check both")
                .caused_by(error)
        }
        redis::ErrorKind::InvalidClientConfig => {
            Error::new(ErrorKind::InvalidInput, "the server's address or options are wrong").caused_by(error)
        }
        redis::ErrorKind::RESP3NotSupported => {
            Error::new(ErrorKind::Unsupported, "the server does not speak RESP3")
                .advise("use Redis 6 or later, or Valkey")
                .caused_by(error)
        }
        redis::ErrorKind::Client => Error::new(ErrorKind::Denied, "no secure connection could be made")
            .advise("check the certificate of the server and distlock.tls_ca")
            .caused_by(error),
        _ => Error::new(ErrorKind::Unavailable, "no connection could be made")
            .advise("check that the server runs and can be reached from here")
            .caused_by(error),
    }
}

/// A connection was not made in time.
pub(crate) fn connect_timeout(limit: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no connection could be made within {limit:?}"))
        .advise("check that the server runs and can be reached from here")
}

/// The connection broke while a request was under way.
pub(crate) fn broken(error: RedisError) -> Error {
    Error::new(ErrorKind::Unavailable, "the connection broke")
        .with_unknown_outcome()
        .advise("check that the server runs and can be reached from here")
        .caused_by(error)
}

/// No answer came in time.
pub(crate) fn silent(limit: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {limit:?}"))
        .with_unknown_outcome()
        .advise("check that the server runs and can be reached from here")
}

/// The server answered something that our scripts never answer.
pub(crate) fn nonsense(what: impl std::fmt::Debug) -> Error {
    let mut shown = format!("{what:?}");
    shown.truncate(shown.char_indices().nth(120).map_or(shown.len(), |(at, _)| at));
    Error::new(ErrorKind::Internal, format!("the server answered {shown}")).with_unknown_outcome()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_its_kind_also_inside_a_script_of_redis_6() {
        let cases = [
            ("READONLY You can't write against a read only replica.", ErrorKind::Unavailable, true),
            (
                "ERR Error running script (call to f_0): @user_script:9: -READONLY You can't",
                ErrorKind::Unavailable,
                true,
            ),
            ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable, true),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Exhausted, false),
            ("WRONGTYPE Operation against a key", ErrorKind::Corrupt, false),
            ("NOPERM this user has no permissions to run the 'hset' command", ErrorKind::Denied, false),
            ("NOAUTH Authentication required.", ErrorKind::Denied, false),
            ("MOVED 866 127.0.0.1:7001", ErrorKind::Unsupported, false),
            ("ERR WAIT cannot be used with replica instances. Please", ErrorKind::Unavailable, true),
            ("CLUSTERDOWN Hash slot not served", ErrorKind::Unavailable, true),
            ("ERR something else", ErrorKind::Internal, false),
        ];
        for (text, kind, retry) in cases {
            let error = refused(text);
            assert_eq!((error.kind(), error.can_retry()), (kind, retry), "{text}");
            assert!(!error.is_outcome_unknown());
        }
    }
}
