//! `--timeout` holds from the start of the program, connecting included, whatever the server does. Likewise `--max-hold`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{Sandbox, code, sh, stderr};

/// What a busy machine may add to a limit: starting the program and ending it.
const BUSY_MACHINE: Duration = Duration::from_millis(1500);

/// A server that accepts connections and never answers, as one that is stopped.
fn silent_server() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn a_server_that_never_answers_does_not_stretch_the_time_limit() {
    let sandbox = Sandbox::new();
    let (server, second) = (silent_server(), silent_server());
    let (address, other) = (server.local_addr().unwrap(), second.local_addr().unwrap());
    for url in [
        format!("redis://{address}"),
        format!("redlock://{address},{other}"),
        format!("mongodb://{address}/app"),
        format!("postgres://me@{address}/app"),
        format!("postgres+advisory://me@{address}/app"),
    ] {
        let begun = Instant::now();
        let mut run = sandbox.distlock();
        let done = run.args(["--store", &url, "run", "--timeout", "300ms", "x", "true"]).output().unwrap();
        let took = begun.elapsed();
        assert_eq!(code(&done), 69, "{url}: {}", stderr(&done));
        assert!(took < Duration::from_millis(450) + BUSY_MACHINE, "{url}: {took:?}");
        assert!(stderr(&done).contains("within"), "{url}: {}", stderr(&done));
    }
}

#[test]
fn a_store_that_stops_answering_does_not_stretch_the_time_limit() {
    let sandbox = Sandbox::new();
    for fault in ["acquire.hang", "release.hang"] {
        let mut run = sandbox.leased();
        sandbox.fault(fault);
        let holder = (fault == "release.hang").then(|| sandbox.hold(sandbox.leased().args(["run", "x"])));
        let begun = Instant::now();
        let done = run.args(["run", "--timeout", "300ms", "x", "true"]).output().unwrap();
        let took = begun.elapsed();
        assert_eq!(code(&done), if holder.is_some() { 75 } else { 69 }, "{fault}: {}", stderr(&done));
        assert!(took < Duration::from_millis(700) + BUSY_MACHINE, "{fault}: {took:?}");
        sandbox.clear_fault(fault);
    }
}

#[test]
fn a_lock_is_lost_after_the_longest_hold_and_the_command_is_stopped() {
    let sandbox = Sandbox::new();
    for mut command in [sandbox.leased(), sandbox.distlock()] {
        let begun = Instant::now();
        let done = command
            .args(["run", "--max-hold", "700ms", "--expiry", "1s", "x"])
            .args(sh("exec sleep 60"))
            .output()
            .unwrap();
        assert_eq!(code(&done), 76, "{}", stderr(&done));
        let took = begun.elapsed();
        // Where the lock ends with its session, the command is stopped shortly before that.
        assert!(took >= Duration::from_millis(400) && took < common::LIMIT, "{took:?}: {}", stderr(&done));
    }
}

#[test]
fn a_line_is_run_by_the_shell_and_a_label_names_the_holder() {
    let sandbox = Sandbox::new();
    let line = r#"printf '%s ' "$DISTLOCK_NAME"; "$BINARY" ls --json; exit 3"#;
    let done = sandbox
        .distlock()
        .env("BINARY", common::BINARY)
        .args(["run", "--label", "deploy-7", "x", "-c", line])
        .output()
        .unwrap();
    assert_eq!(code(&done), 3, "{}", stderr(&done));
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.starts_with("x [") && said.contains(r#""holder": "deploy-7""#), "{said}");
    let both = sandbox.distlock().args(["run", "x", "-c", "true", "--", "true"]).output().unwrap();
    assert_eq!(code(&both), 64, "{}", stderr(&both));
}
