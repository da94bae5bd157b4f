//! The quorum waits for a slow node that the majority needs, and not for one that it does not need.

use crate::support::*;
use distlock_core::ErrorKind;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{Attempt, Released, Renewal};
use tokio::time::Instant;

fn late(by: std::time::Duration) -> Fault {
    Fault::none().delay_before(by)
}

#[tokio::test(start_paused = true)]
async fn a_needed_node_that_is_late_once_grants() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.down(&[0]);
    fleet.faults[1].next(Verb::Acquire, 1, late(60 * MS));
    let start = Instant::now();
    granted(&quorum, "a").await;
    assert_eq!(start.elapsed(), 60 * MS);
    assert_eq!(fleet.votes("a").await, 2);
    // It counts as slow from here on, and is still needed.
    release(&quorum, "a").await.unwrap();
    granted(&quorum, "b").await;
    assert_eq!(start.elapsed(), 60 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_needed_node_that_is_late_renews_releases_and_gets_the_token() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    for (id, by) in [("a", 60 * MS), ("b", 900 * MS), ("c", 3 * SECOND)] {
        fleet.up(&[0]);
        fleet.down(&[0]);
        // One node's clock is ahead, so the other one must get the token before the grant is returned.
        fleet.clocks[2].jump(SECOND);
        fleet.faults[1].next(Verb::Renew, 1, late(by));
        let start = Instant::now();
        let token = granted(&quorum, id).await;
        assert_eq!(start.elapsed(), by, "the token");
        fleet.faults[1].next(Verb::Renew, 1, late(by));
        assert_eq!(renew(&quorum, id, token).await.unwrap(), Renewal::Renewed);
        assert_eq!(start.elapsed(), 2 * by, "the renewal");
        fleet.faults[1].next(Verb::Release, 1, late(by));
        assert!(matches!(release(&quorum, id).await.unwrap(), Released::Done { .. }));
        assert_eq!(start.elapsed(), 3 * by, "the release");
        rest(5 * SECOND).await;
        assert_eq!(fleet.votes(id).await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_waits_for_the_late_node_that_decides_it_even_if_a_majority_answered() {
    let mut fleet = Fleet::new(5);
    let quorum = fleet.quorum_with(|options| options.repair(false));
    let token = granted(&quorum, "a").await;
    fleet.forget(0);
    fleet.forget(1);
    fleet.faults[4].next(Verb::Renew, 1, late(200 * MS));
    // Two nodes have it, two have forgotten it.
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    fleet.forget(2);
    fleet.faults[3].next(Verb::Renew, 1, late(200 * MS));
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::NotYours);
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_needed_nodes_that_hang_ends_after_four_seconds_or_the_expiry() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.down(&[0]);
    fleet.faults[1].always_all(Fault::hang_before());
    for (expiry, wait) in [(EXPIRY, 4 * SECOND), (500 * MS, 500 * MS)] {
        let start = Instant::now();
        let error = ask(&quorum, claim("a").with_expiry(expiry)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(
            error.to_string().contains(&format!("no answer within {wait:?}"))
                || error.to_string().contains(&format!("without an answer within {wait:?}")),
            "{error}"
        );
        assert_eq!(start.elapsed(), wait);
    }
    // If enough nodes fail at once, there is no wait.
    fleet.down(&[2]);
    let start = Instant::now();
    ask(&quorum, claim("a")).await.unwrap_err();
    renew(&quorum, "a", distlock_core::FencingToken::new(1)).await.unwrap_err();
    release(&quorum, "a").await.unwrap_err();
    assert_eq!(start.elapsed(), std::time::Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_node_does_not_delay_contended_attempts() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    for node in [0, 1] {
        granted(&fleet.nodes[node], "other").await;
    }
    fleet.faults[4].always(Verb::Acquire, Fault::hang_before());
    // Two votes each: the hanging node could decide, but without it the answer is contention too.
    for wait in [TIMEOUT, std::time::Duration::ZERO] {
        let start = Instant::now();
        assert!(matches!(ask(&quorum, claim("a")).await, Ok(Attempt::Busy { .. })));
        assert_eq!(start.elapsed(), wait);
    }
}
