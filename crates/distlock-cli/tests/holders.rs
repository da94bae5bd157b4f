//! Hazard: an operator cannot find out who holds a lock, or finds a secret of the holder's command line instead.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Background, Sandbox, code, sh, stderr, stdout, wait_for};
use serde_json::Value;

fn shown(sandbox: &Sandbox, name: &str) -> Vec<Value> {
    let done = sandbox.distlock().args(["show", name, "--json"]).output().unwrap();
    serde_json::from_slice(&done.stdout).unwrap()
}

/// The name of the user that runs the tests.
fn user() -> String {
    nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name
}

#[test]
fn show_names_the_user_and_the_program_of_holder_and_waiter() {
    let sandbox = Sandbox::new();
    let _run = sandbox.hold(sandbox.distlock().args(["run", "x"]));
    let _waiter = Background::start(sandbox.distlock().args(["run", "x", "--", "/usr/bin/env", "true"]));
    let entries =
        wait_for("the waiter to be shown", || Some(shown(&sandbox, "x")).filter(|all| all.len() == 2));
    assert_eq!((entries[0]["user"].as_str(), entries[0]["command"].as_str()), (Some(&*user()), Some("sh")));
    assert_eq!((entries[1]["user"].as_str(), entries[1]["command"].as_str()), (Some(&*user()), Some("env")));
    let table = stdout(&sandbox.distlock().args(["show", "x"]).output().unwrap());
    let mut lines = table.lines();
    assert!(lines.next().unwrap().ends_with("USER  COMMAND"), "{table}");
    assert!(lines.next().unwrap().ends_with("sh") && table.contains(&user()), "{table}");
}

#[test]
fn an_argument_of_the_command_is_not_stored() {
    let sandbox = Sandbox::new();
    let script = "echo > held; exec sleep 60";
    for (options, command) in [
        (&["-c", "S=s3cret; echo > held; exec sleep 60"][..], &[][..]),
        (&[], &["--", "sh", "-c", script, "s3cret"]),
        (&[], &["--", "env", "PASSWORD=s3cret", "sh", "-c", script]),
    ] {
        let _ = std::fs::remove_file(sandbox.path("held"));
        let _run = Background::start(sandbox.distlock().args(["run", "x"]).args(options).args(command));
        sandbox.wait_for_file("held");
        let done = sandbox.distlock().args(["show", "x", "--json"]).output().unwrap();
        assert!(stdout(&done).contains("\"command\": \""), "{}", stdout(&done));
        for entry in walk(&sandbox.path("state")) {
            let bytes = std::fs::read(&entry).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains("s3cret"), "{} has it", entry.display());
        }
    }
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            files.extend(walk(&entry.path()));
        } else if entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files
}

#[test]
fn a_label_and_a_strange_program_fit_into_one_lock_id() {
    let sandbox = Sandbox::new();
    let program = sandbox.path("a #b:ü\n");
    std::fs::write(&program, "#!/bin/sh\necho > held; exec sleep 60\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let label = "l".repeat(128);
    let _run =
        Background::start(sandbox.distlock().args(["run", "--label", &label, "x", "--"]).arg(&program));
    sandbox.wait_for_file("held");
    let entries = shown(&sandbox, "x");
    assert_eq!(entries[0]["holder"].as_str(), Some(&*label));
    assert_eq!(entries[0]["command"].as_str(), Some("a--b:--"));
}

#[test]
fn busy_and_timeout_name_the_holder_and_since_when() {
    let sandbox = Sandbox::new();
    for leased in [false, true] {
        let distlock = || if leased { sandbox.leased() } else { sandbox.distlock() };
        for (kind, other) in
            [(&[][..], &[][..]), (&["--write"], &["--read"]), (&["--of", "1"], &["--of", "1"])]
        {
            // The leased store has mutexes only.
            if leased && !kind.is_empty() {
                continue;
            }
            let run = sandbox.hold(distlock().args(["run", "--label", "web-3:812"]).args(kind).arg("x"));
            for wait in [&["--no-wait"][..], &["--timeout", "300ms"]] {
                let done = distlock().arg("run").args(wait).args(other).args(["x"]).args(sh("true")).output();
                let done = done.unwrap();
                let said = stderr(&done);
                assert_eq!(code(&done), 75, "{said}");
                assert!(said.contains("held by web-3:812 for "), "{wait:?} {kind:?}: {said}");
                assert_eq!(said.lines().count(), 1, "{said}");
            }
            drop(run);
        }
    }
}
