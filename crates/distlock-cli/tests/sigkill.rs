//! Hazard: after SIGKILL to `distlock`, the lock is free while a process of the command runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use common::{
    BINARY, Background, Sandbox, copy_program, is_alive, send, sh, state, wait_for, wait_until_dead,
};
use nix::sys::signal::Signal;

/// A command with a child that left its process group.
const TREE: &str = "(setsid sh -c 'echo $$ > stray; exec sleep 60' &)
    while ! test -s stray; do sleep 0.01; done
    echo $$ > leader; while :; do sleep 0.05; done";

/// A process that is killed when the test ends.
struct KillOnDrop(i32);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.0), Signal::SIGKILL);
    }
}

/// What `pkill` matches: the name of a process, and with `-f` its whole command line.
fn name_and_command_line(pid: i32) -> [String; 2] {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned();
    [text(read("comm")), text(read("cmdline"))]
}

#[test]
fn one_pkill_does_not_hit_both_distlock_and_its_watchdog() {
    let sandbox = Sandbox::new();
    let run = Background::start(sandbox.distlock().args(["run", "nightly"]).args(sh(TREE)));
    sandbox.wait_for_pid("leader");
    let (ours, watchdogs) = (name_and_command_line(run.pid()), name_and_command_line(run.watchdog()));
    assert_eq!(ours[0], "distlock");
    for pattern in ["distlock", "distlock run", "nightly", "run nightly", "sleep", "stray"] {
        for (at, what) in ["name", "command line"].into_iter().enumerate() {
            let both = ours[at].contains(pattern) && watchdogs[at].contains(pattern);
            assert!(!both, "{pattern:?} is in the {what} of both: {ours:?} {watchdogs:?}");
        }
    }
    let shown = |pattern: &str| {
        let found = Command::new("pgrep").args(["-f", pattern]).output().unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        [run.pid(), run.watchdog()].map(|pid| found.lines().any(|line| line == pid.to_string()))
    };
    assert_eq!(shown("distlock run nightly"), [true, false]);
    assert_eq!(shown("watchdog"), [false, true], "it can be found by name");
}

#[test]
fn the_watchdog_of_a_killed_distlock_keeps_the_lock_until_the_command_has_ended() {
    // Orphans become our children. Otherwise the process group of the stopped watchdog would be orphaned, and the kernel would
    // continue it.
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1)).unwrap();
    for options in [&[][..], &["--write"], &["--of", "1"], &["--fair"]] {
        let sandbox = Sandbox::new();
        let run = Background::start(sandbox.distlock().arg("run").args(options).arg("x").args(sh(TREE)));
        let (leader, stray) = (sandbox.wait_for_pid("leader"), sandbox.wait_for_pid("stray"));
        let watchdog = run.watchdog();
        let is_free = || {
            let mut other = sandbox.distlock();
            other
                .args(["run", "-q", "--no-wait"])
                .args(options)
                .args(["x", "true"])
                .status()
                .unwrap()
                .success()
        };
        let _kill_on_drop = [watchdog, leader, stray].map(KillOnDrop);
        // As slow as a watchdog may be on a busy machine.
        send(watchdog, Signal::SIGSTOP);
        wait_for("a stopped watchdog", || (state(watchdog) == Some('T')).then_some(()));
        run.send(Signal::SIGKILL);
        wait_until_dead(run.pid());
        assert!(is_alive(leader) && is_alive(stray));
        assert!(!is_free(), "{options:?}: another holder while the command runs");
        send(watchdog, Signal::SIGCONT);
        wait_for("a free lock", || is_free().then_some(()));
        assert!(!is_alive(leader) && !is_alive(stray), "{options:?}: free before the command had ended");
        wait_until_dead(watchdog);
    }
}

