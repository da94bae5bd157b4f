//! Exit codes that scripts rely on: contention, an outage, a lost lock and wrong usage are never mistaken for one
//! another or for what the command said.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{Background, Place, code, sh, stderr};

#[test]
fn the_code_of_the_command_is_ours() {
    let place = Place::new();
    for wanted in [0, 1, 3, 64, 69, 75, 76, 255] {
        let done = place.distlock().args(["run", "x"]).args(sh(&format!("exit {wanted}"))).output().unwrap();
        assert_eq!(code(&done), wanted, "{}", stderr(&done));
        assert_eq!(stderr(&done), "", "nothing to say");
    }
    assert!(place.is_free("x"));
}

#[test]
fn a_command_ended_by_a_signal_counts_as_shells_count() {
    let place = Place::new();
    for (signal, wanted) in [("TERM", 143), ("KILL", 137), ("INT", 130), ("SEGV", 139)] {
        let done =
            place.distlock().args(["run", "x"]).args(sh(&format!("kill -{signal} $$"))).output().unwrap();
        assert_eq!(code(&done), wanted, "{signal}: {}", stderr(&done));
    }
    assert!(place.is_free("x"));
}

#[test]
fn a_command_that_is_not_there_takes_no_lock() {
    let place = Place::new();
    fs::write(place.path("no-mode"), "#!/bin/sh\n").unwrap();
    for (command, wanted) in
        [("no-such-command", 127), ("./no-such-file", 127), ("./no-mode", 126), ("/tmp", 126)]
    {
        // With a store that nobody can reach: the command is looked for first.
        place.fault("connect.fail");
        let done =
            place.distlock().args(["--store", &place.lease_url(), "run", "x", command]).output().unwrap();
        assert_eq!(code(&done), wanted, "{command}: {}", stderr(&done));
        assert!(stderr(&done).contains(command) && stderr(&done).lines().count() == 1, "{}", stderr(&done));
    }
}

#[test]
fn a_command_that_turns_out_not_to_run_leaves_nothing_held() {
    let place = Place::new();
    for (name, text, wanted) in
        [("bad-interpreter", "#!/no/such/interpreter\n", 127), ("locked-interpreter", "#!/etc/passwd\n", 126)]
    {
        fs::write(place.path(name), text).unwrap();
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        let done = place.distlock().args(["run", "x", "--", &format!("./{name}")]).output().unwrap();
        assert_eq!(code(&done), wanted, "{name}: {}", stderr(&done));
        assert!(stderr(&done).contains(name), "{}", stderr(&done));
        assert!(place.is_free("x"));
    }
}

#[test]
fn a_busy_lock_is_75_or_what_was_asked_for() {
    let place = Place::new();
    let mut holder = place.distlock();
    let holder = Background::start(holder.args(["run", "x"]).args(sh("echo > held; exec sleep 60")));
    place.wait_for_file("held");
    for (options, wanted) in [
        (&["--no-wait"][..], 75),
        (&["-n"], 75),
        (&["--timeout", "0s"], 75),
        (&["--timeout", "50ms"], 75),
        (&["--no-wait", "-E", "9"], 9),
        (&["--timeout", "50ms", "--conflict-exit-code", "0"], 0),
    ] {
        let done =
            place.distlock().arg("run").args(options).args(["x", "--", "touch", "ran"]).output().unwrap();
        assert_eq!(code(&done), wanted, "{options:?}: {}", stderr(&done));
        assert!(stderr(&done).contains("\"x\"") && stderr(&done).lines().count() == 1, "{}", stderr(&done));
        let quiet = place
            .distlock()
            .args(["run", "-q"])
            .args(options)
            .args(["x", "--", "touch", "ran"])
            .output()
            .unwrap();
        assert_eq!((code(&quiet), stderr(&quiet)), (wanted, String::new()));
    }
    assert!(!place.path("ran").exists());
    drop(holder);
}

#[test]
fn a_store_that_fails_is_69_and_never_looks_like_contention() {
    let place = Place::new();
    let run = |place: &Place| {
        place.leased().args(["run", "--no-wait", "-E", "9", "x", "--", "touch", "ran"]).output().unwrap()
    };
    place.fault("acquire.fail");
    let done = run(&place);
    assert_eq!(code(&done), 69, "{}", stderr(&done));
    assert!(stderr(&done).contains("cannot acquire mutex \"x\" on test store"), "{}", stderr(&done));
    place.mend("acquire.fail");
    place.fault("connect.fail");
    for command in [&["run", "x", "true"][..], &["ls"], &["show", "x"], &["break", "x", "--yes"], &["doctor"]]
    {
        let done = place.distlock().args(["--store", &place.lease_url()]).args(command).output().unwrap();
        assert_eq!(code(&done), 69, "{command:?}: {}", stderr(&done));
        assert_eq!(stderr(&done).lines().count(), 1, "{}", stderr(&done));
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn wrong_names_urls_and_kinds_are_64_before_anything_is_asked() {
    let place = Place::new();
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
        let done = place.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), 64, "{args:?}: {}", stderr(&done));
        assert_eq!(stderr(&done).lines().count(), 1, "{}", stderr(&done));
    }
    let args = ["run", "--expiry", "10s", "--extend-every", "9950ms", "x", "true"];
    let done = place.distlock().args(args).output().unwrap();
    assert!(stderr(&done).contains("a cadence of at most 7.5s"), "{}", stderr(&done));
    let done = place.leased().args(["run", "--read", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 64, "unsupported: {}", stderr(&done));
}

#[test]
fn another_number_of_permits_is_a_mistake_and_not_contention() {
    let place = Place::new();
    let mut holder = place.distlock();
    let _holder =
        Background::start(holder.args(["run", "--of", "4", "x"]).args(sh("echo > held; exec sleep 60")));
    place.wait_for_file("held");
    let done = place.distlock().args(["run", "--of", "5", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 64, "{}", stderr(&done));
    let done = place
        .distlock()
        .args(["run", "--no-wait", "--permits", "4", "--of", "4", "x", "true"])
        .output()
        .unwrap();
    assert_eq!(code(&done), 75, "{}", stderr(&done));
    let done = place
        .distlock()
        .args(["run", "--no-wait", "--permits", "3", "--of", "4", "x", "true"])
        .output()
        .unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
}
