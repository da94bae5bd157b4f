//! Hazard: two processes hold one lock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Background, Sandbox, code, sh, stderr, wait_for};
use nix::sys::signal::Signal;

/// Reads, waits and writes: two at the same time lose a count.
const COUNT: &str = "n=$(cat count); sleep 0.01; echo $((n + 1)) > count";

fn count_to(sandbox: &Sandbox, processes: usize, start: impl Fn() -> Command) {
    fs::write(sandbox.path("count"), "0\n").unwrap();
    let running: Vec<Background> =
        (0..processes).map(|_| Background::start(start().args(["run", "counter"]).args(sh(COUNT)))).collect();
    for run in running {
        let (code, said) = run.finish();
        assert_eq!(code, 0, "{said}");
    }
    assert_eq!(fs::read_to_string(sandbox.path("count")).unwrap().trim(), processes.to_string());
}

#[test]
fn processes_do_not_overlap_on_the_file_store() {
    let sandbox = Sandbox::new();
    count_to(&sandbox, 20, || sandbox.distlock());
}

#[test]
fn processes_do_not_overlap_on_leases() {
    let sandbox = Sandbox::new();
    sandbox.leased();
    let url = sandbox.lease_url();
    count_to(&sandbox, 8, || {
        let mut command = sandbox.distlock();
        command.args(["--store", &url]);
        command
    });
}

#[test]
fn readers_share_and_a_writer_does_not() {
    let sandbox = Sandbox::new();
    let reader = || {
        Background::start(
            sandbox.distlock().args(["run", "--read", "x"]).args(sh("echo > read-$$; exec sleep 60")),
        )
    };
    let (one, two) = (reader(), reader());
    wait_for("two readers at a time", || {
        let reading = fs::read_dir(sandbox.path("")).unwrap().flatten();
        (reading.filter(|e| e.file_name().to_string_lossy().starts_with("read-")).count() == 2).then_some(())
    });
    let write = |sandbox: &Sandbox| {
        sandbox.distlock().args(["run", "--no-wait", "--write", "x", "true"]).output().unwrap()
    };
    assert_eq!(code(&write(&sandbox)), 75);
    for reader in [one, two] {
        reader.send(Signal::SIGTERM);
        reader.finish();
    }
    let done = write(&sandbox);
    assert_eq!(code(&done), 0, "{}", stderr(&done));
}

#[test]
fn a_semaphore_admits_as_many_as_it_has_permits() {
    let sandbox = Sandbox::new();
    let start = |n: u32| {
        Background::start(
            sandbox
                .distlock()
                .args(["run", "--of", "2", "gpu"])
                .args(sh(&format!("echo > in-{n}; exec sleep 60"))),
        )
    };
    let (one, _two) = (start(1), start(2));
    sandbox.wait_for_file("in-1");
    sandbox.wait_for_file("in-2");
    let third =
        || sandbox.distlock().args(["run", "--no-wait", "--of", "2", "gpu", "true"]).output().unwrap();
    assert_eq!(code(&third()), 75);
    one.send(Signal::SIGTERM);
    one.finish();
    assert_eq!(code(&third()), 0);
}

#[test]
fn hold_at_least_keeps_the_lock_after_a_short_job() {
    let sandbox = Sandbox::new();
    for mut command in [sandbox.distlock(), sandbox.leased()] {
        let start = Instant::now();
        let run = Background::start(
            command.args(["run", "--hold-at-least", "700ms", "x"]).args(sh("echo > ran; exit 4")),
        );
        sandbox.wait_for_file("ran");
        let (code, said) = run.finish();
        assert_eq!((code, said.as_str()), (4, ""));
        assert!(start.elapsed() >= Duration::from_millis(700));
        fs::remove_file(sandbox.path("ran")).unwrap();
    }
}

/// Runs a job that ends at once under `--hold-at-least`, ends distlock with a signal, and returns the exit code of an attempt
/// after that.
fn attempt_after_a_signal_ends_the_minimum_hold(sandbox: &Sandbox, mut command: Command) -> i32 {
    let run = Background::start(
        command.args(["run", "-v", "--hold-at-least", "1h", "x"]).args(sh("echo > ran; exit 4")),
    );
    sandbox.wait_for_file("ran");
    wait_for("the end of the command", || {
        common::children(run.pid()).iter().all(|pid| !common::is_alive(*pid)).then_some(())
    });
    let args: Vec<_> = command.get_args().take_while(|arg| *arg != "run").map(ToOwned::to_owned).collect();
    let other = || sandbox.distlock().args(&args).args(["run", "--no-wait", "x", "true"]).output().unwrap();
    assert_eq!(code(&other()), 75, "free right after the command");
    run.send(Signal::SIGTERM);
    assert_eq!(run.finish().0, 4, "not the command's exit code");
    code(&other())
}

#[test]
fn a_signal_during_hold_at_least_leaves_the_lease_in_the_store() {
    let sandbox = Sandbox::new();
    assert_eq!(attempt_after_a_signal_ends_the_minimum_hold(&sandbox, sandbox.leased()), 75);
}

#[test]
fn a_signal_during_hold_at_least_leaves_the_record_in_the_lock_file() {
    let sandbox = Sandbox::new();
    assert_eq!(attempt_after_a_signal_ends_the_minimum_hold(&sandbox, sandbox.distlock()), 75);
    let busy = sandbox.distlock().args(["run", "--no-wait", "x", "true"]).output().unwrap();
    assert!(stderr(&busy).contains("held by "), "{}", stderr(&busy));
    let shown = sandbox.distlock().args(["show", "x"]).output().unwrap();
    assert_eq!(code(&shown), 0, "a kept lock is held");
}

#[test]
fn a_killed_distlock_keeps_the_lock_file_for_the_minimum_time() {
    let sandbox = Sandbox::new();
    for (name, options) in [("m", &[][..]), ("s", &["--of", "1"]), ("w", &["--write"])] {
        let run = |least: &str| {
            let mut command = sandbox.distlock();
            command.args(["run", "--hold-at-least", least]).args(options).arg(name);
            let run = sandbox.hold(&mut command);
            let command = common::children(run.watchdog())[0];
            run.send(Signal::SIGKILL);
            common::wait_until_dead(command);
            wait_for("the end of distlock", || (!common::is_alive(run.pid())).then_some(()));
        };
        let attempt = |wait: &[&str]| {
            code(
                &sandbox
                    .distlock()
                    .arg("run")
                    .args(wait)
                    .args(options)
                    .args([name, "true"])
                    .output()
                    .unwrap(),
            )
        };
        run("1h");
        assert_eq!(attempt(&["--no-wait"]), 75, "{name}: free after SIGKILL");
        assert_eq!(attempt(&["--timeout", "300ms"]), 75, "{name}: free after SIGKILL");
        // An operator who knows better removes it.
        fs::remove_dir_all(sandbox.path("state/distlock")).unwrap();
        run("2s");
        assert_eq!(attempt(&["--timeout", "20s"]), 0, "{name}: never free");
    }
}

#[test]
fn verbose_names_the_holder_during_a_wait() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(sandbox.distlock().args(["run", "x"]));
    let label = format!(":{}", holder.pid());
    let done = sandbox.distlock().args(["run", "-v", "--timeout", "1500ms", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 75);
    let said = stderr(&done);
    assert!(said.contains("waiting for mutex \"x\", held by ") && said.contains(&label), "{said}");
    let silent = sandbox.distlock().args(["run", "--timeout", "1200ms", "x", "true"]).output().unwrap();
    assert_eq!(stderr(&silent).lines().count(), 1, "a hint without a terminal: {}", stderr(&silent));
}
