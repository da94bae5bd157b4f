//! MongoDB servers and replica sets start, break and come back as the tests of stores rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io;
use std::time::{Duration, Instant};

use distlock_testkit::servers::mongodb::bson::{Document, Value};
use distlock_testkit::servers::{MongoReplicaSet, MongoServer, wait_for};

const LIMIT: Duration = Duration::from_secs(30);

/// Can be repeated: the first time it inserts, after that it changes nothing.
fn write(server: &MongoServer, id: &str) -> io::Result<()> {
    let id = Document::new("_id", id);
    let upsert = Document::new("q", id.clone()).with("u", id).with("upsert", true);
    let concern = Document::new("w", "majority").with("wtimeout", 1500);
    let update = Document::new("update", "c").with("updates", vec![upsert]).with("writeConcern", concern);
    let reply = server.command("test", &update)?;
    if reply.get("writeErrors").is_some() || reply.get("writeConcernError").is_some() {
        return Err(io::Error::other(format!("{reply:?}")));
    }
    Ok(())
}

fn count(server: &MongoServer, id: &str) -> i32 {
    let count = Document::new("count", "c").with("query", Document::new("_id", id));
    match server.command("test", &count).unwrap().get("n") {
        Some(Value::Int32(n)) => *n,
        other => panic!("{other:?} is no count"),
    }
}

#[test]
fn a_standalone_server_keeps_its_data_across_kill_and_restart() {
    let begin = Instant::now();
    let server = MongoServer::start();
    eprintln!("standalone ready after {:?}", begin.elapsed());
    write(&server, "a").unwrap();
    let begin = Instant::now();
    server.restart();
    eprintln!("standalone restarted in {:?}", begin.elapsed());
    assert_eq!(count(&server, "a"), 1);
    // Journaled, as every acknowledged majority write is.
    write(&server, "b").unwrap();
    server.kill();
    assert!(server.command("admin", &Document::new("ping", 1)).is_err());
    server.start_again();
    assert_eq!(count(&server, "b"), 1);
}

#[test]
fn a_frozen_server_answers_again_when_thawed() {
    let server = MongoServer::start();
    server.pause();
    assert!(server.command("admin", &Document::new("ping", 1)).is_err());
    server.resume();
    assert!(server.command("admin", &Document::new("ping", 1)).is_ok());
    server.stop();
}

#[test]
fn the_clock_can_be_moved() {
    let server = MongoServer::configure().movable_clock().start();
    for seconds in [86_400, -3_600, 0] {
        server.move_clock(seconds);
    }
}

#[test]
fn a_replica_set_of_one_has_a_primary_also_after_a_restart() {
    let begin = Instant::now();
    let set = MongoReplicaSet::start(1);
    eprintln!("one-node set ready after {:?}", begin.elapsed());
    write(set.primary(), "a").unwrap();
    let begin = Instant::now();
    set.members()[0].restart();
    assert_eq!(count(set.primary(), "a"), 1);
    eprintln!("one-node set restarted in {:?}", begin.elapsed());
    assert!(set.url().ends_with("/?replicaSet=rs0"));
}

#[test]
fn a_replica_set_of_three_elects_another_primary_and_keeps_majority_writes() {
    let begin = Instant::now();
    let set = MongoReplicaSet::start(3);
    eprintln!("three-node set ready after {:?}", begin.elapsed());

    let first = set.primary();
    write(first, "before the kill").unwrap();
    let begin = Instant::now();
    first.kill();
    let second = set.primary();
    eprintln!("failover after kill took {:?}", begin.elapsed());
    assert_ne!(first.port(), second.port());
    assert_eq!(count(second, "before the kill"), 1);
    first.start_again();
    set.wait_healthy();

    let begin = Instant::now();
    second.pause();
    let third = set.primary();
    eprintln!("failover after pause took {:?}", begin.elapsed());
    assert_ne!(second.port(), third.port());
    wait_for("a majority write", LIMIT, || write(third, "after the pause").ok());
    eprintln!("majority write after pause took {:?}", begin.elapsed());
    second.resume();
    wait_for("the old primary steps down", LIMIT, || {
        let hello = second.command("admin", &Document::new("hello", 1)).ok()?;
        hello.is_true("secondary").then_some(())
    });
}
