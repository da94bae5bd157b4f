//! Errors of the server and the driver, as errors of distlock.

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind};
use redis::{RedisError, Value};

/// An error of the server, by a part of its text.
struct ServerErrorRule {
    code: &'static str,
    kind: ErrorKind,
    detail: &'static str,
    advice: &'static str,
}

const DEMOTED: &str = "WAIT cannot be used with replica";

const GRANT_RIGHTS: &str = "grant it the keys and channels that begin with the prefix (~distlock:* &distlock:*) and the \
                            commands that `distlock doctor` names";

/// The first rule whose code occurs in the text applies. Anywhere in the text, because Redis 6 wraps the error of a command
/// inside a script into a longer one.
const RULES: &[ServerErrorRule] = &[
    ServerErrorRule {
        code: "READONLY",
        kind: ErrorKind::Unavailable,
        detail: "the server is a replica and takes no writes",
        advice: "connect to the master, or by redis+sentinel:// or redis+cluster:// so that it is found",
    },
    // A master that was demoted between the script and the WAIT behind it.
    ServerErrorRule {
        code: DEMOTED,
        kind: ErrorKind::Unavailable,
        detail: "the server has become a replica",
        advice: "wait for the fail-over, or connect to the master",
    },
    ServerErrorRule {
        code: "LOADING",
        kind: ErrorKind::Unavailable,
        detail: "the server is loading its data",
        advice: "wait until it has started",
    },
    ServerErrorRule {
        code: "MASTERDOWN",
        kind: ErrorKind::Unavailable,
        detail: "the server is a replica that lost its master",
        advice: "wait for the fail-over, or connect to the master",
    },
    ServerErrorRule {
        code: "CLUSTERDOWN",
        kind: ErrorKind::Unavailable,
        detail: "the cluster does not serve the slot of this name",
        advice: "wait for the fail-over, or repair the cluster (redis-cli --cluster check)",
    },
    ServerErrorRule {
        code: "TRYAGAIN",
        kind: ErrorKind::Unavailable,
        detail: "the slot of this name is being moved",
        advice: "wait until it has been moved",
    },
    ServerErrorRule {
        code: "NOREPLICAS",
        kind: ErrorKind::Unavailable,
        detail: "the server has fewer replicas than min-replicas-to-write asks for",
        advice: "bring the replicas back",
    },
    ServerErrorRule {
        code: "BUSY ",
        kind: ErrorKind::Unavailable,
        detail: "the server is busy with a long script",
        advice: "find it with SLOWLOG; SCRIPT KILL ends it",
    },
    ServerErrorRule {
        code: "OOM ",
        kind: ErrorKind::Exhausted,
        detail: "the server has reached its maxmemory",
        advice: "give it more memory, or remove data that is not needed; held locks are still renewed",
    },
    ServerErrorRule {
        code: "MISCONF",
        kind: ErrorKind::Exhausted,
        detail: "the server cannot write its data to disk and takes no writes",
        advice: "free the disk, or see the server's log",
    },
    ServerErrorRule {
        code: "WRONGTYPE",
        kind: ErrorKind::Corrupt,
        detail: "a key of this name holds something else",
        advice: "use another name, or a prefix (distlock.prefix=app:) that no other program uses",
    },
    ServerErrorRule {
        code: "was not written by distlock",
        kind: ErrorKind::Corrupt,
        detail: "a key of this name holds something that distlock did not write",
        advice: "use another name or prefix, or delete the key",
    },
    ServerErrorRule {
        code: "NOPERM",
        kind: ErrorKind::Denied,
        detail: "the user lacks a right",
        advice: GRANT_RIGHTS,
    },
    // Of a command inside a script: this text in Redis 6 and 7.0, the next one in later versions.
    ServerErrorRule {
        code: "The user executing the script can't",
        kind: ErrorKind::Denied,
        detail: "the user lacks a right that the scripts need",
        advice: GRANT_RIGHTS,
    },
    ServerErrorRule {
        code: "ACL failure in script",
        kind: ErrorKind::Denied,
        detail: "the user lacks a right that the scripts need",
        advice: GRANT_RIGHTS,
    },
    ServerErrorRule {
        code: "NOAUTH",
        kind: ErrorKind::Denied,
        detail: "the server requires a password",
        advice: "put user:password into the URL: redis://user:password@host, or redis://:password@host",
    },
    ServerErrorRule {
        code: "WRONGPASS",
        kind: ErrorKind::Denied,
        detail: "the server rejected the user or the password",
        advice: "check both",
    },
    ServerErrorRule {
        code: "MOVED ",
        kind: ErrorKind::Unsupported,
        detail: "the server is part of a cluster",
        advice: "connect by redis+cluster://",
    },
    ServerErrorRule {
        code: "unknown command",
        kind: ErrorKind::Unsupported,
        detail: "the server lacks a command that distlock needs",
        advice: "use Redis 6 or later, or Valkey, without renamed commands",
    },
];

