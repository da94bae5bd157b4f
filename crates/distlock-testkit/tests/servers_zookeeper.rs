//! ZooKeeper servers start, break and recover.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use distlock_testkit::servers::{ZookeeperEnsemble, ZookeeperServer, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn one_server_starts_and_restarts_on_the_same_port() {
    let server = ZookeeperServer::start();
    assert_eq!(server.mode(), "standalone");
    let port = server.port();
    server.kill();
    assert_eq!(server.mode(), "");
    server.start_again();
    assert_eq!((server.mode().as_str(), server.port()), ("standalone", port));
    assert!(server.monitor("zk_packets_received").is_some());
}

#[test]
fn an_ensemble_replaces_a_killed_leader_and_drops_an_isolated_one() {
    let ensemble = ZookeeperEnsemble::start();
    let first = ensemble.leader();
    ensemble.nodes()[first].kill();
    let second = ensemble.leader();
    assert_ne!(first, second);
    ensemble.nodes()[first].start_again();
    ensemble.wait_complete();
    ensemble.isolate(second);
    let third = wait_for("another leader", LIMIT, || {
        ensemble
            .nodes()
            .iter()
            .enumerate()
            .find(|(node, server)| *node != second && server.mode() == "leader")
    });
    assert_ne!(third.0, second);
    wait_for("the isolated leader steps down", LIMIT, || {
        ensemble.nodes()[second].mode().is_empty().then_some(())
    });
    ensemble.rejoin(second);
    ensemble.wait_complete();
}