#[test]
fn a_command_gets_no_copy_of_the_lock() {
    let sandbox = Sandbox::new();
    for options in [&[][..], &["--write"]] {
        let run = Background::start(sandbox.distlock().arg("run").args(options).arg("x").args(sh(TREE)));
        let open = |pid: i32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let paths = files.filter_map(|file| fs::read_link(file.path()).ok());
            paths.filter(|path| path.starts_with(sandbox.path("state"))).count()
        };
        let (leader, stray) = (sandbox.wait_for_pid("leader"), KillOnDrop(sandbox.wait_for_pid("stray")));
        // A daemon with a copy would keep the lock.
        assert_eq!((open(leader), open(stray.0)), (0, 0));
        fs::remove_file(sandbox.path("leader")).unwrap();
        fs::remove_file(sandbox.path("stray")).unwrap();
        assert_eq!(open(run.watchdog()), 1);
        // A release frees the lock, although the watchdog may not have ended yet.
        run.send(Signal::SIGTERM);
        drop(stray);
        run.finish();
        assert!(sandbox.is_free("x"));
    }
}

#[test]
fn a_large_command_reaches_the_watchdog_unchanged() {
    let sandbox = Sandbox::new();
    // Larger than the socket's buffer, with every kind of character.
    let large = "a\n\u{1b} ü".repeat(15_000);
    let mut run = sandbox.distlock();
    run.args([
        "run",
        "x",
        "--",
        "sh",
        "-c",
        "test ${#1} -gt 60000 && test \"$1\" = \"$2\" && test -z \"$4\"",
    ]);
    run.args(["sh", &large, &large, &large, ""]);
    assert_eq!(run.status().unwrap().code(), Some(0));
}

/// A process of another user cannot be killed.
#[test]
fn a_process_that_cannot_be_killed_keeps_the_lock_of_a_killed_distlock_or_watchdog() {
    if !rustix::process::geteuid().is_root() {
        // Only root can start a process that the tests' own user could not kill.
        return;
    }
    for killed in ["distlock", "watchdog"] {
        let sandbox = Sandbox::new();
        fs::set_permissions(sandbox.path(""), fs::Permissions::from_mode(0o777)).unwrap();
        for (from, to, mode) in [(BINARY, "program", 0o755), ("/usr/bin/setpriv", "become-root", 0o4755)] {
            copy_program(from, &sandbox.path(to));
            fs::set_permissions(sandbox.path(to), fs::Permissions::from_mode(mode)).unwrap();
        }
        let unprivileged = || {
            let mut command = Command::new(sandbox.path("program"));
            command.uid(65534).gid(65534).current_dir(sandbox.path(""));
            command.env_remove("DISTLOCK_STORE").env("XDG_STATE_HOME", sandbox.path("state"));
            command
        };
        let script = "./become-root --reuid=0 sh -c 'echo $$ > roots; exec sleep 600' & \
                      while ! test -s roots; do sleep 0.01; done; echo $$ > leader; wait";
        let mut run = Background::start(unprivileged().args(["run", "x"]).args(sh(script)));
        let (leader, roots) = (sandbox.wait_for_pid("leader"), sandbox.wait_for_pid("roots"));
        let _kill_on_drop = KillOnDrop(roots);
        let is_free = || unprivileged().args(["run", "-q", "-n", "x", "true"]).status().unwrap().success();
        let watchdog = run.watchdog();
        send(if killed == "distlock" { run.pid() } else { watchdog }, Signal::SIGKILL);
        wait_until_dead(leader);
        // Longer than the remaining process tries to kill the rest.
        std::thread::sleep(Duration::from_millis(2500));
        assert!(is_alive(roots));
        assert!(!is_free(), "{killed} killed: another holder beside a process of the command");
        assert_eq!(run.has_ended(), killed == "distlock");
        send(roots, Signal::SIGKILL);
        wait_for("a free lock", || is_free().then_some(()));
        let (code, said) = run.finish();
        assert!(
            killed == "distlock" || (code == 137 && said.contains("could not be killed")),
            "{code} {said}"
        );
    }
}
