//! When a quorum has heard enough: at once if the missing answers change nothing, and not before if they do.

use crate::support::*;
use distlock_core::ErrorKind;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{Attempt, Released, Renewal};
use tokio::time::Instant;

fn late(by: std::time::Duration) -> Fault {
    Fault::none().delay_before(by)
}

#[tokio::test(start_paused = true)]
async fn contention_on_a_majority_is_told_without_the_nodes_that_hang() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    for node in 0..3 {
        granted(&fleet.nodes[node], "rival").await;
    }
    for node in 3..5 {
        fleet.faults[node].always(Verb::Acquire, Fault::hang_before());
    }
    let start = Instant::now();
    busy(&quorum, "a").await;
    assert!(start.elapsed() < MS, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_is_busy_although_one_node_is_down_and_one_is_slow() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "holder").await;
    fleet.down(&[0]);
    fleet.faults[2].always(Verb::Acquire, late(30 * MS));
    let start = Instant::now();
    busy(&quorum, "a").await;
    assert_eq!(start.elapsed(), 30 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_has_no_more_than_the_least_validity_left_is_undone() {
    for (delay, is_granted) in [(40 * MS, false), (39 * MS, true)] {
        let fleet = Fleet::new(3);
        let quorum = fleet.quorum_with(|options| options.min_validity(60 * MS));
        for faults in &fleet.faults {
            faults.always(Verb::Acquire, Fault::none().delay_after(delay));
        }
        let mut claim = claim("a");
        claim.expiry = 100 * MS;
        let answer = ask(&quorum, claim).await.unwrap();
        assert_eq!(matches!(answer, Attempt::Granted { .. }), is_granted, "{delay:?}: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_and_is_not_needed_holds_up_no_renewal() {
    for fault in [Fault::hang_before(), Fault::hang_after()] {
        let fleet = Fleet::new(3);
        let quorum = fleet.quorum();
        let token = granted(&quorum, "a").await;
        rest(MS).await;
        fleet.faults[1].always(Verb::Renew, fault);
        let start = Instant::now();
        assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
        assert!(start.elapsed() < MS, "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_told_at_once_although_a_node_hangs() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = granted(&quorum, "a").await;
    rest(MS).await;
    for node in 0..2 {
        release(&fleet.nodes[node], "a").await.unwrap();
    }
    fleet.faults[2].always(Verb::Renew, Fault::hang_before());
    let start = Instant::now();
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::NotYours);
    assert!(start.elapsed() < MS, "{:?}", start.elapsed());
}

/// A renewal over five nodes: the first ones do not have the lease, the next ones fail, the last one hangs, and those
/// between renew it.
async fn renewed(lost: usize, failed: usize, last: Fault) -> (distlock_core::Result<Renewal>, Instant) {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum_with(|options| options.repair(false));
    let token = granted(&quorum, "a").await;
    rest(MS).await;
    for node in 0..lost {
        release(&fleet.nodes[node], "a").await.unwrap();
    }
    for node in lost..lost + failed {
        // After the nodes that renew it have answered.
        fleet.faults[node].always(Verb::Renew, Fault::fail().delay_before(10 * MS));
    }
    fleet.faults[4].always(Verb::Renew, last);
    let start = Instant::now();
    (renew(&quorum, "a", token).await, start)
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_no_answer_can_save_fails_without_the_node_that_hangs() {
    for (lost, failed) in [(0, 3), (1, 3), (0, 4)] {
        let (answer, start) = renewed(lost, failed, Fault::hang_before()).await;
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(start.elapsed(), 10 * MS, "{lost} lost, {failed} failed");
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_that_tells_a_lost_lease_from_an_outage_is_waited_for() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum_with(|options| options.repair(false));
    let token = granted(&quorum, "a").await;
    rest(MS).await;
    for node in [0, 1, 4] {
        release(&fleet.nodes[node], "a").await.unwrap();
    }
    for node in [2, 3] {
        fleet.faults[node].always(Verb::Renew, Fault::fail());
    }
    fleet.faults[4].always(Verb::Renew, late(30 * MS));
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::NotYours);
}

#[tokio::test(start_paused = true)]
async fn one_node_that_lost_the_lease_and_one_that_is_down_do_not_end_it() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = granted(&quorum, "a").await;
    rest(MS).await;
    release(&fleet.nodes[0], "a").await.unwrap();
    fleet.down(&[1]);
    assert!(renew(&quorum, "a", token).await.unwrap_err().can_retry(), "an error to retry, not a loss");
    fleet.up(&[1]);
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
}

#[tokio::test(start_paused = true)]
async fn a_release_on_which_a_majority_agrees_that_nothing_is_left_needs_no_other_node() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "a").await;
    rest(MS).await;
    release(&fleet.nodes[0], "a").await.unwrap();
    fleet.faults[2].always(Verb::Release, Fault::hang_before());
    let start = Instant::now();
    assert!(matches!(release(&quorum, "a").await, Ok(Released::Done { .. })));
    assert_eq!(
        start.elapsed(),
        TIMEOUT,
        "one node time-out, since the third could still say that it was ours"
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_tells_that_it_woke_a_waiter_on_any_node() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "a").await;
    rest(MS).await;
    ask(&fleet.nodes[1], waiting("b")).await.unwrap();
    assert_eq!(release(&quorum, "a").await.unwrap(), Released::Done { woke: true });
    release(&fleet.nodes[1], "b").await.unwrap();
    granted(&quorum, "c").await;
    rest(MS).await;
    assert_eq!(release(&quorum, "c").await.unwrap(), Released::Done { woke: false });
}

#[tokio::test(start_paused = true)]
async fn a_node_that_answers_in_time_again_is_waited_for_again() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&fleet.nodes[1], "rival").await;
    // Late once: it counts as slow, and is not waited for while the others are a majority.
    fleet.faults[2].next(Verb::Acquire, 1, late(2 * TIMEOUT));
    busy(&quorum, "a").await;
    rest(SECOND).await;
    fleet.faults[2].next(Verb::Acquire, 1, late(TIMEOUT / 2));
    busy(&quorum, "b").await;
    rest(SECOND).await;
    // That answer was in time, so the next one is worth waiting for.
    fleet.faults[2].next(Verb::Acquire, 1, late(TIMEOUT / 2));
    granted(&quorum, "c").await;
}

#[tokio::test(start_paused = true)]
async fn split_votes_are_retried_after_a_short_random_pause() {
    for _ in 0..50 {
        let fleet = Fleet::new(3);
        let quorum = fleet.quorum();
        granted(&fleet.nodes[1], "rival").await;
        fleet.faults[2].always(Verb::Acquire, Fault::hang_before());
        let pause = busy(&quorum, "a").await.unwrap();
        assert!((2 * MS..=20 * MS).contains(&pause), "{pause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_no_node_wakes_asks_again_after_a_random_part_of_a_tenth_of_a_second() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    ask(&quorum, writer("holder")).await.unwrap();
    for n in 0..50 {
        let answer = ask(&quorum, writer(&format!("waiter {n}"))).await.unwrap();
        let Attempt::Busy { retry_after: Some(pause), .. } = answer else { panic!("{answer:?}") };
        assert!((20 * MS..=100 * MS).contains(&pause), "{pause:?}");
    }
}
