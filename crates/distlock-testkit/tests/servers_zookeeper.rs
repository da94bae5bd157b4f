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
fn an_ensemble_replaces_a_killed_leader_and_goes_on_without_an_isolated_follower() {
    let ensemble = ZookeeperEnsemble::start();
    let first = ensemble.leader();
    ensemble.nodes()[first].kill();
    let second = ensemble.leader();
    assert_ne!(first, second);
    ensemble.nodes()[first].start_again();
    ensemble.wait_complete();
    let follower = ensemble.follower();
    ensemble.isolate(follower);
    wait_for("the isolated follower stops serving", LIMIT, || {
        ensemble.nodes()[follower].mode().is_empty().then_some(())
    });
    assert_eq!(ensemble.leader(), second);
    ensemble.rejoin(follower);
    ensemble.wait_complete();
}
