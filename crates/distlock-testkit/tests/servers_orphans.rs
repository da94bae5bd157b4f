//! No server outlives the test process, however that ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use distlock_testkit::servers::{DataFolder, PostgresServer, RedisServer, wait_for};

const ROLE: &str = "DISTLOCK_TESTKIT_VICTIM";

/// The test process that will be killed: starts servers, freezes one, says their process ids, and waits for its end.
fn victim() {
    let redis = RedisServer::start();
    let postgres = PostgresServer::start();
    let mut session = postgres.connect().unwrap();
    let backend = session.query("SELECT pg_backend_pid()").unwrap().remove(0).remove(0).unwrap();
    postgres.pause();
    println!("\nservers {} {} {backend}", redis.pid().unwrap(), postgres.pid().unwrap());
    println!("folders {} {}", redis.folder().display(), postgres.folder().display());
    std::io::stdout().flush().unwrap();
    std::thread::park();
}

#[test]
fn servers_die_with_a_killed_test_process_even_frozen_ones() {
    if std::env::var_os(ROLE).is_some() {
        return victim();
    }
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "servers_die_with_a_killed_test_process_even_frozen_ones", "--nocapture"])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("servers ")).expect("the victim says what it has started");
    let pids: Vec<&str> = line.split(' ').skip(1).collect();
    assert_eq!(pids.len(), 3, "{line}");
    assert!(pids.iter().all(|pid| alive(pid)), "all run: {line}");
    let folders =
        lines.find(|line| line.starts_with("folders ")).expect("the victim says where their data are");

    process.kill().unwrap();
    process.wait().unwrap();
    wait_for("all servers are gone", Duration::from_secs(10), || {
        (!pids.iter().any(|pid| alive(pid))).then_some(())
    });

    // The next test program that starts a server removes what they left.
    drop(DataFolder::create());
    assert!(!folders.split(' ').skip(1).any(|folder| Path::new(folder).exists()), "{folders}");
}

/// A zombie that was not waited for yet does not count.
fn alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
