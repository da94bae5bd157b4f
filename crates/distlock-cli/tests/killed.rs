//! `distlock` killed with SIGKILL: its watchdog is not hit by the same stroke, and the lock is not free while a process of
//! the command runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use common::{BINARY, Background, Place, is_alive, send, sh, state, wait_for, wait_until_dead};
use nix::sys::signal::Signal;

/// A command with a child that left its process group.
const FAMILY: &str = "(setsid sh -c 'echo $$ > stray; exec sleep 60' &)
    while ! test -s stray; do sleep 0.01; done
    echo $$ > leader; while :; do sleep 0.05; done";

/// Ended when the test is over, however it ends.
struct Doomed(i32);

impl Drop for Doomed {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.0), Signal::SIGKILL);
    }
}

/// What `pkill` compares its pattern with: the name of a process, and with `-f` its whole command line.
fn name_and_command_line(pid: i32) -> [String; 2] {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned();
    [text(read("comm")), text(read("cmdline"))]
}

#[test]
fn one_pkill_does_not_hit_both_distlock_and_its_watchdog() {
    let place = Place::new();
    let run = Background::start(place.distlock().args(["run", "nightly"]).args(sh(FAMILY)));
    place.wait_for_pid("leader");
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
    assert_eq!(shown("watchdog"), [false, true], "people find it");
}

#[test]
fn a_killed_distlock_leaves_the_lock_to_its_watchdog_until_the_command_is_gone() {
    // Orphans become our children. Otherwise the kernel would continue the stopped watchdog: its process group would be
    // an orphaned one.
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1)).unwrap();
    for options in [&[][..], &["--write"], &["--of", "1"], &["--fair"]] {
        let place = Place::new();
        let run = Background::start(place.distlock().arg("run").args(options).arg("x").args(sh(FAMILY)));
        let (leader, stray) = (place.wait_for_pid("leader"), place.wait_for_pid("stray"));
        let watchdog = run.watchdog();
        let is_free = || {
            let mut other = place.distlock();
            other
                .args(["run", "-q", "--no-wait"])
                .args(options)
                .args(["x", "true"])
                .status()
                .unwrap()
                .success()
        };
        let _doomed = [watchdog, leader, stray].map(Doomed);
        // A watchdog that is slow: it may be as slow on a busy machine.
        send(watchdog, Signal::SIGSTOP);
        wait_for("a stopped watchdog", || (state(watchdog) == Some('T')).then_some(()));
        run.send(Signal::SIGKILL);
        wait_until_dead(run.pid());
        assert!(is_alive(leader) && is_alive(stray));
        assert!(!is_free(), "{options:?}: another holder while the command runs");
        send(watchdog, Signal::SIGCONT);
        wait_for("a free lock", || is_free().then_some(()));
        assert!(!is_alive(leader) && !is_alive(stray), "{options:?}: free before the command was gone");
        wait_until_dead(watchdog);
    }
}

#[test]
fn a_command_gets_no_copy_of_the_lock() {
    let place = Place::new();
    for options in [&[][..], &["--write"]] {
        let run = Background::start(place.distlock().arg("run").args(options).arg("x").args(sh(FAMILY)));
        let open = |pid: i32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let paths = files.filter_map(|file| fs::read_link(file.path()).ok());
            paths.filter(|path| path.starts_with(place.path("state"))).count()
        };
        let (leader, stray) = (place.wait_for_pid("leader"), Doomed(place.wait_for_pid("stray")));
        // A daemon that it leaves behind would keep the lock.
        assert_eq!((open(leader), open(stray.0)), (0, 0));
        fs::remove_file(place.path("leader")).unwrap();
        fs::remove_file(place.path("stray")).unwrap();
        assert_eq!(open(run.watchdog()), 1);
        // And a release frees it, although the watchdog may not be gone yet.
        run.send(Signal::SIGTERM);
        drop(stray);
        run.finish();
        assert!(place.is_free("x"));
    }
}

#[test]
fn a_large_command_reaches_the_watchdog_whole() {
    let place = Place::new();
    // Larger than what fits into a socket, and with everything that an argument may hold.
    let large = "a\n\u{1b} ü".repeat(15_000);
    let mut run = place.distlock();
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

/// The lock is kept for what cannot be ended: here a process of another user.
#[test]
fn a_process_that_cannot_be_ended_keeps_the_lock_of_a_killed_distlock_or_watchdog() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make a process that its starter cannot end.
        return;
    }
    for killed in ["distlock", "watchdog"] {
        let place = Place::new();
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o777)).unwrap();
        for (from, to, mode) in [(BINARY, "program", 0o755), ("/usr/bin/setpriv", "become-root", 0o4755)] {
            fs::copy(from, place.path(to)).unwrap();
            fs::set_permissions(place.path(to), fs::Permissions::from_mode(mode)).unwrap();
        }
        let nobody = || {
            let mut command = Command::new(place.path("program"));
            command.uid(65534).gid(65534).current_dir(place.path(""));
            command.env_remove("DISTLOCK_STORE").env("XDG_STATE_HOME", place.path("state"));
            command
        };
        let script = "./become-root --reuid=0 sh -c 'echo $$ > roots; exec sleep 600' & \
                      while ! test -s roots; do sleep 0.01; done; echo $$ > leader; wait";
        let mut run = Background::start(nobody().args(["run", "x"]).args(sh(script)));
        let (leader, roots) = (place.wait_for_pid("leader"), place.wait_for_pid("roots"));
        let _doomed = Doomed(roots);
        let is_free = || nobody().args(["run", "-q", "-n", "x", "true"]).status().unwrap().success();
        let watchdog = run.watchdog();
        send(if killed == "distlock" { run.pid() } else { watchdog }, Signal::SIGKILL);
        wait_until_dead(leader);
        // Longer than they try to end what is left.
        std::thread::sleep(Duration::from_millis(2500));
        assert!(is_alive(roots));
        assert!(!is_free(), "{killed} killed: another holder beside a process of the command");
        assert_eq!(run.has_ended(), killed == "distlock");
        send(roots, Signal::SIGKILL);
        wait_for("a free lock", || is_free().then_some(()));
        let (code, said) = run.finish();
        assert!(
            killed == "distlock" || (code == 137 && said.contains("could not be ended")),
            "{code} {said}"
        );
    }
}
