//! What the error of a quorum says: how many nodes answered, what became of the others, and whether the outcome is known.

use crate::scripted::{ScriptedNode, quorum_of};
use crate::support::*;
use distlock_core::faults::{Fault, Verb};
use distlock_core::quorum::Quorum;
use distlock_core::store::LeaseStore;
use distlock_core::{Error, ErrorKind, FencingToken};

/// Five nodes, all of which have granted `a`.
async fn five() -> (Vec<ScriptedNode>, Quorum, FencingToken) {
    let nodes = ScriptedNode::several(5);
    let quorum = quorum_of(&nodes);
    let token = granted(&quorum, "a").await;
    rest(MS).await;
    (nodes, quorum, token)
}

fn hang(nodes: &[ScriptedNode], verb: Verb) {
    nodes.iter().for_each(|node| node.faults.always(verb, Fault::hang_before()));
}

fn fail(nodes: &[ScriptedNode], verb: Verb) {
    nodes.iter().for_each(|node| node.fail(verb, ErrorKind::Unavailable));
}

fn assert_counts(error: &Error, answered: usize, failed: usize, silent: usize) {
    let text = error.to_string();
    assert!(text.contains(&format!("{answered} of 5 nodes answered and 3 must")), "{text}");
    assert_eq!(text.matches("refused by the script").count(), failed, "{text}");
    match silent {
        0 => assert!(!text.contains("without an answer"), "{text}"),
        _ => assert!(text.contains(&format!("{silent} without an answer within")), "{text}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_acquisition_counts_answers_failures_and_silence() {
    for (failed, silent) in [(3, 0), (2, 1), (1, 2), (2, 2), (1, 4), (0, 3)] {
        let (nodes, quorum, _) = five().await;
        fail(&nodes[..failed], Verb::Acquire);
        hang(&nodes[failed..failed + silent], Verb::Acquire);
        let mut claim = claim("b");
        // A round ends at the expiry, before the calls that hang are given up one by one.
        claim.expiry = NEEDED;
        let error = ask(&quorum, claim).await.unwrap_err();
        assert_counts(&error, 5 - failed - silent, failed, silent);
        assert_eq!(error.to_string().contains("within 4s"), silent > 0, "how long it waited: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_counts_answers_failures_and_silence() {
    for (failed, silent, lost) in [(3, 0, 0), (3, 0, 2), (2, 1, 1), (1, 2, 0), (2, 2, 0), (1, 3, 1)] {
        let (nodes, quorum, token) = five().await;
        fail(&nodes[..failed], Verb::Renew);
        hang(&nodes[failed..failed + silent], Verb::Renew);
        for node in &nodes[5 - lost..] {
            release(&node.memory, "a").await.unwrap();
        }
        let error = renew(&quorum, "a", token).await.unwrap_err();
        assert_counts(&error, 5 - failed - silent, failed, silent);
        assert_eq!(error.is_outcome_unknown(), silent > 0, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_reply_was_lost_has_an_unknown_outcome() {
    let (nodes, quorum, token) = five().await;
    fail(&nodes[..2], Verb::Renew);
    nodes[2].faults.always(Verb::Renew, Fault::lost_reply());
    assert!(renew(&quorum, "a", token).await.unwrap_err().is_outcome_unknown());
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_counts_answers_failures_and_silence() {
    for (failed, silent, lost) in [(3, 0, 0), (3, 0, 2), (2, 1, 1), (1, 2, 0), (2, 2, 0), (3, 1, 0)] {
        let (nodes, quorum, _) = five().await;
        fail(&nodes[..failed], Verb::Release);
        for node in &nodes[5 - lost..] {
            release(&node.memory, "a").await.unwrap();
        }
        hang(&nodes[failed..failed + silent], Verb::Release);
        // A round ends at the expiry, before the calls that hang are given up one by one.
        let lease = lease("a", FencingToken::new(0)).with_expiry(NEEDED / 2);
        let error = quorum.release(&[lease]).await.unwrap().remove(0).unwrap_err();
        assert_counts(&error, 5 - failed - silent, failed, silent);
        // Silent nodes that cannot make a majority any more are not waited for as long.
        let waited = if failed < 3 { NEEDED / 2 } else { TIMEOUT };
        assert_eq!(error.to_string().contains(&format!("within {waited:?}")), silent > 0, "{error}");
        assert!(error.is_outcome_unknown());
    }
}

#[tokio::test(start_paused = true)]
async fn the_kind_of_the_error_is_the_nodes_only_if_all_that_failed_agree() {
    let denied = ErrorKind::Denied;
    for (kinds, silent, kind) in [
        (vec![denied; 5], 0, denied),
        (vec![denied, denied, ErrorKind::Unavailable], 0, ErrorKind::Unavailable),
        (vec![ErrorKind::Unavailable, denied, denied], 0, ErrorKind::Unavailable),
        (vec![denied, denied], 1, ErrorKind::Unavailable),
    ] {
        let nodes = ScriptedNode::several(5);
        for (node, kind) in nodes.iter().zip(&kinds) {
            node.fail(Verb::Acquire, *kind);
        }
        hang(&nodes[5 - silent..], Verb::Acquire);
        let mut claim = claim("b");
        claim.expiry = NEEDED;
        let error = ask(&quorum_of(&nodes), claim).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}
