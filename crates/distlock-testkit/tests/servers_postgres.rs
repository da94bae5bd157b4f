//! PostgreSQL servers start, break and come back as the tests of stores rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use distlock_testkit::servers::{PostgresPair, PostgresServer, wait_for};

#[test]
fn a_server_keeps_its_data_across_kill_and_restart() {
    let begin = Instant::now();
    let server = PostgresServer::start();
    eprintln!("server ready after {:?}", begin.elapsed());
    assert_eq!(server.url(), format!("postgres://postgres@127.0.0.1:{}/postgres", server.port()));
    server.sql("CREATE TABLE t (v int); INSERT INTO t VALUES (1)");
    let begin = Instant::now();
    server.kill();
    assert!(server.try_sql("SELECT 1").is_err());
    server.start_again();
    eprintln!("killed and restarted in {:?}", begin.elapsed());
    assert_eq!(server.value("SELECT count(*) FROM t"), "1");

    // A session that stays open does not keep the server from stopping.
    let _session = server.connect().unwrap();
    let begin = Instant::now();
    server.restart();
    eprintln!("stopped and restarted in {:?}", begin.elapsed());
    assert_eq!(server.value("SELECT count(*) FROM t"), "1");
}

#[test]
fn a_killed_server_ends_its_sessions_in_the_middle_of_a_statement() {
    let server = PostgresServer::start();
    let mut session = server.connect().unwrap();
    let port = server.port();
    let sleeper = std::thread::spawn(move || session.query("SELECT pg_sleep(60)"));
    wait_for("the statement runs", Duration::from_secs(5), || {
        (server.value(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%sleep(60)' AND state = 'active'",
        ) == "1")
            .then_some(())
    });
    let begin = Instant::now();
    server.kill();
    assert!(sleeper.join().unwrap().is_err());
    assert!(begin.elapsed() < Duration::from_secs(2));
    server.start_again();
    assert_eq!(server.port(), port);
    assert_eq!(server.value("SELECT 'back'"), "back");
}

#[test]
fn a_frozen_server_stops_all_its_sessions_and_they_go_on_when_thawed() {
    let server = PostgresServer::start();
    let mut session = server.connect().unwrap();
    session.query("SET application_name = 'kept'").unwrap();
    server.pause();
    assert!(server.is_paused());
    assert!(server.try_sql("SELECT 1").is_err(), "no new session");
    assert!(session.query("SELECT 1").is_err(), "no answer in an old one");
    server.resume();
    assert_eq!(server.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kept'"), "1");
    server.pause();
    server.kill();
    server.start_again();
    assert_eq!(server.value("SELECT 1"), "1");
}

#[test]
fn settings_are_taken_and_errors_are_told() {
    let server = PostgresServer::configure().setting("max_connections", "7").start();
    assert_eq!(server.value("SHOW max_connections"), "7");
    assert_eq!(server.sql("SELECT NULL, 'a' UNION ALL SELECT 'b', ''").len(), 2);
    let error = server.try_sql("SELECT no_such_column").unwrap_err().to_string();
    assert!(error.starts_with("42703: "), "{error}");
}

#[test]
fn the_clock_can_be_moved() {
    let server = PostgresServer::configure().movable_clock().start();
    for seconds in [86_400, -3_600, 0] {
        server.move_clock(seconds);
    }
}

#[test]
fn a_replica_follows_and_takes_over_when_promoted() {
    let begin = Instant::now();
    let pair = PostgresPair::start();
    eprintln!("pair ready after {:?}", begin.elapsed());
    pair.primary.sql("CREATE TABLE t (v int); INSERT INTO t VALUES (1)");
    pair.wait_replayed();
    assert_eq!(pair.replica.value("SELECT count(*) FROM t"), "1");
    assert!(pair.replica.try_sql("INSERT INTO t VALUES (2)").is_err(), "a replica takes no writes");

    let begin = Instant::now();
    pair.primary.kill();
    pair.promote();
    eprintln!("promoted in {:?}", begin.elapsed());
    pair.replica.sql("INSERT INTO t VALUES (2)");
    assert_eq!(pair.replica.value("SELECT count(*) FROM t"), "2");
    pair.replica.restart();
    assert_eq!(pair.replica.value("SELECT pg_is_in_recovery()"), "f", "it stays a primary");
}

#[test]
fn a_synchronous_primary_acknowledges_nothing_that_the_replica_lacks() {
    let pair = PostgresPair::start_synchronous();
    pair.primary.sql("CREATE TABLE t (v int)");
    pair.replica.pause();
    assert!(pair.primary.try_sql("INSERT INTO t VALUES (1)").is_err(), "not acknowledged");
    pair.replica.resume();
    pair.primary.sql("INSERT INTO t VALUES (2)");
}
