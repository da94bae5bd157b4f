//! Errors of the server and the driver, as errors of distlock.

use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// A request that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) next: NextStep,
}

/// What may help after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Nothing.
    Fail,
    /// The same request, at another endpoint if there is one.
    FailOver,
    /// The same: no connection could be opened, and nothing was sent.
    Unreachable,
    /// The same request with a new token.
    Authenticate,
    /// Nothing: the lease that the request names has ended.
    LeaseEnded,
}

/// An error of the server, by a part of its text.
struct ServerErrorRule {
    text: &'static str,
    kind: ErrorKind,
    detail: &'static str,
    advice: &'static str,
    next: NextStep,
    /// Whether the server may have applied the request.
    outcome_unknown: bool,
}

const GRANT_RIGHTS: &str = "grant its role readwrite on the prefix: etcdctl role grant-permission ROLE readwrite \
                            --prefix=true distlock/";

/// The first rule whose text occurs in the message applies.
const RULES: &[ServerErrorRule] = &[
    ServerErrorRule {
        text: "requested lease not found",
        kind: ErrorKind::Unavailable,
        detail: "the server ended the session's lease",
        advice: "acquire again; if this repeats, use a longer expiry",
        next: NextStep::LeaseEnded,
        outcome_unknown: false,
    },
    // Answered before the request is proposed, because the request asks for a leader.
    ServerErrorRule {
        text: "etcdserver: no leader",
        kind: ErrorKind::Unavailable,
        detail: "the member has no leader",
        advice: "wait for the election, or bring back a majority of the members",
        next: NextStep::FailOver,
        outcome_unknown: false,
    },
    ServerErrorRule {
        text: "too many requests",
        kind: ErrorKind::Unavailable,
        detail: "the server is overloaded",
        advice: "wait, or find the client that sends so much",
        next: NextStep::FailOver,
        outcome_unknown: false,
    },
    ServerErrorRule {
        text: "rpc not supported for learner",
        kind: ErrorKind::Unavailable,
        detail: "the member is a learner",
        advice: "name the voting members in the URL",
        next: NextStep::FailOver,
        outcome_unknown: false,
    },
    ServerErrorRule {
        text: "database space exceeded",
        kind: ErrorKind::Exhausted,
        detail: "the server's database has reached its quota",
        advice: "compact and defragment it, then disarm the alarm: etcdctl alarm disarm",
        next: NextStep::Fail,
        outcome_unknown: false,
    },
    ServerErrorRule {
        text: "invalid user ID or password",
        kind: ErrorKind::Denied,
        detail: "the server rejected the user or the password",
        advice: "check both",
        next: NextStep::Fail,
        outcome_unknown: false,
    },
    ServerErrorRule {
        text: "user name is empty",
        kind: ErrorKind::Denied,
        detail: "the server requires a user",
        advice: "put user:password into the URL: etcd://user:password@host",
        next: NextStep::Fail,
        outcome_unknown: false,
    },
    ServerErrorRule {
        text: "permission denied",
        kind: ErrorKind::Denied,
        detail: "the user lacks a right",
        advice: GRANT_RIGHTS,
        next: NextStep::Fail,
        outcome_unknown: false,
    },
    ServerErrorRule {
        text: "invalid auth token",
        kind: ErrorKind::Denied,
        detail: "the server does not know the token of our login any more",
        advice: "check the clocks and the token's time-to-live (--auth-token-ttl)",
        next: NextStep::Authenticate,
        outcome_unknown: false,
    },
    ServerErrorRule {
        text: "revision of auth store is old",
        kind: ErrorKind::Denied,
        detail: "users or roles have changed since our login",
        advice: "try again",
        next: NextStep::Authenticate,
        outcome_unknown: false,
    },
    ServerErrorRule {
        text: "request is too large",
        kind: ErrorKind::Exhausted,
        detail: "the request is larger than the server allows",
        advice: "raise --max-request-bytes",
        next: NextStep::Fail,
        outcome_unknown: false,
    },
];

/// The server's text for a login on a server whose authentication is off.
pub(crate) const AUTH_IS_OFF: &str = "authentication is not enabled";

impl Failure {
    pub(crate) fn fail_over(error: Error) -> Self {
        Failure { error, next: NextStep::FailOver }
    }

    pub(crate) fn fatal(error: Error) -> Self {
        Failure { error, next: NextStep::Fail }
    }

