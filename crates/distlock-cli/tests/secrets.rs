//! Hazard: the password in a store's URL shows in a message, a log, or a child process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;

use common::{Background, Sandbox, children, sh, stderr, stdout};
use nix::sys::signal::Signal;

const SECRET: &str = "s3cr3t-w0rd";

fn url(sandbox: &Sandbox) -> String {
    // The test store ignores the authority.
    sandbox.lease_url().replace("distlock-test://", &format!("distlock-test://user:{SECRET}@host"))
}

#[test]
fn errors_and_logs_do_not_show_it() {
    let sandbox = Sandbox::new();
    sandbox.leased();
    let url = url(&sandbox);
    let runs: [&[&str]; 18] = [
        &["--store", &url, "run", "-vv", "x", "true"],
        &["--store", &url, "run", "--read", "x", "true"],
        &["--store", &url, "ls"],
        &["--store", &url, "ls", "--json"],
        &["--store", &url, "show", "x"],
        &["--store", &url, "doctor"],
        &["--store", &url, "doctor", "--json"],
        &["--store", &url, "schema"],
        &["--store", &url, "break", "x"],
        &["--store", &url, "nonsense"],
        &["--store", &url, "run", "--nonsense", "x", "true"],
        &[&url],
        &["run", "--stroe", &url, "x", "true"],
        &[&format!("--stroe={url}"), "ls"],
        &["ls", "one", &url],
        &["--store", &format!("nonsense://user:{SECRET}@host"), "ls"],
        &[&format!("redis://user:word in 'quotes' {SECRET}@host")],
        &["run", &format!("--stroe=redis://user:word \" {SECRET}@host"), "x", "true"],
    ];
    for fault in [None, Some("connect.fail")] {
        if let Some(fault) = fault {
            sandbox.fault(fault);
        }
        for args in runs {
            let done = sandbox.distlock().args(args).output().unwrap();
            let shown = format!("{}{}", stdout(&done), stderr(&done));
            assert!(!shown.contains(SECRET), "{args:?}: {shown}");
        }
    }
}

#[test]
fn urls_that_do_not_work_do_not_show_it() {
    let sandbox = Sandbox::new();
    for url in [
        "postgres://u:SECRET@127.0.0.1:1/db",
        "postgres://127.0.0.1:1/db?password=SECRET",
        "postgres://u:SECRET@host:port/db",
        "mongodb://u:SECRET%ZZ@host/db",
        "mongodb://u:SECRET@127.0.0.1:1/db?serverSelectionTimeoutMS=200",
        "redis://u:SECRET@127.0.0.1:1",
        "redis://SECRET@127.0.0.1:1",
        "redis://u:SECRET at@host:99999",
        "redis://127.0.0.1:1?password=SECRET",
        "redis://127.0.0.1:1#SECRET",
        "redis:/u:SECRET@host",
        "redis//u:SECRET@host",
        "redis+sentinel://u:SECRET@127.0.0.1:1/main",
        "redlock://u:SECRET@127.0.0.1:1,u:SECRET@127.0.0.1:2,127.0.0.1:3",
        "unix:///nowhere?pass=SECRET",
        "file:///tmp/x?password=SECRET",
        "file:///tmp/x?distlock.nonsense=SECRET",
        "u:SECRET@host",
        // Not escaped, or read in another way by another parser.
        "redis+cluster://:SECRET?half@127.0.0.1:1",
        "redis+cluster://:half?SECRET@127.0.0.1:1",
        "redis+cluster://:half/SECRET@127.0.0.1:1",
        "redis+sentinel://:half?SECRET@127.0.0.1:1/main",
        "redlock://u:half,SECRET@127.0.0.1:1,127.0.0.1:2",
        "redlock://127.0.0.1:1,SECRET,u:p@127.0.0.1:2",
        "redis://u:SECRET#x@127.0.0.1:1",
        "redis://u:SECRET\nx@127.0.0.1:1",
        "redis://127.0.0.1:1/SECRET",
        "rediss://127.0.0.1:1?distlock.tls_ca=/nowhere/SECRET",
        "postgres://127.0.0.1:1/db?password=SECRET&user=me@srv",
        "postgres://u:half?SECRET@127.0.0.1:1/db",
        "postgres://u:1234/SECRET@127.0.0.1:1/db",
        "postgres://127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/nowhere/SECRET",
        "postgres://127.0.0.1:1/db?sslpassword=SECRET",
        "postgres://SECRET@127.0.0.1:1",
        "mongodb://u:half/SECRET@127.0.0.1:1/db",
        "mongodb://127.0.0.1:1/db?authMechanismProperties=TOKEN:SECRET",
        "mongodb://127.0.0.1:1/db?tlsCAFile=/nowhere/SECRET&serverSelectionTimeoutMS=200",
        "file:SECRET",
        "memory://SECRET",
        "SECRET://host",
        "SECRET:x",
    ] {
        let url = url.replace("SECRET", SECRET);
        for command in [&["run", "-vv", "x", "true"][..], &["ls"]] {
            let done = sandbox.distlock().args(["--store", &url]).args(command).output().unwrap();
            let shown = format!("{}{}", stdout(&done), stderr(&done));
            assert!(!done.status.success() && !shown.contains(SECRET), "{url}: {shown}");
        }
    }
}

#[test]
fn help_does_not_show_the_variable() {
    let sandbox = Sandbox::new();
    for args in [&["--help"][..], &["run", "--help"], &["help", "ls"], &["completions", "bash"], &[]] {
        let done = sandbox.distlock().env("DISTLOCK_STORE", url(&sandbox)).args(args).output().unwrap();
        let shown = format!("{}{}", stdout(&done), stderr(&done));
        assert!(!shown.contains(SECRET), "{args:?}");
    }
}

#[test]
fn children_do_not_get_it_in_arguments_or_environment() {
    let sandbox = Sandbox::new();
    sandbox.leased();
    let run = Background::start(
        sandbox
            .distlock()
            .args(["--store", &url(&sandbox), "run", "-v", "x"])
            .args(sh("echo $$ > leader; sleep 60; exit 1")),
    );
    let leader = sandbox.wait_for_pid("leader");
    let watchdog = run.watchdog();
    assert_eq!(children(watchdog), [leader]);
    for pid in [vec![watchdog, leader], children(leader)].concat() {
        for file in ["cmdline", "environ", "comm"] {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains(SECRET), "{file} of {pid}");
        }
    }
    // The store's records are readable for other clients too.
    assert!(!sandbox.record("x").to_string().contains(SECRET));
    run.send(Signal::SIGTERM);
    let (_, said) = run.finish();
    assert!(!said.contains(SECRET) && said.contains("acquired"), "{said}");
}
