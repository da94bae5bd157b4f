//! Hazard: a command keeps running after its lock was lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{Background, Sandbox, boot_clock, code, in_time, is_alive, sh, stderr, wait_for};
use nix::sys::signal::Signal;

/// Records when SIGTERM comes, and keeps running.
const STUBBORN: &str = "trap 'cut -d\" \" -f1 /proc/uptime > told' TERM
    sleep 60 & echo $! > child
    echo $$ > leader; while :; do sleep 0.01; done";

/// When the processes died, and the end of their lease, both on the boot clock.
fn death_and_lease_end(sandbox: &Sandbox, pids: &[i32]) -> (Duration, Duration) {
    let mut end = Duration::ZERO;
    wait_for("the end of the command", || {
        end = sandbox.lease_end("x").unwrap_or(end).max(end);
        pids.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
    (boot_clock(), end)
}

/// When the command received SIGTERM, if it did.
fn sigterm_at(sandbox: &Sandbox) -> Option<Duration> {
    let text = std::fs::read_to_string(sandbox.path("told")).ok()?;
    text.trim().parse().ok().map(Duration::from_secs_f64)
}

#[test]
fn a_store_without_replies_ends_the_command_before_the_lease_ends() {
    for (fault, expiry) in [("renew.hang", "3s"), ("renew.fail", "1s"), ("renew.hang", "500ms")] {
        in_time(|| {
            let sandbox = Sandbox::new();
            let run =
                Background::start(sandbox.leased().args(["run", "--expiry", expiry, "x"]).args(sh(STUBBORN)));
            let pids = [sandbox.wait_for_pid("leader"), sandbox.wait_for_pid("child")];
            sandbox.fault(fault);
            let (death, end) = death_and_lease_end(&sandbox, &pids);
            if death >= end {
                return Err(format!("died at {death:?} at the latest, lease until {end:?}"));
            }
            let sigterm = sigterm_at(&sandbox).ok_or("it had no time to handle SIGTERM before SIGKILL")?;
            assert!(sigterm <= death, "SIGTERM came after SIGKILL");
            println!(
                "{fault} with a lease of {expiry}: SIGTERM {:?} and dead {:?} before its end",
                end.saturating_sub(sigterm),
                end - death
            );
            let (code, said) = run.finish();
            assert_eq!(code, 76, "{said}");
            assert!(said.contains("losing mutex \"x\"") && said.contains("ending the command"), "{said}");
            Ok(())
        });
    }
}

#[test]
fn a_short_outage_does_not_end_the_command() {
    let sandbox = Sandbox::new();
    let script = "echo $$ > leader; while ! test -e go; do sleep 0.01; done; exit 3";
    let run = Background::start(sandbox.leased().args(["run", "--expiry", "3s", "x"]).args(sh(script)));
    sandbox.wait_for_pid("leader");
    let before = sandbox.lease_end("x").unwrap();
    sandbox.fault("renew.fail");
    // After the renewal was due, and well before the end of the lease.
    wait_for("a renewal to be missed", || {
        (boot_clock() > before - Duration::from_millis(1700)).then_some(())
    });
    assert_eq!(sandbox.lease_end("x").unwrap(), before);
    sandbox.clear_fault("renew.fail");
    wait_for("a renewal", || (sandbox.lease_end("x").unwrap() > before).then_some(()));
    std::fs::write(sandbox.path("go"), "").unwrap();
    let (code, said) = run.finish();
    assert_eq!((code, said.as_str()), (3, ""));
}

#[test]
fn a_broken_lock_ends_the_command_with_sigterm_first() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo > cleaned-up; exit 0' TERM; echo $$ > leader; while :; do sleep 0.01; done";
    let run = Background::start(sandbox.leased().args(["run", "--expiry", "2s", "x"]).args(sh(script)));
    sandbox.wait_for_pid("leader");
    let token = sandbox.record("x")["holder"]["token"].as_u64().unwrap();
    let broken = sandbox.leased().args(["break", "x", "--yes"]).output().unwrap();
    assert_eq!(code(&broken), 0, "{}", stderr(&broken));
    let (status, said) = run.finish();
    assert_eq!(status, 76, "the command's 0 was returned: {said}");
    assert!(sandbox.path("cleaned-up").exists(), "no time to handle SIGTERM");
    assert!(said.contains("lost mutex \"x\"") && said.contains("not ours any more"), "{said}");
    let next = sandbox
        .leased()
        .args(["run", "x", "--", "sh", "-c", "test $DISTLOCK_TOKEN -gt $0"])
        .arg(token.to_string())
        .output()
        .unwrap();
    assert_eq!(code(&next), 0, "the next token is higher");
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_after_its_grace() {
    in_time(|| {
        let sandbox = Sandbox::new();
        let args = ["run", "--expiry", "6s", "--grace", "1s", "x"];
        let run = Background::start(sandbox.leased().args(args).args(sh(STUBBORN)));
        let pids = [sandbox.wait_for_pid("leader"), sandbox.wait_for_pid("child")];
        // The lock cannot be renewed and is still held: this is what --grace is for.
        sandbox.fault("renew.fail");
        wait_for("the end of the command", || pids.iter().all(|pid| !is_alive(*pid)).then_some(()));
        let sigterm = sigterm_at(&sandbox).ok_or("it had no time to handle SIGTERM before SIGKILL")?;
        let took = boot_clock().saturating_sub(sigterm);
        println!("grace of 1 s: dead {took:?} after SIGTERM");
        assert_eq!(run.finish().0, 76);
        // The command may record SIGTERM late, and then the grace looks short.
        if took >= Duration::from_millis(800) { Ok(()) } else { Err(format!("it had {took:?} of its grace")) }
    });
}

/// The promise of `run --help` once the lock is certainly lost.
const BOUND: Duration = Duration::from_secs(1);

/// Checks that the command died within the bound after `since`.
fn dead_in_time(since: Duration, pids: &[i32]) -> Result<(), String> {
    wait_for("the end of the command", || pids.iter().all(|pid| !is_alive(*pid)).then_some(()));
    let took = boot_clock().saturating_sub(since);
    println!("dead {took:?} after the loss");
    if took <= BOUND { Ok(()) } else { Err(format!("it kept running for {took:?}")) }
}

#[test]
fn a_command_whose_lock_file_was_removed_does_not_run_beside_the_next_holder() {
    for (options, file) in [
        (&["--grace", "20s"][..], "mutex/x.lock"),
        (&["--grace", "20s", "--write"], "rwlock/x/hold"),
        (&["--grace", "20s", "--of", "1"], "semaphore/x/hold"),
    ] {
        in_time(|| {
            let sandbox = Sandbox::new();
            let run =
                Background::start(sandbox.distlock().arg("run").args(options).arg("x").args(sh(STUBBORN)));
            let pids = [sandbox.wait_for_pid("leader"), sandbox.wait_for_pid("child")];
            let path = sandbox.path("state/distlock").join(file);
            let removed = boot_clock();
            if path.is_dir() {
                std::fs::remove_dir_all(&path).unwrap();
            } else {
                std::fs::remove_file(&path).unwrap();
            }
            dead_in_time(removed, &pids)?;
            assert!(sigterm_at(&sandbox).is_some(), "no SIGTERM before SIGKILL");
            let (code, said) = run.finish();
            assert_eq!(code, 76, "{said}");
            assert!(said.contains("lost") && said.contains("removed or replaced"), "{said}");
            Ok(())
        });
    }
}

#[test]
fn a_command_whose_lock_was_broken_gets_no_grace() {
    in_time(|| {
        let sandbox = Sandbox::new();
        let args = ["run", "--expiry", "30s", "--extend-every", "200ms", "--grace", "20s", "x"];
        let run = Background::start(sandbox.leased().args(args).args(sh(STUBBORN)));
        let pids = [sandbox.wait_for_pid("leader"), sandbox.wait_for_pid("child")];
        sandbox.leased().args(["break", "x", "--yes"]).output().unwrap();
        // The loss is detected at the next renewal.
        let sigterm = wait_for("SIGTERM", || sigterm_at(&sandbox));
        dead_in_time(sigterm, &pids)?;
        assert_eq!(run.finish().0, 76);
        Ok(())
    });
}

#[test]
fn a_grace_ends_when_the_lock_is_certainly_lost() {
    in_time(|| {
        let sandbox = Sandbox::new();
        let args = ["run", "--expiry", "24s", "--extend-every", "500ms", "--grace", "1h", "x"];
        let run = Background::start(sandbox.leased().args(args).args(sh(STUBBORN)));
        let pids = [sandbox.wait_for_pid("leader"), sandbox.wait_for_pid("child")];
        sandbox.fault("renew.fail");
        wait_for("SIGTERM", || sigterm_at(&sandbox));
        // Half of the lease is left, all of it grace; but the lock has another holder now.
        sandbox.leased().args(["break", "x", "--yes"]).output().unwrap();
        let other = Background::start(sandbox.leased().args(["run", "x"]).args(sh("echo > other; sleep 60")));
        sandbox.wait_for_file("other");
        assert!(is_alive(pids[0]), "killed before the loss was known");
        sandbox.clear_fault("renew.fail");
        // The next renewal is retried soon.
        dead_in_time(boot_clock() + Duration::from_secs(2), &pids)?;
        assert_eq!(run.finish().0, 76);
        drop(other);
        Ok(())
    });
}

#[test]
fn an_undetected_loss_is_reported_at_the_release() {
    let sandbox = Sandbox::new();
    let script = "echo $$ > leader; while ! test -e go; do sleep 0.01; done; exit 0";
    // A --hold-at-least that has passed changes nothing.
    for least in ["0s", "1ms"] {
        let args = ["run", "--hold-at-least", least, "x"];
        let run = Background::start(sandbox.leased().args(args).args(sh(script)));
        sandbox.wait_for_pid("leader");
        // The next renewal is ten seconds away.
        sandbox.leased().args(["break", "x", "--yes"]).output().unwrap();
        std::fs::write(sandbox.path("go"), "").unwrap();
        let (code, said) = run.finish();
        assert_eq!(code, 76, "{said}");
        assert!(said.contains("was lost before it was released"), "{said}");
        std::fs::remove_file(sandbox.path("leader")).unwrap();
        std::fs::remove_file(sandbox.path("go")).unwrap();
    }
}

#[test]
fn hold_at_least_does_not_keep_a_lost_lock() {
    let sandbox = Sandbox::new();
    let args = ["run", "--expiry", "1s", "--hold-at-least", "1h", "x"];
    let run = Background::start(sandbox.leased().args(args).args(sh("echo $$ > leader; exec sleep 60")));
    let leader = sandbox.wait_for_pid("leader");
    // The lease covers the minimum hold time, so a renewal that fails does not lose the lock.
    sandbox.fault("renew.fail");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(is_alive(leader), "its lease lasts an hour");
    sandbox.clear_fault("renew.fail");
    let broken = sandbox.leased().args(["break", "--yes", "x"]).output().unwrap();
    assert_eq!(code(&broken), 0, "{}", stderr(&broken));
    wait_for("the end of the command", || (!is_alive(leader)).then_some(()));
    assert_eq!(run.finish().0, 76);
    assert!(sandbox.record("x")["holder"].is_null(), "not released");
}

#[test]
fn a_release_without_a_reply_is_reported_and_the_exit_code_is_the_commands() {
    let sandbox = Sandbox::new();
    sandbox.fault("release.fail");
    let done = sandbox.leased().args(["run", "x", "--", "sh", "-c", "exit 5"]).output().unwrap();
    assert_eq!(code(&done), 5, "{}", stderr(&done));
    assert!(
        stderr(&done).contains("release") && stderr(&done).contains("expires within"),
        "{}",
        stderr(&done)
    );
    assert!(sandbox.record("x")["holder"].is_object());
}

#[test]
fn a_waiter_paused_past_its_grant_does_not_start_the_command_without_the_lock() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(sandbox.leased().args(["run", "x"]));
    // Paused while it waits: after it resumes, it asks again before it runs the command.
    let waiter = Background::start(
        sandbox.leased().args(["run", "--expiry", "500ms", "x"]).args(sh("echo > ran; exit 6")),
    );
    wait_for("the waiter", || {
        sandbox.record("x")["waiters"].as_array().filter(|all| all.len() == 1).map(|_| ())
    });
    sandbox.pause_between_transactions(&waiter);
    holder.send(Signal::SIGTERM);
    holder.finish();
    // A paused waiter does not block others.
    let other = sandbox.leased().args(["run", "--timeout", "10s", "x", "true"]).output().unwrap();
    assert_eq!(code(&other), 0, "{}", stderr(&other));
    assert!(!sandbox.path("ran").exists());
    waiter.send(Signal::SIGCONT);
    assert_eq!(waiter.finish().0, 6, "the waiter was not served");
}
