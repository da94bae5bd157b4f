//! TLS: which servers are trusted, and that statements, notifications and cancelling work through it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{TestSchema, backend, locks, server, wait_for_waiters, within};
use distlock_core::ErrorKind;
use distlock_testkit::servers::{DataFolder, PostgresServer};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::CryptoProvider;

struct Encrypted {
    server: PostgresServer,
    /// With the certificate of the authority that signed the server's.
    folder: DataFolder,
}

/// A server with a certificate for 127.0.0.1.
fn start() -> Encrypted {
    let folder = DataFolder::create();
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new([]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).unwrap();
    folder.write("ca.pem", &ca_certificate.pem());
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    folder.write("server.pem", &certificate.pem());
    let key = folder.write("server.key", &key.serialize_pem());
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let server = PostgresServer::configure()
        .setting("ssl", "on")
        .setting("ssl_cert_file", &path("server.pem"))
        .setting("ssl_key_file", &path("server.key"))
        .start();
    Encrypted { server, folder }
}

impl Encrypted {
    fn url(&self, scheme: &str, tls: &str) -> String {
        let tls = tls.replace("CA", &self.folder.path().join("ca.pem").display().to_string());
        format!("{}&{tls}", TestSchema::new().url(scheme, &self.server.url()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_verified_as_the_mode_says() {
    let encrypted = start();
    for tls in [
        "sslmode=require",
        "sslmode=verify-ca&sslrootcert=CA",
        "sslmode=verify-full&sslrootcert=CA",
        "sslmode=prefer",
    ] {
        let url = encrypted.url("postgres", tls);
        let through = locks(&url).await;
        assert!(through.capabilities().push, "{tls}: mistaken for a pooler");
        through.mutex("m").acquire().await.unwrap().release().await.unwrap();
        let schema = url.split("distlock.schema=").nth(1).unwrap().split('&').next().unwrap().to_owned();
        let encrypted_now = format!(
            "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = '{schema}'"
        );
        assert_eq!(encrypted.server.value(&encrypted_now), "t", "{tls}");
    }
    assert!(CryptoProvider::get_default().is_none(), "a default crypto provider was installed");
    drop(locks(&encrypted.url("postgres", "sslmode=disable")).await);
    // Its authority is not among the system's root certificates.
    let error = backend(&encrypted.url("postgres", "sslmode=verify-full")).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::InvalidInput), "{error}");

    let by_name =
        encrypted.url("postgres", "sslmode=verify-full&sslrootcert=CA").replace("127.0.0.1", "localhost");
    let error = backend(&by_name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let by_authority =
        encrypted.url("postgres", "sslmode=verify-ca&sslrootcert=CA").replace("127.0.0.1", "localhost");
    drop(locks(&by_authority).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_and_withdrawing_work_through_tls() {
    let encrypted = start();
    for scheme in ["postgres", "postgres+advisory"] {
        let url = encrypted.url(scheme, "sslmode=verify-full&sslrootcert=CA");
        let (one, other) = (locks(&url).await, locks(&url).await);
        let held = one.mutex("m").acquire().await.unwrap();
        let withdrawn = tokio::spawn(other.mutex("m").acquire().into_future());
        wait_for_waiters(&one, "m", 1).await;
        withdrawn.abort();
        wait_for_waiters(&one, "m", 0).await;
        let waiting = tokio::spawn(async move { other.mutex("m").acquire().await.unwrap().release().await });
        wait_for_waiters(&one, "m", 1).await;
        held.release().await.unwrap();
        within("a grant", Duration::from_secs(10), waiting).await.unwrap().unwrap();
    }
}

/// An `@` in the query once hid `sslmode` from its parser, and the session was not encrypted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_parameter_disables_the_encryption_that_another_requires() {
    let (plain, encrypted) = (server(), start());
    for (scheme, asked, is_url) in [
        ("postgres", "sslmode=require&options=-c%20geqo=off&application_name=me@host", true),
        ("postgres", "application_name=me@host&sslmode=require", true),
        ("postgres", "sslmode=verify-full&sslrootcert=CA&application_name=me@host", true),
        ("postgres+advisory", "sslmode=require&application_name=me@host", true),
        ("postgres", "application_name=me@host&sslmode=require&sslmode=disable", false),
        ("postgres", "sslmode=require&application_name=me@host&%73slmode=prefer", false),
        ("postgres", "sslmode=require&application_name=me@host&SSLMODE=disable", false),
    ] {
        let asked = asked.replace("CA", &encrypted.folder.path().join("ca.pem").display().to_string());
        let url = |server: &str| {
            let url = format!("{server}?distlock.schema={}&{asked}", TestSchema::new().name);
            url.replacen("postgres", scheme, 1)
        };
        // This server has no TLS: a session on it would not be encrypted.
        let refused = backend(&url(&plain.url())).await.expect_err(&asked);
        let kind = if is_url { ErrorKind::Unavailable } else { ErrorKind::InvalidInput };
        assert_eq!(refused.kind(), kind, "{asked}: {refused}");
        if !is_url {
            continue;
        }
        let backend = backend(&url(&encrypted.server.url())).await.expect(&asked);
        let sessions = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                        WHERE application_name = 'me@host'";
        assert_eq!(encrypted.server.value(sessions), "t", "{asked}");
        drop(backend);
    }
}
