//! Every command on every store that has a server: the contract is the same there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::process::Command;

use common::{BINARY, Background, Place, code, sh, stderr, stdout, wait_until_dead};
use distlock_testkit::servers::{MongoServer, PostgresServer, RedisServer, ServerProcess};

const NAME: &str = "a b/ü";

/// A place on a store.
struct Site {
    place: Place,
    url: String,
}

impl Site {
    fn new(url: String) -> Self {
        Site { place: Place::new(), url }
    }

    fn distlock(&self) -> Command {
        let mut command = self.place.distlock();
        command.env("DISTLOCK_STORE", &self.url).env("D", BINARY);
        command
    }

    /// Runs it to its end; asserts its exit code, and gives what it wrote.
    fn ends_with(&self, wanted: i32, args: &[&str]) -> String {
        let done = self.distlock().args(args).output().unwrap();
        assert_eq!(code(&done), wanted, "{}: {args:?}: {}", self.url, stderr(&done));
        stdout(&done)
    }

    /// Holds the lock with a command that goes on for long: its token, and its process.
    fn hold(&self, expiry: &str) -> (Background, u64, i32) {
        let script = "echo $$ > pid; echo $DISTLOCK_TOKEN > token; exec sleep 60";
        for file in ["pid", "token"] {
            let _ = std::fs::remove_file(self.place.path(file));
        }
        let run = Background::start(self.distlock().args(["run", "--expiry", expiry, NAME]).args(sh(script)));
        let token = self.place.wait_for_file("token").trim().parse().unwrap();
        (run, token, self.place.wait_for_pid("pid"))
    }
}

fn every_command_does_what_it_says(url: String, server: &ServerProcess, has_schema: bool, pushes: bool) {
    let site = Site::new(url);
    let (holder, token, _) = site.hold("10s");
    site.ends_with(75, &["run", "--no-wait", NAME, "true"]);
    site.ends_with(9, &["run", "--timeout", "300ms", "-E", "9", NAME, "true"]);
    let listed: serde_json::Value =
        serde_json::from_str(&site.ends_with(0, &["ls", "a b", "--json"])).unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!((&listed[0]["kind"], &listed[0]["mode"]), (&"mutex".into(), &"exclusive".into()), "{listed}");
    assert!(listed[0]["holder"].as_str().unwrap().ends_with(&format!(":{}", holder.pid())), "{listed}");
    assert_eq!(listed[0]["token"], token, "{listed}");
    assert!(site.ends_with(0, &["show", NAME]).contains("mutex"));

    let broken = site.distlock().args(["break", NAME, "--yes"]).output().unwrap();
    let said = stderr(&broken);
    assert_eq!(code(&broken), 0, "{said}");
    assert_eq!(said.contains("told at once"), pushes, "{said}");
    assert!(said.contains(&format!(":{} ", holder.pid())) && said.contains("side by side"), "{said}");
    let (status, said) = holder.finish();
    assert_eq!(status, 76, "{said}");
    let next = site.ends_with(0, &["run", NAME, "--", "sh", "-c", "echo $DISTLOCK_TOKEN"]);
    assert!(next.trim().parse::<u64>().unwrap() > token, "{next} after {token}");

    let inner = "\"$D\" run --no-wait --read both true && ! \"$D\" run --no-wait --write both true";
    site.ends_with(0, &["run", "--read", "both", "--", "sh", "-c", inner]);
    site.ends_with(
        75,
        &[
            "run",
            "--of",
            "3",
            "--permits",
            "2",
            "gpu",
            BINARY,
            "run",
            "-n",
            "--of",
            "3",
            "--permits",
            "2",
            "gpu",
            "true",
        ],
    );
    site.ends_with(0, &["run", "--fair", NAME, "true"]);
    assert_eq!(site.ends_with(0, &["ls", "--json"]), "[]\n", "nothing is left behind");

    let examined = site.distlock().arg("doctor").output().unwrap();
    assert!([0, 1].contains(&code(&examined)) && !stdout(&examined).is_empty(), "{}", stderr(&examined));
    let schema = site.ends_with(if has_schema { 0 } else { 64 }, &["schema"]);
    assert_eq!(!schema.is_empty(), has_schema, "{schema}");

    let (holder, _, command) = site.hold("3s");
    server.kill();
    wait_until_dead(command);
    let (status, said) = holder.finish();
    assert_eq!(status, 76, "{said}");
    for args in [&["run", NAME, "true"][..], &["ls"], &["doctor"]] {
        site.ends_with(69, args);
    }
}

#[test]
fn redis() {
    let server = RedisServer::start();
    every_command_does_what_it_says(server.url(), &server, false, true);
}

#[test]
fn postgres() {
    let server = PostgresServer::start();
    every_command_does_what_it_says(server.url(), &server, true, true);
}

#[test]
fn postgres_advisory() {
    let server = PostgresServer::start();
    every_command_does_what_it_says(
        server.url().replace("postgres:", "postgres+advisory:"),
        &server,
        true,
        true,
    );
}

#[test]
fn mongodb() {
    let server = MongoServer::start();
    every_command_does_what_it_says(server.url().replace("/?", "/locks?"), &server, true, false);
}
