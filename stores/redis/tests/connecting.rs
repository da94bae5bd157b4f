//! Ways to connect: a Unix socket, TLS with a private authority, a client of the driver, and invalid URLs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{LIMIT, config, locks, locks_of, ms, redlock_config};
use distlock_core::ErrorKind;
use distlock_redis::{RedisConfig, RedisStore};
use distlock_testkit::servers::{DataFolder, Port, RedisServer};

#[tokio::test(flavor = "multi_thread")]
async fn locks_over_a_unix_socket() {
    let server =
        RedisServer::configure().args(["--unixsocket", "redis.sock", "--unixsocketperm", "777"]).start();
    let path = server.folder().join("redis.sock");
    let url = format!("unix://{}?db=1&distlock.prefix=sock:", path.display());
    let (one, other) = (locks(&url, ms(5000)).await, locks(&server.url(), ms(5000)).await);
    let guard = one.mutex("m").acquire().await.unwrap();
    assert!(other.mutex("m").try_acquire().await.unwrap().is_some(), "another database, another prefix");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_driver_keeps_its_address_login_and_database() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["CONFIG", "SET", "requirepass", "s3cret"]).text(), "OK");
    let client = redis::Client::open(format!("redis://:s3cret@{}/3", server.addr())).unwrap();
    let config = RedisConfig::default().prefix("given:").unwrap();
    let store = RedisStore::with_client(client, config).await.unwrap();
    let given = locks_of(&store, ms(5000));
    let url = format!("redis://:s3cret@{}/3?distlock.prefix=given:", server.addr());
    let by_url = locks(&url, ms(5000)).await;
    let guard = given.mutex("m").acquire().await.unwrap();
    assert!(by_url.mutex("m").try_acquire().await.unwrap().is_none(), "another database or prefix");
    // Wake-ups arrive over the store's own connection, although the client of the driver uses RESP2.
    let waiting = tokio::spawn({
        let mutex = given.mutex("w");
        let held = by_url.mutex("w").acquire().await.unwrap();
        async move {
            let waiting = tokio::spawn(async move { mutex.acquire().timeout(LIMIT).await });
            tokio::time::sleep(ms(200)).await;
            held.release().await.unwrap();
            waiting.await.unwrap()
        }
    });
    waiting.await.unwrap().unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    let wrong = redis::Client::open(format!("redis://:wrong@{}", server.addr())).unwrap();
    let error = RedisStore::with_client(wrong, RedisConfig::default()).await.expect_err("a wrong password");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

fn openssl(folder: &Path, words: &str) {
    let output = Command::new("openssl").current_dir(folder).args(words.split(' ')).output();
    let output = output.expect("openssl is missing: apt-get install openssl");
    assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A certificate authority, and a certificate that it issued for 127.0.0.1.
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
async fn tls_with_a_private_authority_and_a_client_certificate() {
    // In a build of the whole workspace two providers are compiled in, and the program must choose one.
    let _ = rustls::crypto::ring::default_provider().install_default();
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

    // The server requires a client certificate, and its authority is not one of the system's.
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
fn invalid_urls_are_refused_before_anything_is_sent() {
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
fn the_options_of_a_url_reach_the_configuration() {
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
