//! What an error says.

use std::error::Error as _;
use std::io;

use super::*;
use crate::resource::{Kind, LockId};

fn orders() -> Resource {
    Resource::new(Kind::Mutex, "orders/42").unwrap()
}

#[test]
fn an_error_says_what_where_and_what_to_do_in_one_line() {
    let error = Error::new(ErrorKind::Unavailable, "connection refused")
        .doing("acquire")
        .about(&orders())
        .on("redis 127.0.0.1:6379")
        .with_unknown_outcome()
        .advise("check that the server runs");
    assert_eq!(
        error.to_string(),
        "cannot acquire mutex \"orders/42\" on redis 127.0.0.1:6379: connection refused \
         (outcome unknown: the request may have been applied); check that the server runs"
    );
    assert!(error.can_retry() && error.is_outcome_unknown());
}

#[test]
fn the_innermost_word_on_action_and_store_stays() {
    let error =
        Error::new(ErrorKind::Denied, "no").doing("open the lock file").doing("acquire").on("a").on("b");
    assert_eq!(error.to_string(), "cannot open the lock file on a: no");
}

#[test]
fn a_reporter_that_walks_the_chain_shows_every_fact_once() {
    let error = Error::new(ErrorKind::Unavailable, "no connection could be made")
        .doing("connect")
        .caused_by(io::Error::other("line one\nline two"))
        .advise("start it");
    let source = error.source().unwrap().to_string();
    assert!(!error.to_string().contains("line one"), "{error}");
    assert_eq!(error.to_string(), "cannot connect: no connection could be made; start it");
    assert_eq!(
        format!("{error:#}"),
        "cannot connect: no connection could be made: line one line two; start it"
    );
    assert_eq!(source, "line one\nline two");
    let told = Error::new(ErrorKind::Unavailable, "refused").caused_by(io::Error::other("refused"));
    assert_eq!(format!("{told:#}"), "refused");
    let coded = Error::new(ErrorKind::Unavailable, "Connection refused")
        .caused_by(io::Error::from_raw_os_error(111))
        .doing("connect")
        .on("redis h:1");
    assert_eq!(format!("{coded:#}"), "cannot connect to redis h:1: Connection refused");
}

#[test]
fn a_time_out_names_the_holder_if_it_is_known() {
    let held = Duration::from_secs(250);
    let since = std::time::SystemTime::now() - held;
    let holder = Holder::new(LockId::from_stored("web-3:812#00ff-1"), 1).with_acquired_at(since);
    let error = |holders: &[Holder]| {
        let error = Error::timed_out(Duration::from_secs(1), holders).about(&orders()).on("memory");
        assert_eq!((error.kind(), error.action()), (ErrorKind::Timeout, Some("acquire")));
        error.to_string()
    };
    assert_eq!(
        error(&[holder]),
        "timed out after 1s waiting for mutex \"orders/42\": held by web-3:812 for 4m 10s (memory); \
         wait longer, or see `distlock show`"
    );
    assert_eq!(
        error(&[]),
        "timed out after 1s waiting for mutex \"orders/42\" (memory); wait longer, or see `distlock show`"
    );
}
