//! Errors and advice that read the same on every store.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, without_os_code};
use crate::resource::Resource;

/// The advice for a server that cannot be reached or does not reply.
pub const IS_IT_REACHABLE: &str = "check that the server runs and can be reached from here";

/// The server cannot be reached: [`ErrorKind::Unavailable`], with advice. Nothing was applied.
#[must_use]
pub fn unavailable(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, detail.into()).advise(IS_IT_REACHABLE)
}

/// A driver's message cut to what an operator needs: one line, no number of the operating system, at most 160 characters.
#[must_use]
pub fn brief(message: impl fmt::Display) -> String {
    const LONGEST: usize = 160;
    let message = message.to_string();
    let line = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut text: String =
        without_os_code(line).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// No connection within the time limit.
#[must_use]
pub fn connect_timeout(limit: Duration) -> Error {
    unavailable(format!("no connection within {limit:?}"))
}

/// TLS is wanted, and it is unknown with which crypto provider of rustls: none is compiled in, or several are.
#[must_use]
pub fn no_crypto_provider() -> Error {
    Error::new(ErrorKind::InvalidInput, "no crypto provider of rustls is chosen for TLS").advise(
        "enable one of the features tls-ring and tls-aws-lc-rs of distlock, or call install_default of a \
         rustls::crypto::CryptoProvider when the program starts",
    )
}

/// No reply to a request within the time limit; its outcome is unknown.
#[must_use]
pub fn no_reply(limit: Duration) -> Error {
    unavailable(format!("no reply within {limit:?}")).with_unknown_outcome()
}

/// The connection broke while a request was in flight; its outcome is unknown.
#[must_use]
pub fn connection_lost(detail: impl fmt::Display) -> Error {
    unavailable(format!("the connection was lost: {detail}")).with_unknown_outcome()
}

/// A live pool has another capacity than the claim says.
#[must_use]
pub fn capacity_mismatch(resource: &Resource, theirs: impl fmt::Display, ours: u32) -> Error {
    Error::new(
        ErrorKind::Mismatch,
        format!("it is in use with a capacity of {theirs}, and {ours} was asked for"),
    )
    .about(resource)
    .advise("use one capacity everywhere; it can change once no client holds it or waits for it")
}

/// The server answered fewer items than the request carried.
#[must_use]
pub fn too_few_answers() -> Error {
    Error::new(ErrorKind::Internal, "the store answered fewer items than the request carried")
        .with_unknown_outcome()
}

/// The server's reply is none that the store's statements can produce. Long replies are shortened.
#[must_use]
pub fn unexpected_reply(reply: impl fmt::Debug) -> Error {
    const SHOWN: usize = 120;
    let mut shown = format!("{reply:?}");
    if let Some((end, _)) = shown.char_indices().nth(SHOWN) {
        shown.truncate(end);
        shown.push('…');
    }
    Error::new(ErrorKind::Internal, format!("unexpected reply {shown}")).with_unknown_outcome()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Kind;

    #[test]
    fn a_lost_reply_has_an_unknown_outcome_and_a_failed_connect_has_not() {
        assert!(no_reply(Duration::from_secs(1)).is_outcome_unknown());
        assert!(connection_lost("broken pipe").is_outcome_unknown());
        assert!(too_few_answers().is_outcome_unknown());
        assert!(!connect_timeout(Duration::from_secs(1)).is_outcome_unknown());
        assert_eq!(
            connect_timeout(Duration::from_secs(2)).to_string(),
            "no connection within 2s; check that the server runs and can be reached from here"
        );
    }

    #[test]
    fn a_message_is_cut_to_what_an_operator_needs() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(
            brief(format!("h:1: {refused}, h:2: {refused}")),
            "h:1: Connection refused, h:2: Connection refused"
        );
        assert_eq!(brief("\n one\nline "), "one");
        assert_eq!(brief("a (os error x) b"), "a (os error x) b");
        assert!(brief("ü".repeat(500)).chars().count() == 161);
    }

    #[test]
    fn a_capacity_mismatch_names_both_capacities() {
        let error = capacity_mismatch(&Resource::new(Kind::Semaphore, "gpu").unwrap(), 4, 5);
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.to_string().contains("capacity of 4, and 5 was asked for"), "{error}");
    }

    #[test]
    fn an_unexpected_reply_is_shown_in_part_only() {
        let shown = unexpected_reply("ü".repeat(10_000)).to_string();
        assert!(shown.chars().count() < 220, "{shown}");
    }
}
