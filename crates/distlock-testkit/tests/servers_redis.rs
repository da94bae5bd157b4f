//! Redis and Valkey servers start, break and come back as the tests of stores rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use distlock_testkit::servers::redis::resp::{RedisConnection, Reply};
use distlock_testkit::servers::{RedisCluster, RedisSentinel, RedisServer, wait_for};

const QUICK: Duration = Duration::from_millis(200);

fn set(server: &RedisServer, key: &str, value: &str) {
    assert_eq!(server.command(&["SET", key, value]).text(), "OK");
}

#[test]
fn a_server_answers_and_two_servers_share_nothing() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    set(&one, "k", "v");
    assert_eq!(one.command(&["GET", "k"]), Reply::Text("v".into()));
    assert_eq!(two.command(&["GET", "k"]), Reply::Nil);
    assert_eq!(one.url(), format!("redis://127.0.0.1:{}", one.port()));
    assert!(one.is_running() && one.addr() != two.addr());
}

#[test]
fn a_killed_server_refuses_connections_until_started_again() {
    let server = RedisServer::start();
    set(&server, "k", "v");
    let port = server.port();
    server.kill();
    assert!(!server.is_running());
    assert!(RedisConnection::open(port, QUICK).is_err());
    server.start_again();
    assert_eq!(server.port(), port);
    assert_eq!(server.command(&["GET", "k"]), Reply::Nil, "it was started without persistence");
}

#[test]
fn appended_data_survive_kill_and_restart() {
    let server = RedisServer::configure().args(["--appendonly", "yes", "--appendfsync", "always"]).start();
    set(&server, "k", "v");
    server.kill();
    server.start_again();
    assert_eq!(server.command(&["GET", "k"]), Reply::Text("v".into()));
    server.restart();
    assert_eq!(server.command(&["GET", "k"]), Reply::Text("v".into()));
    server.stop();
    assert!(!server.is_running());
}

#[test]
fn a_frozen_server_keeps_its_connections_and_answers_when_thawed() {
    let server = RedisServer::start();
    let mut connection = RedisConnection::open(server.port(), QUICK).unwrap();
    assert_eq!(connection.command(&["PING"]).unwrap().text(), "PONG");
    server.pause();
    assert!(server.is_running() && server.is_paused());
    assert!(connection.command(&["PING"]).is_err(), "a paused server does not answer");
    server.resume();
    assert_eq!(connection.reply().unwrap().text(), "PONG", "the request was not lost");
    server.pause();
    server.stop();
    assert!(!server.is_running());
}

#[test]
fn a_dropped_server_is_gone_with_its_data() {
    let server = RedisServer::start();
    let (port, folder) = (server.port(), server.folder().to_path_buf());
    assert!(folder.exists());
    drop(server);
    assert!(RedisConnection::open(port, QUICK).is_err());
    assert!(!folder.exists());
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(RedisServer::start).join().unwrap();
    // The kernel would have killed it at the thread's end.
    assert_eq!(server.command(&["PING"]).text(), "PONG");
    assert!(server.is_running());
}

#[test]
#[should_panic(expected = "Bad directive or wrong number of arguments")]
fn a_server_that_does_not_start_shows_its_log() {
    let _ = RedisServer::configure().args(["--no-such-option", "1"]).start();
}

#[test]
fn five_masters_are_independent() {
    let begin = Instant::now();
    let servers = RedisServer::start_many(5);
    eprintln!("five masters ready after {:?}", begin.elapsed());
    for (i, server) in servers.iter().enumerate() {
        set(server, "k", &i.to_string());
        assert_eq!(server.info("role"), "master");
    }
    servers[0].kill();
    servers[1].pause();
    for (i, server) in servers.iter().enumerate().skip(2) {
        assert_eq!(server.command(&["GET", "k"]).text(), i.to_string());
    }
}

#[test]
fn valkey_answers_and_its_clock_can_be_moved() {
    let server = RedisServer::configure().valkey().movable_clock().start();
    assert!(!server.info("valkey_version").is_empty());
    for seconds in [86_400, -3_600, 0] {
        server.move_clock(seconds);
    }
}

#[test]
fn the_cluster_promotes_a_replica_when_a_master_dies() {
    let begin = Instant::now();
    let cluster = RedisCluster::start();
    eprintln!("cluster ready after {:?}", begin.elapsed());
    let old = cluster.master_of("k");
    set(old, "k", "v");
    assert_eq!(old.command(&["WAIT", "1", "2000"]), Reply::Integer(1));
    let begin = Instant::now();
    old.kill();
    // Looked for anew each time: on a busy machine a second fail-over may follow the first.
    let new = wait_for("the new master serves", Duration::from_secs(20), || {
        let new = cluster.master_of("k");
        let reply = new.command(&["GET", "k"]).text();
        eprintln!("{} says {reply:?}", new.name());
        (reply == "v").then_some(new)
    });
    eprintln!("cluster failover took {:?}", begin.elapsed());
    assert_ne!(new.port(), old.port());
    set(new, "k", "w");

    old.start_again();
    cluster.wait_healthy();
    wait_for("the old master is a replica now", Duration::from_secs(20), || {
        (old.info("role") == "slave" && old.info("master_link_status") == "up").then_some(())
    });
}

#[test]
fn the_sentinels_promote_a_replica_when_the_master_freezes() {
    let begin = Instant::now();
    let sentinel = RedisSentinel::start();
    eprintln!("sentinel ready after {:?}", begin.elapsed());
    let old = sentinel.master();
    set(old, "k", "v");
    assert_eq!(old.command(&["WAIT", "2", "2000"]), Reply::Integer(2));
    let begin = Instant::now();
    old.pause();
    let new = wait_for("another master", Duration::from_secs(20), || {
        let master = sentinel.master();
        (master.port() != old.port()).then_some(master)
    });
    eprintln!("sentinel failover took {:?}", begin.elapsed());
    assert_eq!(new.command(&["GET", "k"]).text(), "v");
    set(new, "k", "w");
}
