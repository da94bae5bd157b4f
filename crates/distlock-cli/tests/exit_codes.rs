//! Hazard: a script mistakes contention, an outage, a lost lock, wrong usage or the command's own code for one another.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{Sandbox, code, sh, stderr};

#[test]
fn the_exit_code_of_the_command_is_returned() {
    let sandbox = Sandbox::new();
    for wanted in [0, 1, 3, 64, 69, 75, 76, 255] {
        let done =
            sandbox.distlock().args(["run", "x"]).args(sh(&format!("exit {wanted}"))).output().unwrap();
        assert_eq!(code(&done), wanted, "{}", stderr(&done));
        assert_eq!(stderr(&done), "", "unexpected message");
    }
    assert!(sandbox.is_free("x"));
}

#[test]
fn a_command_ended_by_a_signal_gives_128_plus_n() {
    let sandbox = Sandbox::new();
    for (signal, wanted) in [("TERM", 143), ("KILL", 137), ("INT", 130), ("SEGV", 139)] {
        let done =
            sandbox.distlock().args(["run", "x"]).args(sh(&format!("kill -{signal} $$"))).output().unwrap();
        assert_eq!(code(&done), wanted, "{signal}: {}", stderr(&done));
    }
    assert!(sandbox.is_free("x"));
}

#[test]
fn a_missing_command_acquires_no_lock() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("no-mode"), "#!/bin/sh\n").unwrap();
    for (command, wanted) in
        [("no-such-command", 127), ("./no-such-file", 127), ("./no-mode", 126), ("/tmp", 126)]
    {
        // On an unreachable store: the command is looked up first.
        sandbox.fault("connect.fail");
        let done =
            sandbox.distlock().args(["--store", &sandbox.lease_url(), "run", "x", command]).output().unwrap();
        assert_eq!(code(&done), wanted, "{command}: {}", stderr(&done));
        assert!(stderr(&done).contains(command) && stderr(&done).lines().count() == 1, "{}", stderr(&done));
    }
}

#[test]
fn a_command_that_cannot_be_executed_leaves_no_lock() {
    let sandbox = Sandbox::new();
    for (name, text, wanted) in
        [("bad-interpreter", "#!/no/such/interpreter\n", 127), ("locked-interpreter", "#!/etc/passwd\n", 126)]
    {
        fs::write(sandbox.path(name), text).unwrap();
        fs::set_permissions(sandbox.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        let done = sandbox.distlock().args(["run", "x", "--", &format!("./{name}")]).output().unwrap();
        assert_eq!(code(&done), wanted, "{name}: {}", stderr(&done));
        assert!(stderr(&done).contains(name), "{}", stderr(&done));
        assert!(sandbox.is_free("x"));
    }
}

#[test]
fn a_busy_lock_is_75_or_the_requested_code() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(sandbox.distlock().args(["run", "x"]));
    let label = format!(":{} for ", holder.pid());
    for (options, wanted) in [
        (&["--no-wait"][..], 75),
        (&["-n"], 75),
        (&["--timeout", "0s"], 75),
        (&["--timeout", "50ms"], 75),
        (&["--no-wait", "-E", "9"], 9),
        (&["--timeout", "50ms", "--conflict-exit-code", "0"], 0),
    ] {
        let done =
            sandbox.distlock().arg("run").args(options).args(["x", "--", "touch", "ran"]).output().unwrap();
        assert_eq!(code(&done), wanted, "{options:?}: {}", stderr(&done));
        let said = stderr(&done);
        assert!(said.contains("mutex \"x\"") && said.lines().count() == 1, "{said}");
        if options.iter().all(|option| *option != "50ms") {
            assert!(said.contains("mutex \"x\" is held by ") && said.contains(&label), "{said}");
        }
        let quiet = sandbox
            .distlock()
            .args(["run", "-q"])
            .args(options)
            .args(["x", "--", "touch", "ran"])
            .output()
            .unwrap();
        assert_eq!((code(&quiet), stderr(&quiet)), (wanted, String::new()));
    }
    assert!(!sandbox.path("ran").exists());
    drop(holder);
}

#[test]
fn a_failed_store_is_69_and_never_looks_like_contention() {
    let sandbox = Sandbox::new();
    let run = |sandbox: &Sandbox| {
        sandbox.leased().args(["run", "--no-wait", "-E", "9", "x", "--", "touch", "ran"]).output().unwrap()
    };
    sandbox.fault("acquire.fail");
    let done = run(&sandbox);
    assert_eq!(code(&done), 69, "{}", stderr(&done));
    assert!(stderr(&done).contains("cannot acquire mutex \"x\" on test store"), "{}", stderr(&done));
    sandbox.clear_fault("acquire.fail");
    sandbox.fault("connect.fail");
    for command in [&["run", "x", "true"][..], &["ls"], &["show", "x"], &["break", "x", "--yes"], &["doctor"]]
    {
        let done = sandbox.distlock().args(["--store", &sandbox.lease_url()]).args(command).output().unwrap();
        assert_eq!(code(&done), 69, "{command:?}: {}", stderr(&done));
        assert_eq!(stderr(&done).lines().count(), 1, "{}", stderr(&done));
    }
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn wrong_names_urls_and_kinds_are_64_before_a_request_is_sent() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(4097);
    for args in [
        &["run", "", "true"][..],
        &["run", &long, "true"],
        &["show", ""],
        &["break", "", "--yes"],
        &["--store", "nonsense", "ls"],
        &["--store", "gopher://h", "ls"],
        &["--store", "file:///tmp?distlock.oops=1", "ls"],
        &["--store", "memory:", "run", "--permits", "5", "--of", "4", "x", "true"],
        &["--store", "memory:", "run", "--permits", "0", "--of", "4", "x", "true"],
        &["run", "--expiry", "1ms", "x", "true"],
        &["run", "--extend-every", "30s", "x", "true"],
        &["run", "--expiry", "10s", "--extend-every", "9950ms", "x", "true"],
        &["run", "--expiry", "10s", "--extend-every", "1ms", "x", "true"],
        &["schema"],
    ] {
        let done = sandbox.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), 64, "{args:?}: {}", stderr(&done));
        assert_eq!(stderr(&done).lines().count(), 1, "{}", stderr(&done));
    }
    let args = ["run", "--expiry", "10s", "--extend-every", "9950ms", "x", "true"];
    let done = sandbox.distlock().args(args).output().unwrap();
    assert!(stderr(&done).contains("a cadence of at most 7.5s"), "{}", stderr(&done));
    let done = sandbox.leased().args(["run", "--read", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 64, "unsupported: {}", stderr(&done));
}

#[test]
fn another_capacity_is_wrong_usage_and_not_contention() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold(sandbox.distlock().args(["run", "--of", "4", "x"]));
    let done = sandbox.distlock().args(["run", "--of", "5", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 64, "{}", stderr(&done));
    let done = sandbox
        .distlock()
        .args(["run", "--no-wait", "--permits", "4", "--of", "4", "x", "true"])
        .output()
        .unwrap();
    assert_eq!(code(&done), 75, "{}", stderr(&done));
    let done = sandbox
        .distlock()
        .args(["run", "--no-wait", "--permits", "3", "--of", "4", "x", "true"])
        .output()
        .unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
}
