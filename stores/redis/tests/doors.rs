//! Other ways in: a Unix socket, TLS with an authority of our own, and URLs that are wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{LIMIT, config, locks, ms, redlock_config};
use distlock_core::ErrorKind;
use distlock_redis::RedisStore;
use distlock_testkit::servers::{DataFolder, Port, RedisServer};

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket() {
    let server =
        RedisServer::configure().args(["--unixsocket", "redis.sock", "--unixsocketperm", "777"]).start();
    let path = server.folder().join("redis.sock");
    let url = format!("unix://{}?db=1&distlock.prefix=sock:", path.display());
    let (one, other) = (locks(&url, ms(5000)).await, locks(&server.url(), ms(5000)).await);
    let guard = one.mutex("m").acquire().await.unwrap();
    assert!(other.mutex("m").try_acquire().await.unwrap().is_some(), "another database, another prefix");
    guard.release().await.unwrap();
}

fn openssl(folder: &Path, words: &str) {
    let done = Command::new("openssl").current_dir(folder).args(words.split(' ')).output();
    let done = done.expect("openssl is needed: apt-get install openssl");
    assert!(done.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&done.stderr));
}

/// An authority, and a certificate of it for 127.0.0.1.
fn certificates(folder: &Path) {
    openssl(
        folder,
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority",
    );
    openssl(folder, "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost");
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    openssl(
        folder,
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile names",
    );
    // The server runs as another user than the tests.
    for file in ["ca.pem", "server.pem", "server.key"] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(folder.join(file), std::fs::Permissions::from_mode(0o644)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_an_authority_of_our_own_and_a_certificate_to_show() {
    let folder = DataFolder::create();
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let port = Port::reserve();
    let number = port.number().to_string();
    let server = RedisServer::configure()
        .args(["--tls-port", &number, "--tls-ca-cert-file", &file("ca.pem")])
        .args(["--tls-cert-file", &file("server.pem"), "--tls-key-file", &file("server.key")])
        .start();
    let bare = format!("rediss://127.0.0.1:{number}");
    let trusting = format!("{bare}?distlock.tls_ca={}", file("ca.pem"));

    // The server specs to see a certificate, and nobody trusts its authority unless told to.
    for url in [&bare, &trusting] {
        let error =
            RedisStore::connect(config(url).unwrap()).await.expect_err("TLS without the certificates");
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable), "{error}");
    }
    let whole = format!(
        "{trusting}&distlock.tls_cert={}&distlock.tls_key={}",
        file("server.pem"),
        file("server.key")
    );
    let (secure, plain) = (locks(&whole, ms(5000)).await, locks(&server.url(), ms(5000)).await);
    let guard = secure.mutex("m").acquire().timeout(LIMIT).await.unwrap();
    assert!(plain.mutex("m").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[test]
fn wrong_urls_are_refused_before_anything_is_sent() {
    for url in [
        "redis://host:notaport",
        "redis://host/notadb",
        "redis://host?distlock.prefix=a%20b",
        "redis://host?distlock.prefix=a{b",
        "redis://host?distlock.nonsense=1",
        "redis://host?distlock.response_timeout=soon",
        "redis://host?distlock.response_timeout=1ms",
        "redis://host?distlock.min_replicas=-1",
        "redis://host?distlock.retention=0s",
        "redis://host?distlock.tls_ca=/nowhere/ca.pem",
        "rediss://host?distlock.tls_ca=/nowhere/ca.pem",
        "rediss://host/#insecure",
        "redis://host?distlock.sentinel_user=u",
        "redis+sentinel://h1,h2",
        "redis+sentinel://h1,h2/a/b",
        "redis+sentinel:///mymaster",
        "redis+cluster://h1,h2/1",
        "redis+cluster://h1,,h2",
        "redis+cluster://h1,h1",
        "redis+cluster://h1?protocol=resp2",
        "redis+cluster:h1",
    ] {
        let error = config(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}: {error}");
        assert!(error.advice().is_some(), "{url}: {error}");
    }
    for url in ["redlock://", "redlock://a,b,a", "redlock://a,b,c/x", "redlock://a?distlock.node_timeout=0ms"]
    {
        let error = redlock_config(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}: {error}");
    }
}

#[test]
fn urls_say_what_they_mean() {
    let shown = |url: &str| format!("{:?}", config(url).unwrap());
    let one = shown("redis://u:s3cret@h:7/2?distlock.prefix=&distlock.min_replicas=2");
    assert!(one.contains(r#"Tcp("h", 7)"#) && one.contains("database: 2"), "{one}");
    assert!(one.contains(r#"prefix: """#) && one.contains("min_replicas: 2"), "{one}");
    let cluster = shown("rediss+cluster://u:s3cret@[::1]:7001,h2");
    assert!(cluster.contains("tls: true") && cluster.contains(r#"Tcp("h2", 6379)"#), "{cluster}");
    let sentinel =
        shown("redis+sentinel://u:s3cret@h1,h2:26380/my%2Dmaster?distlock.sentinel_password=s3cret");
    assert!(sentinel.contains(r#"master: "my-master""#), "{sentinel}");
    let redlock = format!("{:?}", redlock_config("redlock://u:s3cret@a,v:s3cret@b,c/1").unwrap());
    assert!(redlock.contains("login: true") && redlock.contains("login: false"), "{redlock}");
    for text in [one, cluster, sentinel, redlock] {
        assert!(!text.contains("s3cret"), "{text}");
    }
}
