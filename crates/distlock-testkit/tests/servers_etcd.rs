//! etcd members start, break and come back as the tests of stores rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use distlock_testkit::servers::{EtcdCluster, EtcdServer, wait_for};

const LIMIT: Duration = Duration::from_secs(30);

fn value(server: &EtcdServer, key: &str) -> Option<String> {
    let found = server.try_etcdctl(&["get", "--print-value-only", "--command-timeout=1s", key]).ok()?;
    (!found.is_empty()).then(|| found.trim().to_owned())
}

fn write(server: &EtcdServer, value: &str) -> bool {
    server.try_etcdctl(&["put", "--command-timeout=1s", "k", value]).is_ok()
}

#[test]
fn a_member_keeps_its_data_across_kill_and_restart_and_answers_after_a_pause() {
    for next_version in [false, true] {
        let builder = EtcdServer::configure().durable();
        let server = if next_version { builder.next_version().start() } else { builder.start() };
        wait_for("a first write", LIMIT, || write(&server, "1").then_some(()));
        server.kill();
        assert!(!write(&server, "2"));
        server.start_again();
        assert_eq!(wait_for("the value", LIMIT, || value(&server, "k")), "1");
        server.pause();
        assert!(!write(&server, "3"));
        server.resume();
        wait_for("a write after the pause", LIMIT, || write(&server, "4").then_some(()));
        assert!(server.messages_received() > 0);
    }
}

#[test]
fn a_cluster_elects_another_leader_when_its_leader_is_cut_off_and_is_whole_again_afterwards() {
    let cluster = EtcdCluster::start();
    let leader = cluster.leader();
    let other = &cluster.members()[(leader + 1) % 3];
    let begin = Instant::now();
    cluster.cut_off(leader);
    let next = cluster.wait_for_leader_other_than(leader);
    eprintln!("another leader after {:?}", begin.elapsed());
    assert_ne!(next, leader);
    wait_for("a write of the majority", LIMIT, || write(other, "majority").then_some(()));
    assert!(!write(&cluster.members()[leader], "minority"), "the member that is cut off takes writes");
    cluster.reconnect();
    wait_for("a write of the member that is back", LIMIT, || {
        write(&cluster.members()[leader], "whole").then_some(())
    });
    assert_eq!(wait_for("the value", LIMIT, || value(other, "k")), "whole");
}
