//! A lock that is lost while the command runs: the whole command ends before somebody else can have the lock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{Background, Place, boot_clock, code, in_time, is_alive, sh, stderr, wait_for};
use nix::sys::signal::Signal;

/// Notes when SIGTERM comes, and goes on.
const STUBBORN: &str = "trap 'cut -d\" \" -f1 /proc/uptime > told' TERM
    sleep 60 & echo $! > child
    echo $$ > leader; while :; do sleep 0.01; done";

/// When the process died, and the end of the lease that held until then, both on the boot clock.
fn death_and_lease_end(place: &Place, pids: &[i32]) -> (Duration, Duration) {
    let mut end = Duration::ZERO;
    wait_for("the end of the command", || {
        end = place.lease_end("x").unwrap_or(end).max(end);
        pids.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
    (boot_clock(), end)
}

/// When the command heard SIGTERM, if it did.
fn told(place: &Place) -> Option<Duration> {
    let text = std::fs::read_to_string(place.path("told")).ok()?;
    text.trim().parse().ok().map(Duration::from_secs_f64)
}

#[test]
fn a_store_that_falls_silent_ends_the_command_before_the_lease_passes() {
    for (fault, expiry) in [("renew.hang", "3s"), ("renew.fail", "1s"), ("renew.hang", "500ms")] {
        in_time(|| {
            let place = Place::new();
            let run =
                Background::start(place.leased().args(["run", "--expiry", expiry, "x"]).args(sh(STUBBORN)));
            let pids = [place.wait_for_pid("leader"), place.wait_for_pid("child")];
            place.fault(fault);
            let (death, end) = death_and_lease_end(&place, &pids);
            if death >= end {
                return Err(format!("died at {death:?} at the latest, lease until {end:?}"));
            }
            let told = told(&place).ok_or("it had no time to hear SIGTERM before SIGKILL")?;
            assert!(told <= death, "SIGTERM came before SIGKILL");
            println!(
                "{fault} with a lease of {expiry}: SIGTERM {:?} and dead {:?} before its end",
                end.saturating_sub(told),
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
fn a_short_outage_ends_nothing() {
    let place = Place::new();
    let script = "echo $$ > leader; while ! test -e go; do sleep 0.01; done; exit 3";
    let run = Background::start(place.leased().args(["run", "--expiry", "3s", "x"]).args(sh(script)));
    place.wait_for_pid("leader");
    let before = place.lease_end("x").unwrap();
    place.fault("renew.fail");
    // Past the moment at which it was due, and well before the end.
    wait_for("a renewal to be missed", || {
        (boot_clock() > before - Duration::from_millis(1700)).then_some(())
    });
    assert_eq!(place.lease_end("x").unwrap(), before);
    place.mend("renew.fail");
    wait_for("an extension", || (place.lease_end("x").unwrap() > before).then_some(()));
    std::fs::write(place.path("go"), "").unwrap();
    let (code, said) = run.finish();
    assert_eq!((code, said.as_str()), (3, ""));
}

#[test]
fn a_broken_lock_ends_the_command_with_sigterm_first() {
    let place = Place::new();
    let script = "trap 'echo > tidied; exit 0' TERM; echo $$ > leader; while :; do sleep 0.01; done";
    let run = Background::start(place.leased().args(["run", "--expiry", "2s", "x"]).args(sh(script)));
    place.wait_for_pid("leader");
    let token = place.record("x")["holder"]["token"].as_u64().unwrap();
    let broken = place.leased().args(["break", "x", "--yes"]).output().unwrap();
    assert_eq!(code(&broken), 0, "{}", stderr(&broken));
    let (status, said) = run.finish();
    assert_eq!(status, 76, "though the command said 0: {said}");
    assert!(place.path("tidied").exists(), "it was told, and had its time");
    assert!(said.contains("lost mutex \"x\"") && said.contains("not ours any more"), "{said}");
    let next = place
        .leased()
        .args(["run", "x", "--", "sh", "-c", "test $DISTLOCK_TOKEN -gt $0"])
        .arg(token.to_string())
        .output()
        .unwrap();
    assert_eq!(code(&next), 0, "the next token is higher");
}

#[test]
fn a_command_that_does_not_listen_is_killed_when_its_grace_is_over() {
    in_time(|| {
        let place = Place::new();
        let args = ["run", "--expiry", "6s", "--grace", "1s", "x"];
        let run = Background::start(place.leased().args(args).args(sh(STUBBORN)));
        let pids = [place.wait_for_pid("leader"), place.wait_for_pid("child")];
        // The lock cannot be renewed, and is still held: that is what a grace is for.
        place.fault("renew.fail");
        wait_for("the end of the command", || pids.iter().all(|pid| !is_alive(*pid)).then_some(()));
        let told = told(&place).ok_or("it had no time to hear SIGTERM before SIGKILL")?;
        let took = boot_clock().saturating_sub(told);
        println!("grace of 1 s: dead {took:?} after SIGTERM");
        assert_eq!(run.finish().0, 76);
        // What it notes of SIGTERM may come late, and then the grace looks short.
        if took >= Duration::from_millis(800) { Ok(()) } else { Err(format!("it had {took:?} of its grace")) }
    });
}

/// What the help of `run` promises once the lock is certainly gone.
const BOUND: Duration = Duration::from_secs(1);

/// How long the command ran on after `since`, if that is longer than it may.
fn dead_in_time(since: Duration, pids: &[i32]) -> Result<(), String> {
    wait_for("the end of the command", || pids.iter().all(|pid| !is_alive(*pid)).then_some(()));
    let took = boot_clock().saturating_sub(since);
    println!("dead {took:?} after the lock was gone");
    if took <= BOUND { Ok(()) } else { Err(format!("it ran on for {took:?}")) }
}

#[test]
fn a_command_whose_lock_file_was_removed_does_not_run_on_beside_the_next_holder() {
    for (options, file) in [
        (&["--grace", "20s"][..], "mutex/x.lock"),
        (&["--grace", "20s", "--write"], "rwlock/x/hold"),
        (&["--grace", "20s", "--of", "1"], "semaphore/x/hold"),
    ] {
        in_time(|| {
            let place = Place::new();
            let run =
                Background::start(place.distlock().arg("run").args(options).arg("x").args(sh(STUBBORN)));
            let pids = [place.wait_for_pid("leader"), place.wait_for_pid("child")];
            let path = place.path("state/distlock").join(file);
            let removed = boot_clock();
            if path.is_dir() {
                std::fs::remove_dir_all(&path).unwrap();
            } else {
                std::fs::remove_file(&path).unwrap();
            }
            dead_in_time(removed, &pids)?;
            assert!(told(&place).is_some(), "SIGTERM came first");
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
        let place = Place::new();
        let args = ["run", "--expiry", "30s", "--extend-every", "200ms", "--grace", "20s", "x"];
        let run = Background::start(place.leased().args(args).args(sh(STUBBORN)));
        let pids = [place.wait_for_pid("leader"), place.wait_for_pid("child")];
        place.leased().args(["break", "x", "--yes"]).output().unwrap();
        // It notices at its next renewal.
        let told = wait_for("SIGTERM", || told(&place));
        dead_in_time(told, &pids)?;
        assert_eq!(run.finish().0, 76);
        Ok(())
    });
}

#[test]
fn a_grace_that_runs_ends_when_the_lock_turns_out_to_be_gone() {
    in_time(|| {
        let place = Place::new();
        let args = ["run", "--expiry", "24s", "--extend-every", "500ms", "--grace", "1h", "x"];
        let run = Background::start(place.leased().args(args).args(sh(STUBBORN)));
        let pids = [place.wait_for_pid("leader"), place.wait_for_pid("child")];
        place.fault("renew.fail");
        wait_for("SIGTERM", || told(&place));
        // Half of the lease is left, and all of it is grace; but the lock has another holder now.
        place.leased().args(["break", "x", "--yes"]).output().unwrap();
        let other = Background::start(place.leased().args(["run", "x"]).args(sh("echo > other; sleep 60")));
        place.wait_for_file("other");
        assert!(is_alive(pids[0]), "it has its grace until it is known");
        place.mend("renew.fail");
        // The next try to renew is not far.
        dead_in_time(boot_clock() + Duration::from_secs(2), &pids)?;
        assert_eq!(run.finish().0, 76);
        drop(other);
        Ok(())
    });
}

#[test]
fn a_lock_that_was_lost_unnoticed_is_told_at_the_end() {
    let place = Place::new();
    let script = "echo $$ > leader; while ! test -e go; do sleep 0.01; done; exit 0";
    // A least time that is over changes nothing.
    for least in ["0s", "1ms"] {
        let args = ["run", "--hold-at-least", least, "x"];
        let run = Background::start(place.leased().args(args).args(sh(script)));
        place.wait_for_pid("leader");
        // The next extension is ten seconds away.
        place.leased().args(["break", "x", "--yes"]).output().unwrap();
        std::fs::write(place.path("go"), "").unwrap();
        let (code, said) = run.finish();
        assert_eq!(code, 76, "{said}");
        assert!(said.contains("was lost before it was released"), "{said}");
        std::fs::remove_file(place.path("leader")).unwrap();
        std::fs::remove_file(place.path("go")).unwrap();
    }
}

#[test]
fn a_least_time_does_not_keep_a_lock_that_was_lost() {
    let place = Place::new();
    let args = ["run", "--expiry", "1s", "--hold-at-least", "1h", "x"];
    let run = Background::start(place.leased().args(args).args(sh("echo $$ > leader; exec sleep 60")));
    let leader = place.wait_for_pid("leader");
    place.fault("renew.fail");
    wait_for("the end of the command", || (!is_alive(leader)).then_some(()));
    place.mend("renew.fail");
    assert_eq!(run.finish().0, 76);
    assert!(place.record("x")["holder"].is_null(), "given back");
}

#[test]
fn a_release_without_an_answer_is_told_and_the_code_stays_the_commands() {
    let place = Place::new();
    place.fault("release.fail");
    let done = place.leased().args(["run", "x", "--", "sh", "-c", "exit 5"]).output().unwrap();
    assert_eq!(code(&done), 5, "{}", stderr(&done));
    assert!(
        stderr(&done).contains("release") && stderr(&done).contains("ends by itself"),
        "{}",
        stderr(&done)
    );
    assert!(place.record("x")["holder"].is_object());
}

#[test]
fn a_lease_that_ended_while_distlock_was_frozen_before_the_start_runs_nothing() {
    let place = Place::new();
    let holder = Background::start(place.leased().args(["run", "x"]).args(sh("echo > held; exec sleep 60")));
    place.wait_for_file("held");
    // Frozen while it waits: it comes back, asks again, and only then has the lock.
    let waiter = Background::start(
        place.leased().args(["run", "--expiry", "500ms", "x"]).args(sh("echo > ran; exit 6")),
    );
    wait_for("the waiter", || {
        place.record("x")["waiters"].as_array().filter(|all| all.len() == 1).map(|_| ())
    });
    place.freeze_between_steps(&waiter);
    holder.send(Signal::SIGTERM);
    holder.finish();
    // A frozen waiter keeps nobody else waiting.
    let other = place.leased().args(["run", "--timeout", "10s", "x", "true"]).output().unwrap();
    assert_eq!(code(&other), 0, "{}", stderr(&other));
    assert!(!place.path("ran").exists());
    waiter.send(Signal::SIGCONT);
    assert_eq!(waiter.finish().0, 6, "and it still gets its turn");
}
