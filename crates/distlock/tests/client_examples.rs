//! The examples with a client of the application run against real servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

use distlock_testkit::servers::{MongoReplicaSet, PostgresServer, RedisCluster, RedisServer};

fn run(example: &str, servers: &[String]) -> String {
    // Cargo builds the examples before it runs the tests, beside the folder that this test is in.
    let this_test = std::env::current_exe().unwrap();
    let program = this_test.ancestors().nth(2).unwrap().join("examples").join(example);
    let output = Command::new(&program).args(servers).output().unwrap_or_else(|error| {
        panic!("{program:?}: {error}; build it first: cargo build --examples --all-features")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{example}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn pools_of_postgresql() {
    let server = PostgresServer::start();
    for example in ["deadpool_postgres", "sqlx_postgres"] {
        let printed = run(example, &[server.url()]);
        assert!(printed.contains("written with token "), "{example}: {printed}");
    }
    assert_eq!(server.value("SELECT count(*) FROM deadpool_ledger"), "1");
    assert_eq!(server.value("SELECT count(*) FROM sqlx_ledger"), "1");
}

#[test]
fn a_client_of_mongodb() {
    let server = MongoReplicaSet::start(1);
    let printed = run("mongodb_client", &[server.url()]);
    assert!(printed.contains("changed 1 account"), "{printed}");
}

#[test]
fn connections_of_redis() {
    let server = RedisServer::start();
    let printed = run("redis_connection_manager", &[server.url()]);
    assert!(printed.contains("order 1 with token "), "{printed}");
    let cluster = RedisCluster::start();
    let printed = run("redis_cluster_connection", &cluster.urls());
    assert!(printed.contains("order 1 with token "), "{printed}");
}
