//! What a quorum says of itself: capabilities, name, options, what the doctor finds.

use std::sync::Arc;
use std::time::Duration;

use crate::scripted::{ScriptedNode, quorum_of};
use crate::support::*;
use distlock_core::ErrorKind;
use distlock_core::quorum::{Quorum, QuorumOptions};
use distlock_core::store::{LeaseStore, Level, Store};
use distlock_core::{Kind, Resource};

#[test]
fn a_quorum_pushes_only_if_every_majority_has_a_node_that_can() {
    for (nodes, silent, push) in
        [(1, 0, true), (1, 1, false), (3, 0, true), (3, 1, true), (3, 2, false), (5, 2, true), (5, 3, false)]
    {
        let mut nodes = ScriptedNode::several(nodes);
        nodes.iter_mut().take(silent).for_each(|node| node.push = false);
        assert_eq!(quorum_of(&nodes).capabilities().push, push, "{silent} of {} cannot push", nodes.len());
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_quorum_cannot_carry_is_refused_by_its_name() {
    let quorum = quorum_of(&ScriptedNode::several(3));
    for (kind, name) in [(Kind::Semaphore, "semaphores"), (Kind::FairQueue, "fair mutexes")] {
        let mut claim = claim("a");
        claim.resource = Resource::new(kind, "m").unwrap();
        let error = ask(&quorum, claim).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_quorum_is_described_by_its_nodes() {
    assert_eq!(quorum_of(&ScriptedNode::several(3)).describe(), "quorum of 3 (server 1, server 2, server 3)");
}

#[test]
fn a_node_time_out_that_no_network_meets_or_no_lock_bears_is_refused() {
    let minute = Duration::from_secs(60);
    for good in [MS, 200 * MS, minute] {
        let options = QuorumOptions::new().node_timeout(good).unwrap();
        assert!(format!("{options:?}").contains(&format!("node_timeout: {good:?}")), "{options:?}");
    }
    for bad in [Duration::ZERO, MS - Duration::from_nanos(1), minute + Duration::from_nanos(1)] {
        let error = QuorumOptions::new().node_timeout(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_doctor_counts_the_nodes_that_may_fail() {
    for (count, level, spare) in [
        (2, Level::Warning, "no failed node"),
        (3, Level::Ok, "1 failed node"),
        (4, Level::Warning, "1 failed node"),
        (5, Level::Ok, "2 failed node"),
    ] {
        let findings = quorum_of(&ScriptedNode::several(count)).doctor().await.unwrap();
        let findings: Vec<_> = findings.iter().filter(|found| !found.what.starts_with("node")).collect();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].level, level);
        let text = &findings[0].what;
        assert!(text.contains(&format!("quorum of {count}")) && text.contains(spare), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_doctor_notices_two_nodes_on_one_server_and_nodes_that_forget() {
    let mut nodes = ScriptedNode::several(3);
    nodes[2].name = nodes[0].name.clone();
    nodes[1].durable = false;
    let findings = quorum_of(&nodes).doctor().await.unwrap();
    let text: String = findings.iter().map(|finding| format!("{}\n", finding.what)).collect();
    assert!(text.contains("more than one node is \"server 1\""), "{text}");
    assert!(text.contains("some nodes forget"), "{text}");
}

#[test]
fn the_same_node_twice_is_refused() {
    let node: Arc<dyn LeaseStore> = ScriptedNode::new("server").store();
    let other = ScriptedNode::new("server").store();
    assert!(Quorum::new(vec![Arc::clone(&node), Arc::clone(&other)]).is_ok());
    let error = Quorum::new(vec![Arc::clone(&node), other, node]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}