    /// No reply within the limit.
    pub(crate) fn no_reply(limit: std::time::Duration) -> Self {
        Failure::fail_over(errors::no_reply(limit))
    }
}

/// The status of a failed request.
pub(crate) fn of_status(status: &Status) -> Failure {
    let message = status.message();
    if let Some(rule) = RULES.iter().find(|rule| message.contains(rule.text)) {
        let error =
            Error::new(rule.kind, format!("{} ({})", rule.detail, one_line(message))).advise(rule.advice);
        let error = if rule.outcome_unknown { error.with_unknown_outcome() } else { error };
        return Failure { error, next: rule.next };
    }
    let text = format!("{}{}", one_line(message), causes(status));
    match status.code() {
        Code::Unauthenticated => Failure {
            error: Error::new(ErrorKind::Denied, format!("the server does not accept our login ({text})"))
                .advise("check user and password"),
            next: NextStep::Authenticate,
        },
        Code::PermissionDenied => {
            Failure::fatal(Error::new(ErrorKind::Denied, format!("refused ({text})")).advise(GRANT_RIGHTS))
        }
        Code::Unimplemented => Failure::fatal(
            Error::new(ErrorKind::Unsupported, format!("the server lacks what distlock needs ({text})"))
                .advise("use etcd 3.4 or later"),
        ),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            Failure::fatal(Error::new(ErrorKind::Internal, format!("the server replied: {text}")))
        }
        _ if was_not_sent(status) => {
            let tls = ["certificate", "handshake", "tls", "alert"].iter().any(|word| text.contains(word));
            // The transport wraps the reason several times.
            let error = errors::unavailable(errors::brief(innermost(status)));
            let error = if tls {
                error.advise("check the certificate of the server and distlock.tls_ca")
            } else {
                error
            };
            Failure { error, next: NextStep::Unreachable }
        }
        _ => Failure::fail_over(errors::connection_lost(text)),
    }
}

/// Whether the connection could not be opened, so that nothing was sent.
fn was_not_sent(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let text = error.to_string();
        if text.contains("tcp connect error")
            || text.contains("dns error")
            || text.contains("client error (Connect)")
        {
            return true;
        }
        if error.downcast_ref::<std::io::Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::HostUnreachable
            )
        }) {
            return true;
        }
        source = error.source();
    }
    false
}

/// The last error below a status, which has the reason.
fn innermost(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    text
}

/// The errors below a status, in one line.
fn causes(status: &Status) -> String {
    let mut text = String::new();
    let mut last = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let shown = error.to_string();
        if shown != last && !shown.is_empty() {
            text.push_str(": ");
            text.push_str(&one_line(&shown));
            last = shown;
        }
        source = error.source();
    }
    text
}

fn one_line(text: &str) -> String {
    const SHOWN: usize = 200;
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_server_has_its_kind_and_its_next_step() {
        let cases = [
            (
                Status::not_found("etcdserver: requested lease not found"),
                ErrorKind::Unavailable,
                NextStep::LeaseEnded,
                false,
            ),
            (Status::unavailable("etcdserver: no leader"), ErrorKind::Unavailable, NextStep::FailOver, false),
            (
                Status::unavailable("etcdserver: leader changed"),
                ErrorKind::Unavailable,
                NextStep::FailOver,
                true,
            ),
            (
                Status::unavailable("etcdserver: request timed out"),
                ErrorKind::Unavailable,
                NextStep::FailOver,
                true,
            ),
            (
                Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
                ErrorKind::Exhausted,
                NextStep::Fail,
                false,
            ),
            (
                Status::permission_denied("etcdserver: permission denied"),
                ErrorKind::Denied,
                NextStep::Fail,
                false,
            ),
            (
                Status::invalid_argument("etcdserver: user name is empty"),
                ErrorKind::Denied,
                NextStep::Fail,
                false,
            ),
            (
                Status::unauthenticated("etcdserver: invalid auth token"),
                ErrorKind::Denied,
                NextStep::Authenticate,
                false,
            ),
            (Status::unimplemented("unknown service"), ErrorKind::Unsupported, NextStep::Fail, false),
            (Status::unknown("h2 protocol error"), ErrorKind::Unavailable, NextStep::FailOver, true),
        ];
        for (status, kind, next, unknown) in cases {
            let failure = of_status(&status);
            assert_eq!(
                (failure.error.kind(), failure.next, failure.error.is_outcome_unknown()),
                (kind, next, unknown),
                "{status}"
            );
        }
    }
}
