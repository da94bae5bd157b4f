//! Telling the nodes the token of a grant: how often, how long, and which nodes.

use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{Query, Store};
use tokio::time::Instant;

use crate::support::*;

/// So many nodes whose clocks differ, so that each grants with another token; the last one with the highest.
fn fleet_with_different_tokens(nodes: usize) -> Fleet {
    let fleet = Fleet::new(nodes);
    for (clock, number) in fleet.clocks.iter().zip(0..) {
        clock.jump(number * SECOND);
    }
    fleet
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_does_not_hold_up_a_token_that_a_majority_knows() {
    let fleet = fleet_with_different_tokens(5);
    let quorum = fleet.quorum();
    fleet.faults[0].always(Verb::Renew, Fault::hang_before());
    let start = Instant::now();
    granted(&quorum, "a").await;
    assert!(start.elapsed() < MS, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn nodes_that_fail_once_to_learn_the_token_are_told_again() {
    let fleet = fleet_with_different_tokens(3);
    let quorum = fleet.quorum();
    for node in [0, 1] {
        fleet.faults[node].next(Verb::Renew, 1, Fault::fail());
    }
    let token = granted(&quorum, "a").await;
    rest(SECOND).await;
    let knows = fleet.holder(0).await.unwrap().token == Some(token)
        || fleet.holder(1).await.unwrap().token == Some(token);
    assert!(knows, "beside the node that granted it");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_cannot_learn_the_token_are_told_five_times_with_a_short_pause() {
    let fleet = fleet_with_different_tokens(3);
    let quorum = fleet.quorum();
    for node in [0, 1] {
        fleet.faults[node].always(Verb::Renew, Fault::fail());
    }
    let start = Instant::now();
    ask(&quorum, claim("a")).await.unwrap_err();
    // No pause before the second time: the nodes may be fine, and the connection was stale.
    assert_eq!(start.elapsed(), 3 * TIMEOUT / 5);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_slow_to_learn_the_token_is_waited_for_in_the_end() {
    let fleet = fleet_with_different_tokens(3);
    let quorum = fleet.quorum();
    // The third node never answers, so the token must be known to the first and the second.
    fleet.faults[2].always(Verb::Acquire, Fault::hang_before());
    fleet.faults[2].always(Verb::Renew, Fault::fail());
    fleet.faults[0].always(Verb::Renew, Fault::none().delay_after(4 * TIMEOUT));
    let start = Instant::now();
    let token = granted(&quorum, "a").await;
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    assert_eq!(fleet.holder(0).await.unwrap().token, Some(token));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_granted_in_the_meantime_is_told_although_another_one_failed_or_was_busy() {
    for rival in [false, true] {
        let fleet = fleet_with_different_tokens(5);
        let quorum = fleet.quorum();
        if rival {
            granted(&fleet.nodes[0], "rival").await;
        } else {
            fleet.faults[0].always_all(Fault::fail());
        }
        // The first to grant is behind and cannot learn the token; the second grants a moment later, and can.
        fleet.faults[1].next(Verb::Acquire, 1, Fault::none().delay_after(5 * MS));
        fleet.faults[2].always(Verb::Renew, Fault::fail());
        let token = granted(&quorum, "a").await;
        rest(SECOND).await;
        assert_eq!(fleet.holder(1).await.unwrap().token, Some(token), "rival on a node: {rival}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_learns_the_token_holds_up_no_node_that_grants_late() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.clocks[1].jump(SECOND);
    fleet.faults[0].always(Verb::Renew, Fault::hang_before());
    fleet.faults[2].next(Verb::Acquire, 1, Fault::none().delay_before(2 * TIMEOUT + 20 * MS));
    let start = Instant::now();
    let token = granted(&quorum, "a").await;
    assert!(start.elapsed() < 5 * TIMEOUT, "{:?}", start.elapsed());
    assert_eq!(fleet.holder(2).await.unwrap().token, Some(token));
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_with_the_same_token_costs_no_further_request() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.faults[2].next(Verb::Acquire, 1, Fault::none().delay_after(20 * MS));
    let token = granted(&quorum, "a").await;
    rest(SECOND).await;
    assert_eq!(fleet.holder(2).await.unwrap().token, Some(token));
    assert_eq!(fleet.nodes[2].stats().renew.requests, 0);
}

#[tokio::test(start_paused = true)]
async fn operators_see_the_token_of_the_majority_although_one_node_never_learned_it() {
    let fleet = fleet_with_different_tokens(3);
    let quorum = fleet.quorum();
    fleet.faults[0].always(Verb::Renew, Fault::fail());
    let token = granted(&quorum, "a").await;
    rest(SECOND).await;
    assert!(fleet.holder(0).await.unwrap().token < Some(token));
    let seen = quorum.inspect(&Query::default()).await.unwrap();
    assert_eq!(seen[0].holders[0].token, Some(token));
}

#[tokio::test(start_paused = true)]
async fn a_lone_vote_is_not_named_as_a_holder_that_was_broken() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&fleet.nodes[0], "lone").await;
    assert!(quorum.break_lock(&claim("x").resource).await.unwrap().is_empty());
    // With a node missing that may have voted for it too, it is.
    granted(&fleet.nodes[0], "lone").await;
    fleet.down(&[1]);
    assert_eq!(quorum.break_lock(&claim("x").resource).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn operators_see_every_waiter_once() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "holder").await;
    ask(&quorum, waiting("a")).await.unwrap();
    ask(&quorum, waiting("b")).await.unwrap();
    rest(SECOND).await;
    let seen = quorum.inspect(&Query::default()).await.unwrap();
    let mut ids: Vec<_> = seen[0].waiters.iter().map(|waiter| waiter.lock_id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["a", "b"]);
}
