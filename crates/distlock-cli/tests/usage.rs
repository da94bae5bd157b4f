//! Hazard: wrong usage acquires a lock, or is not reported in one line with exit code 64.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Sandbox, code, stderr, stdout};

const COMMANDS: [&str; 8] = ["run", "ls", "show", "break", "doctor", "bench", "schema", "completions"];

#[test]
fn conflicting_options_are_refused_in_one_line() {
    let sandbox = Sandbox::new();
    for (args, word) in [
        (&["run", "--permits", "2", "x", "true"][..], "--of"),
        (&["run", "--read", "--write", "x", "true"], "--write"),
        (&["run", "--read", "--of", "2", "x", "true"], "--of"),
        (&["run", "--write", "--permits", "1", "--of", "2", "x", "true"], "--write"),
        (&["run", "--no-wait", "--timeout", "1s", "x", "true"], "--timeout"),
        (&["run", "-q", "-v", "x", "true"], "--quiet"),
        (&["run", "-E", "256", "x", "true"], "256"),
        (&["run", "--of", "-1", "x", "true"], "-1"),
        (&["run", "--nonsense", "x", "true"], "--nonsense"),
        (&["run", "x"], "COMMAND"),
        (&["run", "--", "-x", "--"], "no command"),
        (&["run"], "NAME"),
        (&["nonsense"], "nonsense"),
        (&["show"], "NAME"),
        (&["break", "x", "--kind", "turn", "--yes"], "turn"),
        (&["completions", "tcsh"], "tcsh"),
    ] {
        let done = sandbox.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), 64, "{args:?}: {}", stderr(&done));
        assert!(stderr(&done).contains(word), "{args:?}: {}", stderr(&done));
        assert!(
            stderr(&done).starts_with("distlock: ") && stderr(&done).lines().count() == 1,
            "{}",
            stderr(&done)
        );
        assert_eq!(stdout(&done), "");
    }
}

#[test]
fn a_duration_without_a_unit_is_refused_with_advice() {
    let sandbox = Sandbox::new();
    for option in ["--timeout", "--expiry", "--extend-every", "--hold-at-least", "--grace"] {
        for bad in ["10", "10x", "soon", "", "-1s", "99999999999999999999h"] {
            let done =
                sandbox.distlock().args(["run", &format!("{option}={bad}"), "x", "true"]).output().unwrap();
            assert_eq!(code(&done), 64, "{option}={bad}: {}", stderr(&done));
            assert!(
                stderr(&done).contains(option) && stderr(&done).lines().count() == 1,
                "{}",
                stderr(&done)
            );
        }
    }
    let done = sandbox.distlock().args(["run", "--timeout", "10", "x", "true"]).output().unwrap();
    assert!(stderr(&done).contains("write 10s"), "{}", stderr(&done));
}

#[test]
fn every_help_has_examples() {
    let sandbox = Sandbox::new();
    for command in COMMANDS {
        for args in [[command, "--help"], ["help", command]] {
            let done = sandbox.distlock().args(args).output().unwrap();
            assert_eq!(code(&done), 0, "{args:?}");
            assert!(stdout(&done).contains("Examples:"), "{args:?}: {}", stdout(&done));
            assert!(
                stdout(&done).lines().all(|line| line.chars().count() <= 110),
                "{args:?}: {}",
                stdout(&done)
            );
            assert_eq!(stderr(&done), "");
        }
    }
    let done = sandbox.distlock().arg("--version").output().unwrap();
    assert_eq!((code(&done), stdout(&done)), (0, format!("distlock {}\n", env!("CARGO_PKG_VERSION"))));
    let bare = sandbox.distlock().output().unwrap();
    assert_eq!(code(&bare), 64);
    assert!(stderr(&bare).contains("Usage:") && stdout(&bare).is_empty());
}

#[test]
fn the_internal_parts_of_run_are_not_commands() {
    let sandbox = Sandbox::new();
    for word in ["__watchdog", "__launch"] {
        let done = sandbox.distlock().arg(word).output().unwrap();
        assert_eq!(code(&done), 64, "{}", stderr(&done));
        let help = sandbox.distlock().arg("--help").output().unwrap();
        assert!(!stdout(&help).contains(word));
    }
}

#[test]
fn options_may_come_anywhere_before_the_command_and_the_dashes_are_optional() {
    let sandbox = Sandbox::new();
    let store = format!("file://{}", sandbox.path("elsewhere").display());
    for args in [
        &["--store", &store, "run", "x", "--", "sh", "-c", "exit 7"][..],
        &["run", "--store", &store, "x", "sh", "-c", "exit 7"],
        &["run", "x", "--timeout", "1s", "--store", &store, "--", "sh", "-c", "exit 7"],
        &["--store", &store, "run", "--", "-x", "--", "sh", "-c", "exit 7"],
        &["--store", &store, "run", "--", "-x", "sh", "-c", "exit 7"],
        &["run", "x", "sh", "-c", "test \"$1 $2\" = '--read -n' && exit 7", "sh", "--read", "-n"],
    ] {
        let done = sandbox.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), 7, "{args:?}: {}", stderr(&done));
    }
    assert!(sandbox.path("elsewhere").exists());
}

#[test]
fn an_empty_store_is_refused_and_an_empty_variable_counts_as_unset() {
    let sandbox = Sandbox::new();
    for command in [&["run", "x", "true"][..], &["ls"], &["doctor"], &["schema"], &["bench"]] {
        let done = sandbox.distlock().args(["--store", ""]).args(command).output().unwrap();
        assert_eq!(code(&done), 64, "{command:?}: {}", stderr(&done));
        assert!(stderr(&done).contains("after --store is empty"), "{command:?}: {}", stderr(&done));
    }
    assert!(!sandbox.path("state").exists(), "lock files were used in place of the store");
    let done = sandbox.distlock().env("DISTLOCK_STORE", "").args(["run", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 0, "{}", stderr(&done));
}

#[test]
fn completions_are_generated_for_every_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = sandbox.distlock().args(["completions", shell]).output().unwrap();
        assert_eq!(code(&done), 0);
        let script = stdout(&done);
        assert!(script.contains("hold-at-least") && !script.contains("__watchdog"), "{shell}");
    }
}

#[test]
fn every_kind_of_lock_can_be_acquired() {
    let sandbox = Sandbox::new();
    for options in [
        &["--read"][..],
        &["--write"],
        &["--of", "3"],
        &["--permits", "2", "--of", "3"],
        &["--fair", "--read"],
        &["--fair", "--of", "2"],
        &["--fair"],
        &["--expiry", "10s", "--extend-every", "1s", "--grace", "0s"],
    ] {
        let store = if options.contains(&"--fair") { "memory:" } else { "file:" };
        let done = sandbox
            .distlock()
            .args(["--store", store, "run"])
            .args(options)
            .args(["x", "true"])
            .output()
            .unwrap();
        assert_eq!(code(&done), 0, "{options:?}: {}", stderr(&done));
    }
    let done = sandbox.leased().args(["run", "--fair", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 64, "a store without order must refuse: {}", stderr(&done));
}
