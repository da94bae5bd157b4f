//! Renewing and releasing over a quorum: counted over all nodes; a renewal never acquires or releases.

use crate::support::*;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{Attempt, LeaseStore, Released, Renewal};
use distlock_core::{ErrorKind, FencingToken};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_renewal_is_counted_over_all_nodes_and_not_over_the_nodes_that_granted() {
    let mut fleet = Fleet::new(5);
    let quorum = fleet.quorum_with(|options| options.repair(false));
    fleet.down(&[3, 4]);
    let token = granted(&quorum, "a").await;
    fleet.up(&[3, 4]);
    // Two of the three nodes that granted renew: no majority of five, and another client may have the other nodes.
    fleet.forget(2);
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::NotYours);
    granted(&quorum, "b").await;
}

#[tokio::test(start_paused = true)]
async fn failed_nodes_are_an_error_to_retry_and_not_a_loss() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = granted(&quorum, "a").await;
    fleet.down(&[0]);
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    fleet.faults[1].always(Verb::Renew, Fault::hang_before());
    let start = Instant::now();
    let error = renew(&quorum, "a", token).await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed()), (ErrorKind::Unavailable, NEEDED));
    assert!(error.to_string().contains("node 1") && error.can_retry(), "{error}");
    assert_eq!(fleet.votes("a").await, 3, "a failed renewal releases nothing");
    fleet.up(&[0, 1]);
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_acquires_no_lock_not_even_a_free_one() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = granted(&quorum, "a").await;
    rest(EXPIRY).await;
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::NotYours);
    rest(SECOND).await;
    assert_eq!(fleet.votes("a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_repaired_vote_does_not_count_for_the_renewal_that_repaired_it() {
    let mut fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = granted(&quorum, "a").await;
    fleet.forget(0);
    fleet.forget(1);
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::NotYours);
    rest(SECOND).await;
    assert_eq!(fleet.votes("a").await, 1, "a lease without a majority is not repaired");
}

#[tokio::test(start_paused = true)]
async fn a_held_lock_survives_the_restart_of_every_node_one_after_the_other() {
    let mut fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    fleet.clocks[0].jump(3600 * SECOND);
    let token = granted(&quorum, "a").await;
    for node in [0, 1, 2, 3, 4, 0] {
        fleet.forget(node);
        busy(&quorum, "b").await;
        assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
        rest(SECOND).await;
        assert_eq!(fleet.votes("a").await, 5);
    }
    // Only the node whose clock was ahead could have granted such a token again.
    fleet.down(&[0]);
    release(&quorum, "a").await.unwrap();
    assert!(granted(&quorum, "b").await > token);
}

#[tokio::test(start_paused = true)]
async fn without_repair_the_same_restarts_lose_the_lock() {
    let mut fleet = Fleet::new(5);
    let quorum = fleet.quorum_with(|options| options.repair(false));
    let token = granted(&quorum, "a").await;
    for node in [0, 1] {
        fleet.forget(node);
        assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    }
    fleet.forget(2);
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::NotYours);
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_is_applied_after_the_release_is_withdrawn() {
    for pause in [Fault::none().delay_before(SECOND), Fault::none().delay_after(SECOND)] {
        let mut fleet = Fleet::new(3);
        let quorum = fleet.quorum();
        let token = granted(&quorum, "a").await;
        fleet.forget(0);
        fleet.faults[0].next(Verb::Acquire, 1, pause);
        assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
        rest(100 * MS).await;
        release(&quorum, "a").await.unwrap();
        rest(2 * SECOND).await;
        assert_eq!(fleet.votes("a").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repair_takes_no_lock_from_another_client() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&fleet.nodes[0], "other").await;
    let token = granted(&quorum, "a").await;
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    rest(SECOND).await;
    assert_eq!((fleet.votes("a").await, fleet.votes("other").await), (2, 1));
    rest(EXPIRY - SECOND - MS).await;
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    rest(SECOND).await;
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    rest(MS).await;
    assert_eq!(fleet.votes("a").await, 3, "once the other client's vote is gone, the node is repaired");
}

#[tokio::test(start_paused = true)]
async fn a_release_reaches_a_failed_node_as_soon_as_it_is_back() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "a").await;
    fleet.down(&[1]);
    assert!(matches!(release(&quorum, "a").await, Ok(Released::Done { .. })));
    rest(3 * SECOND).await;
    assert_eq!(fleet.votes("a").await, 1);
    fleet.up(&[1]);
    rest(SECOND).await;
    assert_eq!(fleet.votes("a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_a_majority_and_for_no_other_node() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "a").await;
    fleet.faults[0].always(Verb::Release, Fault::none().delay_before(SECOND));
    let start = Instant::now();
    assert!(matches!(release(&quorum, "a").await, Ok(Released::Done { .. })));
    assert!(start.elapsed() < MS);
    rest(2 * SECOND).await;
    assert_eq!(fleet.votes("a").await, 0);

    granted(&quorum, "b").await;
    fleet.faults[0].always(Verb::Release, Fault::none().delay_before(5 * SECOND));
    fleet.faults[1].always(Verb::Release, Fault::hang_before());
    let start = Instant::now();
    assert!(release(&quorum, "b").await.unwrap_err().is_outcome_unknown());
    assert_eq!(start.elapsed(), NEEDED);
    rest(2 * SECOND).await;
    assert_eq!(fleet.votes("b").await, 1, "the slow node was asked too");
}

#[tokio::test(start_paused = true)]
async fn a_stale_lock_id_cannot_free_its_successor() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "a").await;
    rest(EXPIRY).await;
    granted(&quorum, "b").await;
    assert_eq!(release(&quorum, "a").await.unwrap(), Released::NotYours);
    assert_eq!(fleet.votes("b").await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_decided_item_by_item() {
    let mut fleet = Fleet::new(3);
    let quorum = fleet.quorum_with(|options| options.repair(false));
    let mut claims: Vec<_> = (0..100).map(|n| claim(&format!("id-{n}"))).collect();
    for (n, claim) in claims.iter_mut().enumerate() {
        claim.resource = distlock_core::Resource::new(distlock_core::Kind::Mutex, format!("m{n}")).unwrap();
    }
    fleet.nodes[0].try_acquire(&[claims[7].clone().with_lock_id(claim("x").lock_id)]).await.unwrap();
    fleet.nodes[1].try_acquire(&[claims[7].clone().with_lock_id(claim("x").lock_id)]).await.unwrap();
    let answers = quorum.try_acquire(&claims).await.unwrap();
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(matches!(answer, Ok(Attempt::Granted { .. })), n != 7, "{n}: {answer:?}");
    }
    let leases: Vec<_> =
        claims.iter().map(|claim| distlock_core::store::Lease::of(claim, FencingToken::new(1))).collect();
    fleet.forget(2);
    let renewed = quorum.renew(&leases).await.unwrap();
    assert!(renewed.iter().enumerate().all(|(n, r)| matches!(r, Ok(Renewal::Renewed)) == (n != 7)));
    let stats = fleet.nodes[0].stats();
    assert_eq!((stats.acquire.requests, stats.renew.requests, stats.release.requests), (2, 1, 0));
}
