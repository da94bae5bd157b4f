//! Operators' requests to a store that does not answer: a paused server behind an open connection.

use crate::common::{SECOND, World};
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::Query;
use distlock_core::{Error, ErrorKind, Kind};

#[tokio::test(start_paused = true)]
async fn an_operators_request_without_an_answer_ends_as_an_error() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Admin, Fault::hang_after());
    let begun = tokio::time::Instant::now();
    let check = |error: Error, unknown: bool| {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.is_outcome_unknown(), unknown, "{error}");
        assert!(error.to_string().contains("no reply within"), "{error}");
    };
    check(locks.inspect(&Query::named("a")).await.unwrap_err(), false);
    check(locks.doctor().await.unwrap_err(), false);
    check(locks.break_lock(Kind::Mutex, "a").await.unwrap_err(), true);
    assert!(begun.elapsed() < 120 * SECOND);
}
