//! An operator asks a store that says nothing: a server that is frozen, behind a connection that still stands.

use crate::common::{SECOND, World};
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::Query;
use distlock_core::{Error, ErrorKind, Kind};

#[tokio::test(start_paused = true)]
async fn an_operator_is_told_of_a_store_that_says_nothing() {
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Admin, Fault::hang_after());
    let begun = tokio::time::Instant::now();
    let told = |error: Error, unknown: bool| {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.is_outcome_unknown(), unknown, "{error}");
        assert!(error.to_string().contains("no reply within"), "{error}");
    };
    told(locks.inspect(&Query::named("a")).await.unwrap_err(), false);
    told(locks.doctor().await.unwrap_err(), false);
    told(locks.break_lock(Kind::Mutex, "a").await.unwrap_err(), true);
    assert!(begun.elapsed() < 120 * SECOND);
}
