//! Acquiring from a quorum: a majority of all nodes or nothing, and no vote left behind.

use crate::support::*;
use distlock_core::faults::{Fault, Verb};
use distlock_core::quorum::Quorum;
use distlock_core::store::{Attempt, LeaseStore, Renewal, Store};
use distlock_core::{ErrorKind, Kind, Resource, WRITER_WEIGHT};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_minority_of_failed_nodes_is_tolerated() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    fleet.down(&[1, 3]);
    let start = Instant::now();
    granted(&quorum, "a").await;
    assert!(start.elapsed() < MS, "it did not wait for the failed nodes");
    assert_eq!(fleet.votes("a").await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_majority_is_counted_over_all_nodes_and_not_over_those_that_answer() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    fleet.down(&[0, 1, 2]);
    let error = ask(&quorum, claim("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("2 of 5") && text.contains("node 1") && text.contains("node 3"), "{text}");
    assert!(!text.contains("node 4"), "{text}");
    assert_eq!(fleet.votes("a").await, 0, "the votes of the others were undone");
}

#[tokio::test(start_paused = true)]
async fn an_outage_never_looks_like_contention_nor_contention_like_an_outage() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "a").await;
    rest(3 * SECOND).await;
    assert_eq!(busy(&quorum, "b").await, Some(7 * SECOND));
    fleet.down(&[0]);
    assert_eq!(busy(&quorum, "b").await, Some(7 * SECOND));
    fleet.down(&[1]);
    assert_eq!(ask(&quorum, claim("b")).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn slow_nodes_are_waited_for_before_an_outage_is_reported() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    granted(&quorum, "a").await;
    fleet.down(&[0]);
    fleet.faults[1].always_all(Fault::hang_before());
    fleet.faults[2].always_all(Fault::none().delay_after(10 * MS));
    // Two busy nodes and a failed one rule out a grant; only the slow node's answer makes it contention.
    assert!(busy(&quorum, "b").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn split_votes_are_withdrawn_and_retried_soon() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    for node in [0, 1] {
        granted(&fleet.nodes[node], "other").await;
    }
    fleet.down(&[4]);
    let again = busy(&quorum, "a").await.unwrap();
    assert!(again <= TIMEOUT, "no other client can have a majority: {again:?}");
    assert_eq!((fleet.votes("a").await, fleet.votes("other").await), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_due_when_enough_busy_nodes_become_free() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    for (node, seconds) in [(0, 2), (1, 4), (2, 6)] {
        let other = claim("other").with_expiry(seconds * SECOND);
        ask(&fleet.nodes[node], other).await.unwrap();
    }
    // Two votes are available, so the first busy node that becomes free is enough.
    assert_eq!(busy(&quorum, "a").await, Some(2 * SECOND));
    // With a node down one vote is available, so two busy nodes must become free.
    fleet.down(&[4]);
    assert_eq!(busy(&quorum, "a").await, Some(4 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_the_timeout_is_withdrawn() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&fleet.nodes[0], "other").await;
    granted(&fleet.nodes[1], "other").await;
    for pause in [Fault::none().delay_before(SECOND), Fault::none().delay_after(SECOND)] {
        fleet.faults[2].next(Verb::Acquire, 1, pause);
        // The first withdrawal is lost, so the late answer must cause another one.
        fleet.faults[2].next(Verb::Release, 1, Fault::fail());
        busy(&quorum, "a").await;
        rest(999 * MS).await;
        rest(2 * MS).await;
        assert_eq!(fleet.votes("a").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_reply_was_lost_is_withdrawn_even_if_that_takes_several_attempts() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.down(&[0]);
    fleet.faults[1].next(Verb::Acquire, 1, Fault::lost_reply());
    fleet.faults[1].next(Verb::Release, 3, Fault::fail());
    assert_eq!(ask(&quorum, claim("a")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(fleet.votes("a").await, 1);
    rest(SECOND).await;
    assert_eq!(fleet.votes("a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_late_vote_for_a_held_lock_is_kept_and_gets_the_token() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.clocks[0].jump(SECOND);
    fleet.faults[2].next(Verb::Acquire, 1, Fault::none().delay_after(200 * MS));
    let start = Instant::now();
    let token = granted(&quorum, "a").await;
    assert!(start.elapsed() < MS, "it did not wait for the slow node");
    rest(SECOND).await;
    assert_eq!(fleet.holder(2).await.unwrap().token, Some(token));
    assert_eq!(fleet.votes("a").await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_vote_that_arrives_after_the_release_is_withdrawn() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.faults[2].next(Verb::Acquire, 1, Fault::none().delay_before(SECOND));
    granted(&quorum, "a").await;
    release(&quorum, "a").await.unwrap();
    rest(2 * SECOND).await;
    assert_eq!(fleet.votes("a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn needed_nodes_that_hang_cost_their_timeout_and_no_more() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    for node in [0, 1, 2] {
        fleet.faults[node].always_all(Fault::hang_after());
    }
    let start = Instant::now();
    let error = ask(&quorum, claim("a")).await.unwrap_err();
    assert!(error.to_string().contains("3 without an answer within 4s"), "{error}");
    assert_eq!(start.elapsed(), NEEDED);
    assert_eq!(fleet.votes("a").await, 0, "also where it was applied");
}

#[tokio::test(start_paused = true)]
async fn a_late_withdrawal_does_not_hit_the_next_attempt_of_the_same_lock_id() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    // The first attempt gets one vote of three, and its withdrawal takes a second to arrive.
    fleet.faults[0].next(Verb::Acquire, 1, Fault::fail());
    fleet.faults[1].next(Verb::Acquire, 1, Fault::fail());
    fleet.faults[2].next(Verb::Release, 1, Fault::none().delay_before(SECOND));
    ask(&quorum, claim("a")).await.unwrap_err();
    // The second attempt is granted with the vote of that node.
    fleet.down(&[0]);
    rest(500 * MS).await;
    let mut second = ask(&quorum, claim("a")).await;
    while second.is_err() || matches!(second, Ok(Attempt::Busy { .. })) {
        rest(100 * MS).await;
        second = ask(&quorum, claim("a")).await;
    }
    let Ok(Attempt::Granted { token, .. }) = second else { panic!("{second:?}") };
    rest(2 * SECOND).await;
    assert_eq!(fleet.votes("a").await, 2);
    assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
    release(&quorum, "a").await.unwrap();
    assert_eq!(fleet.votes("a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_older_of_two_attempts_with_one_lock_id_undoes_itself() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    for faults in &fleet.faults {
        faults.next(Verb::Acquire, 1, Fault::none().delay_after(40 * MS));
    }
    let first = tokio::spawn({
        let quorum = quorum.clone();
        async move { ask(&quorum, claim("a")).await }
    });
    rest(10 * MS).await;
    // To the nodes the two are different clients, so they are never both granted.
    assert!(matches!(ask(&quorum, claim("a")).await, Ok(Attempt::Busy { .. })));
    assert!(matches!(first.await.unwrap(), Ok(Attempt::Busy { .. })));
    rest(SECOND).await;
    assert_eq!(fleet.votes("a").await, 0);
    granted(&quorum, "a").await;
}

#[tokio::test(start_paused = true)]
async fn a_release_during_an_attempt_ends_it() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    for faults in &fleet.faults {
        faults.next(Verb::Acquire, 1, Fault::none().delay_before(40 * MS));
    }
    let attempt = tokio::spawn({
        let quorum = quorum.clone();
        async move { ask(&quorum, claim("a")).await }
    });
    rest(10 * MS).await;
    release(&quorum, "a").await.unwrap();
    assert!(matches!(attempt.await.unwrap(), Ok(Attempt::Busy { .. })));
    assert_eq!(fleet.votes("a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_took_nearly_its_expiry_is_undone() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum_with(|options| options.min_validity(60 * MS));
    fleet.clocks[0].jump(SECOND);
    for faults in &fleet.faults {
        faults.next(Verb::Acquire, 1, Fault::none().delay_after(30 * MS));
        faults.next(Verb::Renew, 1, Fault::none().delay_before(15 * MS));
    }
    let short = claim("a").with_expiry(100 * MS);
    assert!(matches!(ask(&quorum, short.clone()).await, Ok(Attempt::Busy { .. })));
    assert_eq!(fleet.votes("a").await, 0);
    assert!(matches!(ask(&quorum, short).await, Ok(Attempt::Granted { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_claim_for_a_held_lock_is_recognised() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = granted(&quorum, "a").await;
    rest(8 * SECOND).await;
    assert_eq!(granted(&quorum, "a").await, token);
    rest(8 * SECOND).await;
    busy(&quorum, "b").await;
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_a_writer_conflicts_with_every_reader_on_some_node() {
    let fleet = Fleet::new(5);
    let quorum = fleet.quorum();
    let resource = Resource::new(Kind::RwLock, "rw").unwrap();
    let of = |id: &str, weight| {
        claim(id).with_resource(resource.clone()).with_weight(weight).with_capacity(WRITER_WEIGHT)
    };
    fleet.down(&[3, 4]);
    for reader in ["r1", "r2"] {
        assert!(matches!(ask(&quorum, of(reader, 1)).await, Ok(Attempt::Granted { .. })));
    }
    fleet.up(&[3, 4]);
    fleet.down(&[0, 1]);
    assert!(matches!(ask(&quorum, of("w", WRITER_WEIGHT)).await, Ok(Attempt::Busy { .. })));
}

#[tokio::test(start_paused = true)]
async fn unsound_locks_are_refused_alone_with_the_reason() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let permit = claim("p").with_resource(Resource::new(Kind::Semaphore, "s").unwrap()).with_capacity(2);
    let fair = claim("t").with_resource(Resource::new(Kind::FairQueue, "t").unwrap());
    let answers = quorum.try_acquire(&[permit, claim("a"), fair]).await.unwrap();
    let kinds: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().map(|e| e.kind())).collect();
    assert_eq!(kinds, [Some(ErrorKind::Unsupported), None, Some(ErrorKind::Unsupported)]);
    let text = answers[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("two permits on three nodes can admit three"), "{text}");
    assert!(!quorum.capabilities().semaphore && quorum.capabilities().rw_lock);
}

#[tokio::test(start_paused = true)]
async fn one_node_may_not_vote_twice() {
    let fleet = Fleet::new(1);
    let twin = vec![fleet.stores[0].clone(), fleet.stores[0].clone()];
    assert_eq!(Quorum::new(twin).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(Quorum::new(Vec::new()).unwrap_err().kind(), ErrorKind::InvalidInput);
}
