//! Requests that nodes apply long after their time-out: a release that would hit a later attempt of the same lock id, a
//! repair that is already in flight, a vote that arrives during the write-back of the token.

use crate::support::*;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::Renewal;

/// A withdrawal times out after a second, and the next one is confirmed.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_that_arrives_after_another_was_confirmed_does_not_hit_the_next_attempt() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.faults[0].next(Verb::Acquire, 1, Fault::fail());
    fleet.faults[1].next(Verb::Acquire, 1, Fault::fail());
    fleet.faults[2].next(Verb::Release, 1, Fault::none().delay_before(10 * SECOND));
    ask(&quorum, claim("a")).await.unwrap_err();
    rest(3 * SECOND).await;
    assert_eq!(fleet.votes("a").await, 0, "the second withdrawal was confirmed");
    let token = granted(&quorum, "a").await;
    assert_eq!(fleet.votes("a").await, 3);
    rest(8 * SECOND).await;
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    assert_eq!(fleet.votes("a").await, 3, "the first one has arrived");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_arrives_after_another_was_confirmed_does_not_hit_the_next_attempt() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "a").await;
    fleet.faults[2].next(Verb::Release, 1, Fault::none().delay_before(20 * SECOND));
    release(&quorum, "a").await.unwrap();
    rest(8 * SECOND).await;
    assert_eq!(fleet.votes("a").await, 0, "the second release was confirmed");
    let token = granted(&quorum, "a").await;
    rest(5 * SECOND).await;
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    rest(8 * SECOND).await;
    assert_eq!(fleet.votes("a").await, 3, "the first one has arrived");
}

/// Within the time that a needed node has, and after it.
#[tokio::test(start_paused = true)]
async fn a_vote_that_was_cast_after_its_withdrawal_is_withdrawn_although_its_reply_was_lost() {
    for delay in [2 * SECOND, 2 * NEEDED] {
        let fleet = Fleet::new(3);
        let quorum = fleet.quorum();
        for node in [0, 1] {
            granted(&fleet.nodes[node], "rival").await;
        }
        fleet.faults[2].next(Verb::Acquire, 1, Fault::lost_reply().delay_before(delay));
        busy(&quorum, "a").await;
        rest(delay + SECOND).await;
        assert_eq!(fleet.nodes[2].stats().acquire.requests, 1, "{delay:?}: the claim arrived");
        assert_eq!(fleet.votes("a").await, 0, "{delay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_id_is_not_used_again_on_the_nodes_for_a_minute_after_an_unanswered_release() {
    for pause in [30, 59] {
        let fleet = Fleet::new(3);
        let quorum = fleet.quorum();
        granted(&quorum, "a").await;
        assert_eq!(fleet.holder(0).await.unwrap().lock_id.as_str(), "a");
        fleet.faults[2].next(Verb::Release, 1, Fault::lost_reply());
        release(&quorum, "a").await.unwrap();
        rest(pause * SECOND).await;
        granted(&quorum, "a").await;
        assert_eq!(fleet.holder(0).await.unwrap().lock_id.as_str(), "a~1", "after {pause} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_being_repaired_is_not_asked_again_by_every_renewal() {
    let mut fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = granted(&quorum, "a").await;
    fleet.forget(2);
    fleet.faults[2].always(Verb::Acquire, Fault::none().delay_before(SECOND));
    for _ in 0..9 {
        assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
        rest(100 * MS).await;
    }
    assert_eq!(fleet.votes("a").await, 2);
    rest(5 * SECOND).await;
    assert_eq!(fleet.votes("a").await, 3);
    assert_eq!(fleet.nodes[2].stats().acquire.requests, 1, "one repair for nine renewals");
    // After it has ended, another repair is possible.
    fleet.forget(2);
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    rest(5 * SECOND).await;
    assert_eq!(fleet.votes("a").await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_released_during_its_renewal_is_not_repaired() {
    let mut fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = granted(&quorum, "a").await;
    fleet.forget(2);
    for faults in &fleet.faults {
        faults.next(Verb::Renew, 1, Fault::none().delay_after(30 * MS));
    }
    let renewing = tokio::spawn({
        let quorum = quorum.clone();
        async move { renew(&quorum, "a", token).await }
    });
    rest(10 * MS).await;
    release(&quorum, "a").await.unwrap();
    assert_eq!(renewing.await.unwrap().unwrap(), Renewal::Renewed, "not repaired, since it was released");
    rest(SECOND).await;
    assert_eq!(fleet.nodes[2].stats().acquire.requests, 0);
}

#[tokio::test(start_paused = true)]
async fn a_vote_that_arrives_during_the_write_back_gets_the_token_too() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    // The first node's token is the largest. It is written to the second, and the third one grants meanwhile.
    fleet.clocks[0].jump(SECOND);
    fleet.faults[1].next(Verb::Renew, 1, Fault::none().delay_before(40 * MS));
    fleet.faults[2].next(Verb::Acquire, 1, Fault::none().delay_after(20 * MS));
    let token = granted(&quorum, "a").await;
    rest(SECOND).await;
    for node in 0..3 {
        assert_eq!(fleet.holder(node).await.unwrap().token, Some(token), "node {node}");
    }
}
