//! What it is all for: real processes that exclude one another.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Background, Place, code, sh, stderr, wait_for};
use nix::sys::signal::Signal;

/// Reads, waits and writes: two at a time lose a count.
const COUNT: &str = "n=$(cat count); sleep 0.01; echo $((n + 1)) > count";

fn count_to(place: &Place, processes: usize, start: impl Fn() -> Command) {
    fs::write(place.path("count"), "0\n").unwrap();
    let running: Vec<Background> =
        (0..processes).map(|_| Background::start(start().args(["run", "counter"]).args(sh(COUNT)))).collect();
    for run in running {
        let (code, said) = run.finish();
        assert_eq!(code, 0, "{said}");
    }
    assert_eq!(fs::read_to_string(place.path("count")).unwrap().trim(), processes.to_string());
}

#[test]
fn processes_do_not_overlap_on_the_file_store() {
    let place = Place::new();
    count_to(&place, 20, || place.distlock());
}

#[test]
fn processes_do_not_overlap_on_leases() {
    let place = Place::new();
    place.leased();
    let url = place.lease_url();
    count_to(&place, 8, || {
        let mut command = place.distlock();
        command.args(["--store", &url]);
        command
    });
}

#[test]
fn readers_share_and_a_writer_does_not() {
    let place = Place::new();
    let reader = || {
        Background::start(
            place.distlock().args(["run", "--read", "x"]).args(sh("echo > read-$$; exec sleep 60")),
        )
    };
    let (one, two) = (reader(), reader());
    wait_for("two readers at a time", || {
        let reading = fs::read_dir(place.path("")).unwrap().flatten();
        (reading.filter(|e| e.file_name().to_string_lossy().starts_with("read-")).count() == 2).then_some(())
    });
    let write =
        |place: &Place| place.distlock().args(["run", "--no-wait", "--write", "x", "true"]).output().unwrap();
    assert_eq!(code(&write(&place)), 75);
    for reader in [one, two] {
        reader.send(Signal::SIGTERM);
        reader.finish();
    }
    let done = write(&place);
    assert_eq!(code(&done), 0, "{}", stderr(&done));
}

#[test]
fn a_semaphore_admits_as_many_as_it_has_permits() {
    let place = Place::new();
    let start = |n: u32| {
        Background::start(
            place
                .distlock()
                .args(["run", "--of", "2", "gpu"])
                .args(sh(&format!("echo > in-{n}; exec sleep 60"))),
        )
    };
    let (one, _two) = (start(1), start(2));
    place.wait_for_file("in-1");
    place.wait_for_file("in-2");
    let third = || place.distlock().args(["run", "--no-wait", "--of", "2", "gpu", "true"]).output().unwrap();
    assert_eq!(code(&third()), 75);
    one.send(Signal::SIGTERM);
    one.finish();
    assert_eq!(code(&third()), 0);
}

#[test]
fn a_job_that_ends_early_does_not_run_twice() {
    let place = Place::new();
    for mut command in [place.distlock(), place.leased()] {
        let start = Instant::now();
        let run = Background::start(
            command.args(["run", "--hold-at-least", "700ms", "x"]).args(sh("echo > ran; exit 4")),
        );
        place.wait_for_file("ran");
        let (code, said) = run.finish();
        assert_eq!((code, said.as_str()), (4, ""));
        assert!(start.elapsed() >= Duration::from_millis(700));
        fs::remove_file(place.path("ran")).unwrap();
    }
}

#[test]
fn the_least_time_keeps_others_out_and_a_signal_cuts_it_short() {
    let place = Place::new();
    for mut command in [place.distlock(), place.leased()] {
        let run = Background::start(
            command.args(["run", "-v", "--hold-at-least", "1h", "x"]).args(sh("echo > ran; exit 4")),
        );
        place.wait_for_file("ran");
        wait_for("the end of the command", || {
            common::children(run.pid()).iter().all(|pid| !common::is_alive(*pid)).then_some(())
        });
        let args: Vec<_> =
            command.get_args().take_while(|arg| *arg != "run").map(ToOwned::to_owned).collect();
        let other = || place.distlock().args(&args).args(["run", "--no-wait", "x", "true"]).output().unwrap();
        assert_eq!(code(&other()), 75, "kept, though the command is over");
        run.send(Signal::SIGTERM);
        assert_eq!(run.finish().0, 4, "the code stays the command's");
        let after = other();
        assert_eq!(code(&after), 0, "given back at once: {}", stderr(&after));
        fs::remove_file(place.path("ran")).unwrap();
    }
}

#[test]
fn a_wait_is_explained_to_whoever_asks_for_more() {
    let place = Place::new();
    let holder =
        Background::start(place.distlock().args(["run", "x"]).args(sh("echo > held; exec sleep 60")));
    place.wait_for_file("held");
    let label = format!(":{}", holder.pid());
    let done = place.distlock().args(["run", "-v", "--timeout", "1500ms", "x", "true"]).output().unwrap();
    assert_eq!(code(&done), 75);
    let said = stderr(&done);
    assert!(said.contains("waiting for mutex \"x\", held by ") && said.contains(&label), "{said}");
    let silent = place.distlock().args(["run", "--timeout", "1200ms", "x", "true"]).output().unwrap();
    assert_eq!(stderr(&silent).lines().count(), 1, "not on what is no terminal: {}", stderr(&silent));
}
