//! Hazard: an error hides what an operator needs among hundreds of characters of the driver's own, or says nothing to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Sandbox, code, stderr};
use distlock_testkit::servers::mongodb::bson::Document;
use distlock_testkit::servers::{MongoServer, MysqlServer, PostgresServer, RedisServer};

/// What `run` says about a store, in one line.
fn said(sandbox: &Sandbox, url: &str, wanted: i32) -> String {
    let done = sandbox.distlock().env("DISTLOCK_STORE", url).args(["run", "x", "true"]).output().unwrap();
    let said = stderr(&done);
    assert_eq!(code(&done), wanted, "{url}: {said}");
    assert_eq!(said.lines().count(), 1, "{url}: {said}");
    said
}

#[test]
fn a_refused_connection_is_said_in_few_words() {
    let sandbox = Sandbox::new();
    for url in [
        "redis://127.0.0.1:1",
        "redis+cluster://127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/main",
        "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        "postgres://127.0.0.1:1/db",
        "postgres+advisory://127.0.0.1:1/db",
        "mysql://u@127.0.0.1:1/db",
        "etcd://127.0.0.1:1",
        "zookeeper://127.0.0.1:1",
        "mongodb://127.0.0.1:1/db",
    ] {
        let said = said(&sandbox, url, 69);
        assert!(
            said.contains("127.0.0.1:1") && said.contains("Connection refused; check that"),
            "{url}: {said}"
        );
        assert!(said.starts_with("distlock: cannot connect to "), "{url}: {said}");
        for noise in ["os error", "Topology", "transport", "Input/output", "error connecting", "labels"] {
            assert!(!said.contains(noise), "{url}: {noise} in {said}");
        }
        assert!(said.len() < 220, "{url}: {} characters: {said}", said.len());
    }
}

#[test]
fn an_unknown_option_of_a_driver_is_named() {
    let sandbox = Sandbox::new();
    for url in [
        "redis://127.0.0.1:1?bogus=s3cret",
        "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?bogus=s3cret",
        "postgres://127.0.0.1:1/db?sslmode=disable&bogus=s3cret",
        "postgres+advisory://127.0.0.1:1/db?bogus=s3cret",
        "mysql://u@127.0.0.1:1/db?bogus=s3cret",
        "etcd://127.0.0.1:1?bogus=s3cret",
        "zookeeper://127.0.0.1:1?bogus=s3cret",
        "mongodb://127.0.0.1:1/db?replicaSet=r&bogus=s3cret",
        "file:///tmp/x?bogus=s3cret",
        "memory:?bogus=s3cret",
    ] {
        let said = said(&sandbox, url, 64);
        assert!(said.contains("\"bogus\"") && !said.contains("s3cret"), "{url}: {said}");
    }
}

/// Without a login, and with a wrong one.
fn login_is_explained(url: &str, host: &str) {
    let sandbox = Sandbox::new();
    let missing = said(&sandbox, url, 69);
    assert!(missing.contains("put user:password into the URL"), "{missing}");
    let wrong = said(&sandbox, &url.replace(host, &format!("nobody:s3cret@{host}")), 69);
    assert!(wrong.contains("check") && !wrong.contains("s3cret"), "{wrong}");
    for text in [missing, wrong] {
        assert!(text.len() < 320, "{} characters: {text}", text.len());
    }
}

#[test]
fn a_missing_login_on_redis_says_where_to_put_it() {
    let server = RedisServer::start();
    server.command(&["CONFIG", "SET", "requirepass", "word"]);
    login_is_explained(&server.url(), "127.0.0.1");
}

#[test]
fn a_missing_login_on_postgres_says_where_to_put_it() {
    let server = PostgresServer::start();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'word'");
    server.sql("ALTER SYSTEM SET password_encryption = 'scram-sha-256'");
    let hba = server.value("SHOW hba_file");
    // Only what the server allows from now on; it reads the file again.
    std::fs::write(&hba, "host all all 127.0.0.1/32 scram-sha-256\n").unwrap();
    server.sql("SELECT pg_reload_conf()");
    common::wait_for("passwords to be asked for", || server.try_sql("SELECT 1").is_err().then_some(()));
    let port = server.url().rsplit(':').next().unwrap().split('/').next().unwrap().to_owned();
    for scheme in ["postgres", "postgres+advisory"] {
        login_is_explained(&format!("{scheme}://127.0.0.1:{port}/postgres"), "127.0.0.1");
        let sandbox = Sandbox::new();
        let user_only = said(&sandbox, &format!("{scheme}://app@127.0.0.1:{port}/postgres"), 69);
        assert!(user_only.contains("put user:password into the URL"), "{user_only}");
    }
}

#[test]
fn a_missing_login_on_mysql_says_where_to_put_it() {
    let server = MysqlServer::start();
    let port = server.url().rsplit(':').next().unwrap().split('/').next().unwrap().to_owned();
    login_is_explained(&format!("mysql://127.0.0.1:{port}/app"), "127.0.0.1");
}

#[test]
fn a_missing_login_on_mongodb_says_where_to_put_it() {
    let server = MongoServer::configure().args(["--auth"]).start();
    // From the same machine the first user can be created without a login.
    let role = Document::new("role", "root").with("db", "admin");
    let user = Document::new("createUser", "root").with("pwd", "word").with("roles", vec![role]);
    server.command("admin", &user).unwrap();
    login_is_explained(&server.url().replace("/?", "/locks?"), "127.0.0.1");
}
