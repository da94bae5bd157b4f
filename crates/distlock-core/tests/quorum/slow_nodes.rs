//! A node that is slow and needed for a majority is waited for; one that is slow and not needed is not.

use crate::support::*;
use distlock_core::ErrorKind;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{Attempt, Released, Renewal};
use tokio::time::Instant;

fn late(by: std::time::Duration) -> Fault {
    Fault::none().delay_before(by)
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_late_once_and_needed_grants() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.down(&[0]);
    fleet.faults[1].next(Verb::Acquire, 1, late(60 * MS));
    let start = Instant::now();
    granted(&quorum, "a").await;
    assert_eq!(start.elapsed(), 60 * MS);
    assert_eq!(fleet.votes("a").await, 2);
    // It counts as slow from here on, and is needed still.
    release(&quorum, "a").await.unwrap();
    granted(&quorum, "b").await;
    assert_eq!(start.elapsed(), 60 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_late_and_needed_extends_releases_and_learns_the_token() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    for (id, by) in [("a", 60 * MS), ("b", 900 * MS), ("c", 3 * SECOND)] {
        fleet.up(&[0]);
        fleet.down(&[0]);
        // One node's clock is ahead, so the other one must be told the token before the grant is returned.
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
async fn a_renewal_that_a_late_node_decides_is_waited_for_also_if_a_majority_answered() {
    let mut fleet = Fleet::new(5);
    let quorum = fleet.quorum_with(|options| options.repair(false));
    let token = granted(&quorum, "a").await;
    fleet.forget(0);
    fleet.forget(1);
    fleet.faults[4].next(Verb::Renew, 1, late(200 * MS));
    // Two have it, two forgot it.
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    fleet.forget(2);
    fleet.faults[3].next(Verb::Renew, 1, late(200 * MS));
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::NotYours);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_hang_and_are_needed_are_waited_for_no_longer_than_four_seconds_or_the_expiry() {
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
    // That there is no majority is clear at once if enough nodes say so.
    fleet.down(&[2]);
    let start = Instant::now();
    ask(&quorum, claim("a")).await.unwrap_err();
    renew(&quorum, "a", distlock_core::FencingToken::new(1)).await.unwrap_err();
    release(&quorum, "a").await.unwrap_err();
    assert_eq!(start.elapsed(), std::time::Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_does_not_slow_contention_down() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    for node in [0, 1] {
        granted(&fleet.nodes[node], "rival").await;
    }
    fleet.faults[4].always(Verb::Acquire, Fault::hang_before());
    // Two votes each: the node that hangs could decide it, but the answer is contention also without it.
    for wait in [TIMEOUT, std::time::Duration::ZERO] {
        let start = Instant::now();
        assert!(matches!(ask(&quorum, claim("a")).await, Ok(Attempt::Busy { .. })));
        assert_eq!(start.elapsed(), wait);
    }
}
