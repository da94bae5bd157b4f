//! Hazard: `ls --watch` misses a change, repeats what did not change, or runs on when its reader is gone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{Sandbox, code, stderr, wait_for};

/// A watching `distlock`, killed when the test ends.
struct Watch {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watch {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Watch { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "it ended");
        line.trim_end().to_owned()
    }

    /// The lines up to the next empty one.
    fn block(&mut self) -> Vec<String> {
        let mut block = Vec::new();
        loop {
            match self.line() {
                empty if empty.is_empty() => return block,
                line => block.push(line),
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_change_is_one_block_and_passing_time_is_none() {
    let sandbox = Sandbox::new();
    let mut watch = Watch::start(sandbox.distlock().args(["ls", "--watch=100ms"]));
    assert_eq!(watch.block().len(), 1, "an empty list is a list");
    let run = sandbox.hold(sandbox.distlock().args(["run", "x"]));
    let held = watch.block();
    assert!(held.len() == 2 && held[0].starts_with("KIND") && held[1].contains(" x "), "{held:?}");
    // The time held changes meanwhile: were it a change, the next block would still have the lock.
    wait_for("the lock to be held for a while", || {
        let list = sandbox.distlock().args(["ls"]).output().unwrap();
        String::from_utf8_lossy(&list.stdout).contains("1.").then_some(())
    });
    drop(run);
    assert!(watch.block()[0].starts_with("no lock is held"));
}

#[test]
fn json_is_one_array_a_line() {
    let sandbox = Sandbox::new();
    let mut watch = Watch::start(sandbox.leased().args(["ls", "--watch=100ms", "--json"]));
    assert_eq!(watch.line(), "[]");
    let _run = sandbox.hold(sandbox.leased().args(["run", "x"]));
    let list: serde_json::Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(list[0]["name"], "x", "{list}");
}

#[test]
fn an_outage_that_began_meanwhile_does_not_end_the_watch() {
    let sandbox = Sandbox::new();
    let mut watch = Watch::start(sandbox.leased().args(["ls", "--watch=100ms", "--json"]));
    assert_eq!(watch.line(), "[]");
    sandbox.fault("inspect.fail");
    wait_for("a failed list", || {
        let failed = sandbox.distlock().args(["--store", &sandbox.lease_url(), "ls"]).output().unwrap();
        (code(&failed) == 69).then_some(())
    });
    sandbox.clear_fault("inspect.fail");
    let _run = sandbox.hold(sandbox.leased().args(["run", "x"]));
    assert!(watch.line().contains("\"x\""));
}

#[test]
fn a_reader_that_is_gone_ends_it() {
    let sandbox = Sandbox::new();
    let mut watch = Watch::start(sandbox.distlock().args(["ls", "--watch=100ms"]));
    assert_eq!(watch.block().len(), 1);
    let mut child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    drop(std::mem::replace(&mut watch.lines, BufReader::new(child.stdout.take().unwrap())));
    child.wait().unwrap();
    let status = wait_for("the end of the watch", || watch.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn an_interval_that_would_flood_the_store_is_refused() {
    let sandbox = Sandbox::new();
    for bad in ["--watch=0s", "--watch=99ms", "--watch=5"] {
        let done = sandbox.distlock().args(["ls", bad]).output().unwrap();
        assert_eq!(code(&done), 64, "{}", stderr(&done));
    }
}
