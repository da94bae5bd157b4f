//! Wake-ups of several nodes: one hint for each release, however many nodes name the waiter.

use crate::scripted::{ScriptedNode, quorum_of};
use crate::support::*;
use distlock_core::store::{Inbox, LeaseStore, Wake, WakeStream};
use futures_util::{FutureExt, StreamExt};

async fn subscribed() -> (Vec<ScriptedNode>, WakeStream) {
    let nodes = ScriptedNode::several(3);
    let stream = quorum_of(&nodes).subscribe(&Inbox::new("box")).await.unwrap();
    (nodes, stream)
}

/// What arrived up to now.
fn woken(stream: &mut WakeStream) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some(Some(wake)) = stream.next().now_or_never() {
        let Wake::Retry { lock_id, .. } = wake else { panic!("{wake:?}") };
        ids.push(lock_id.to_string());
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_all_nodes_name_is_woken_once() {
    let (nodes, mut stream) = subscribed().await;
    for node in &nodes {
        node.wake("a");
    }
    assert_eq!(woken(&mut stream), ["a"]);
    rest(SECOND).await;
    assert!(woken(&mut stream).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_second_release_right_after_the_first_wakes_the_waiter_again() {
    let (nodes, mut stream) = subscribed().await;
    for _ in 0..3 {
        for node in &nodes[..2] {
            node.wake("a");
        }
        assert_eq!(woken(&mut stream), ["a"], "without any time between the two");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hint_for_one_waiter_takes_nothing_from_the_hints_for_another() {
    let (nodes, mut stream) = subscribed().await;
    for id in ["a", "b", "b"] {
        nodes[0].wake(id);
    }
    assert!(woken(&mut stream).is_empty(), "one node is no majority");
    nodes[1].wake("a");
    nodes[1].wake("b");
    assert_eq!(woken(&mut stream), ["a", "b"]);
    // The third node's word on the same release is no new one.
    nodes[2].wake("a");
    nodes[2].wake("b");
    assert!(woken(&mut stream).is_empty());
    rest(SECOND).await;
    assert!(woken(&mut stream).is_empty());
}