/// The error for a request that the server refused; it was not applied.
pub(crate) fn refused(text: &str) -> Error {
    let text = text.trim().replace(['\r', '\n'], " ");
    match RULES.iter().find(|rule| text.contains(rule.code)) {
        // The server's text explains its protocol to programmers.
        Some(rule) if ["NOAUTH", "WRONGPASS"].contains(&rule.code) => {
            Error::new(rule.kind, format!("{} ({})", rule.detail, rule.code)).advise(rule.advice)
        }
        Some(rule) => {
            Error::new(rule.kind, format!("{} ({})", rule.detail, errors::brief(&text))).advise(rule.advice)
        }
        None => Error::new(ErrorKind::Internal, format!("the server replied: {}", errors::brief(&text))),
    }
}

/// The reply to a command, or the error that the server replied with.
pub(crate) fn accepted(reply: Value) -> Result<Value, Error> {
    match reply {
        Value::ServerError(error) => Err(refused(&text_of(&error))),
        reply => Ok(reply),
    }
}

/// The whole text of an error reply: code and detail.
pub(crate) fn text_of(error: &redis::ServerError) -> String {
    match error.details() {
        Some(detail) => format!("{} {detail}", error.code()),
        None => error.code().to_owned(),
    }
}

/// Whether the server cannot serve us now, so that a new connection, perhaps to another server, should be tried.
pub(crate) fn is_wrong_server(text: &str) -> bool {
    ["READONLY", "MASTERDOWN", "LOADING", DEMOTED].iter().any(|code| text.contains(code))
}

/// No connection could be opened; nothing was sent.
pub(crate) fn connect_failed(error: RedisError) -> Error {
    let code = error.code().unwrap_or_default();
    let text = format!("{code} {error}");
    if RULES.iter().any(|rule| text.contains(rule.code)) {
        return refused(&text);
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            Error::new(ErrorKind::Denied, "the server rejected the user or the password")
                .advise("check both")
                .caused_by(error)
        }
        redis::ErrorKind::InvalidClientConfig => {
            Error::new(ErrorKind::InvalidInput, "the server's address or options are invalid")
                .caused_by(error)
        }
        redis::ErrorKind::RESP3NotSupported => {
            Error::new(ErrorKind::Unsupported, "the server does not support RESP3")
                .advise("use Redis 6 or later, or Valkey")
                .caused_by(error)
        }
        redis::ErrorKind::Client => Error::new(ErrorKind::Denied, "no TLS connection could be opened")
            .advise("check the certificate of the server and distlock.tls_ca")
            .caused_by(error),
        _ => errors::unavailable(errors::brief(&error)).caused_by(error),
    }
}

/// The connection broke while a request was in flight.
pub(crate) fn connection_lost(error: RedisError) -> Error {
    errors::unavailable("the connection was lost").with_unknown_outcome().caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_server_has_its_kind_also_inside_a_script_of_redis_6() {
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
