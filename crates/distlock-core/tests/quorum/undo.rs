//! What an attempt leaves on the nodes: nothing if it failed, its queue entry if it waits, and no request too many.

use crate::scripted::{ScriptedNode, quorum_of};
use crate::support::*;
use distlock_core::faults::{Fault, Verb};
use distlock_core::store::{Attempt, Query, Released, Renewal, Store};
use distlock_core::{ErrorKind, FencingToken};

#[tokio::test(start_paused = true)]
async fn a_vote_whose_reply_was_lost_is_gone_when_the_attempt_is_told_to_have_failed() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    for node in [1, 2] {
        granted(&fleet.nodes[node], "rival").await;
    }
    fleet.faults[0].next(Verb::Acquire, 1, Fault::lost_reply());
    busy(&quorum, "a").await;
    assert_eq!(fleet.votes("a").await, 0, "taken back before the answer, not some time later");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_refused_the_claim_is_asked_once_to_give_it_back() {
    for others in [Fault::none(), Fault::lost_reply()] {
        let nodes = ScriptedNode::several(3);
        let quorum = quorum_of(&nodes);
        granted(&nodes[2].memory, "rival").await;
        nodes[0].fail(Verb::Acquire, ErrorKind::Unavailable);
        nodes[0].fail(Verb::Release, ErrorKind::Unavailable);
        nodes[1].faults.next(Verb::Acquire, 1, others);
        let _ = ask(&quorum, claim("a")).await;
        rest(60 * SECOND).await;
        assert_eq!(nodes[0].releases().len(), 1, "it said that nothing was applied: {others:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_refuses_late_is_not_asked_again_to_give_back() {
    let nodes = ScriptedNode::several(3);
    let quorum = quorum_of(&nodes);
    for node in &nodes[1..] {
        granted(&node.memory, "rival").await;
    }
    nodes[0].faults.next(Verb::Acquire, 1, Fault::fail().delay_before(SECOND));
    busy(&quorum, "a").await;
    rest(10 * SECOND).await;
    assert_eq!(nodes[0].releases(), [["a"]]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_have_granted_is_asked_until_it_gives_back_although_another_refused() {
    let nodes = ScriptedNode::several(3);
    let quorum = quorum_of(&nodes);
    nodes[0].fail(Verb::Acquire, ErrorKind::Unavailable);
    nodes[1].faults.next(Verb::Acquire, 1, Fault::hang_after());
    nodes[1].fail(Verb::Release, ErrorKind::Unavailable);
    granted(&nodes[2].memory, "rival").await;
    ask(&quorum, claim("a").with_expiry(NEEDED / 2)).await.unwrap_err();
    rest(SECOND).await;
    assert!(nodes[1].releases().len() > 1, "{:?}", nodes[1].releases());
}

#[tokio::test(start_paused = true)]
async fn nodes_that_all_refused_are_all_asked_to_give_back() {
    let nodes = ScriptedNode::several(3);
    let quorum = quorum_of(&nodes);
    nodes.iter().for_each(|node| node.fail(Verb::Acquire, ErrorKind::Unavailable));
    ask(&quorum, claim("a")).await.unwrap_err();
    rest(SECOND).await;
    for node in &nodes {
        assert_eq!(node.releases(), [["a"]], "in case it is wrong");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_node_gave_back_is_not_asked_for_again_because_something_else_is_stuck_there() {
    let nodes = ScriptedNode::several(3);
    let quorum = quorum_of(&nodes);
    granted(&quorum, "a").await;
    release(&quorum, "a").await.unwrap();
    nodes[0].fail(Verb::Release, ErrorKind::Unavailable);
    for id in ["b", "c"] {
        granted(&quorum, id).await;
        release(&quorum, id).await.unwrap();
    }
    rest(10 * MS).await;
    // From now on only one of the two is stuck.
    nodes[0].stuck.lock().unwrap().push("b".to_owned());
    nodes[0].errors.lock().unwrap().clear();
    let before = nodes[0].releases().len();
    rest(10 * SECOND).await;
    let calls = nodes[0].releases().split_off(before);
    let asked = |id: &str| calls.iter().flatten().filter(|asked| *asked == id).count();
    assert_eq!(asked("c"), 1, "{calls:?}");
    assert!(asked("b") > 3, "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_leaves_the_queue_entry_of_a_waiter_that_still_waits() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    granted(&quorum, "holder").await;
    rest(MS).await;
    fleet.faults[2].next(Verb::Acquire, 1, Fault::none().delay_before(20 * MS));
    ask(&quorum, waiting("waiter")).await.unwrap();
    rest(SECOND).await;
    for node in &fleet.nodes {
        let records = node.inspect(&Query::named("m")).await.unwrap();
        assert_eq!(records[0].waiters.len(), 1, "it would not be woken by this node");
    }
}

#[tokio::test(start_paused = true)]
async fn asking_again_for_what_is_held_while_an_answer_is_missing_changes_nothing() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    fleet.faults[2].next(Verb::Acquire, 1, Fault::hang_before());
    let token = granted(&quorum, "a").await;
    for _ in 0..3 {
        assert_eq!(granted(&quorum, "a").await, token);
    }
    rest(SECOND).await;
    assert_eq!(fleet.votes("a").await, 3);
    assert!(matches!(release(&quorum, "a").await.unwrap(), Released::Done { .. }));
    rest(SECOND).await;
    assert_eq!(fleet.votes("a").await, 0);
}

/// A lease that the nodes have under a later generation of its lock id, and no call about it in flight any more.
async fn later_generation(fleet: &Fleet, quorum: &distlock_core::quorum::Quorum) -> FencingToken {
    fleet.faults[0].next(Verb::Acquire, 1, Fault::none().delay_before(5 * SECOND));
    fleet.faults[1].next(Verb::Acquire, 1, Fault::fail());
    ask(quorum, claim("a")).await.unwrap_err();
    let token = granted(quorum, "a").await;
    let holder = fleet.holder(1).await.unwrap();
    assert_ne!(holder.lock_id.as_str(), "a");
    rest(6 * SECOND).await;
    token
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_later_generation_is_renewed_for_longer_than_its_first_expiry() {
    let fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = later_generation(&fleet, &quorum).await;
    for _ in 0..20 {
        assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
        rest(8 * SECOND).await;
    }
    assert!(matches!(release(&quorum, "a").await.unwrap(), Released::Done { .. }));
    rest(SECOND).await;
    assert_eq!(fleet.votes("a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_forgets_twice_is_repaired_twice() {
    let mut fleet = Fleet::new(3);
    let quorum = fleet.quorum();
    let token = later_generation(&fleet, &quorum).await;
    for _ in 0..3 {
        fleet.forget(1);
        assert_eq!(renew(&quorum, "a", token).await.unwrap(), Renewal::Renewed);
        rest(SECOND).await;
        assert_eq!(fleet.votes("a").await, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_two_generations_leaves_every_queue_although_a_node_fails_at_first() {
    let nodes = ScriptedNode::several(3);
    let quorum = quorum_of(&nodes);
    granted(&quorum, "holder").await;
    rest(MS).await;
    // The answer of one node is missing when the next attempt begins: it goes out under another generation.
    nodes[2].faults.next(Verb::Acquire, 1, Fault::none().delay_after(20 * MS));
    for _ in 0..2 {
        assert!(matches!(ask(&quorum, waiting("waiter")).await.unwrap(), Attempt::Busy { .. }));
    }
    nodes[0].stuck.lock().unwrap().push("waiter".to_owned());
    release(&quorum, "waiter").await.unwrap();
    rest(SECOND).await;
    let tries = |node: &ScriptedNode| node.releases().iter().filter(|ids| *ids == &["waiter"]).count();
    assert!(tries(&nodes[0]) > 2, "{:?}", nodes[0].releases());
    nodes[0].stuck.lock().unwrap().clear();
    rest(5 * SECOND).await;
    let done: Vec<usize> = nodes.iter().map(|node| node.releases().len()).collect();
    rest(60 * SECOND).await;
    let later: Vec<usize> = nodes.iter().map(|node| node.releases().len()).collect();
    assert_eq!(done, later, "no request once all have confirmed");
}
