//! Users, roles, expired tokens, TLS and client certificates.

use distlock_core::store::{Level, StoreUrl};
use distlock_core::{ErrorKind, Kind};
use distlock_etcd::{DRIVER, EtcdStore};
use distlock_testkit::servers::etcd::Tls;
use distlock_testkit::servers::{DataFolder, EtcdServer};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::support::{LIMIT, config, locks, locks_of, ms, until_waiters};

/// A server with authentication, a user with rights on the prefix, and one without.
fn with_users() -> EtcdServer {
    let server = EtcdServer::start();
    for words in [
        "user add root:top-secret",
        "role add locks",
        "role grant-permission locks readwrite --prefix=true distlock/",
        "user add app:secret",
        "user grant-role app locks",
        "user add guest:secret",
        "user grant-role root root",
        "auth enable",
    ] {
        server.etcdctl(&words.split(' ').collect::<Vec<_>>());
    }
    server
}

fn as_user(server: &EtcdServer, login: &str) -> String {
    server.url().replace("//", &format!("//{login}@"))
}

async fn refusal(url: &str) -> distlock_core::Error {
    let error = DRIVER.connect(StoreUrl::parse(url).unwrap()).await.unwrap_err();
    assert!(!format!("{error:#}").contains("secret"), "{error:#}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn users_without_rights_are_refused_and_an_expired_token_is_renewed() {
    let server = with_users();
    for login in ["guest:secret", "app:wrong-secret", "nobody:secret"] {
        let error = refusal(&as_user(&server, login)).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{login}: {error}");
    }
    assert_eq!(refusal(&server.url()).await.kind(), ErrorKind::Denied);

    let url = as_user(&server, "app:secret");
    let (ours, other) = (locks(&url, ms(15_000)).await, locks(&url, ms(15_000)).await);
    let held = ours.mutex("m").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.mutex("m").acquire().timeout(LIMIT).await }
    });
    until_waiters(&other, Kind::Mutex, "m", 1).await;
    // A member that restarts has forgotten all tokens.
    server.kill();
    server.start_again();
    ours.mutex("another").acquire().timeout(LIMIT).await.unwrap().release().await.unwrap();
    assert!(!held.is_lost(), "{:?}", held.loss());
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let findings = ours.doctor().await.unwrap();
    assert!(findings.iter().any(|finding| finding.what.contains("without encryption")), "{findings:?}");
}

struct Certificates {
    folder: DataFolder,
    tls: Tls,
}

/// An authority, a certificate for 127.0.0.1, and one for a client.
fn certificates(client_must_have_one: bool) -> Certificates {
    let folder = DataFolder::create();
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new([]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    folder.write("ca.pem", &authority_pem);
    let issuer = Issuer::new(authority, authority_key);
    let server_key = KeyPair::generate().unwrap();
    let server =
        CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&server_key, &issuer).unwrap();
    let client_key = KeyPair::generate().unwrap();
    let mut client = CertificateParams::new([]).unwrap();
    client.distinguished_name.push(DnType::CommonName, "app");
    let client = client.signed_by(&client_key, &issuer).unwrap();
    folder.write("client.pem", &client.pem());
    folder.write("client.key", &client_key.serialize_pem());
    let stranger_key = KeyPair::generate().unwrap();
    let stranger =
        CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&stranger_key).unwrap();
    folder.write("stranger.pem", &stranger.pem());
    let client_authority = client_must_have_one.then_some(authority_pem);
    let tls = Tls { certificate: server.pem(), key: server_key.serialize_pem(), client_authority };
    Certificates { folder, tls }
}

impl Certificates {
    fn option(&self, name: &str, file: &str) -> String {
        format!("distlock.{name}={}", self.folder.path().join(file).display())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_trusted_only_with_a_certificate_of_the_named_authority() {
    let certificates = certificates(false);
    let server = EtcdServer::configure().tls(certificates.tls.clone()).start();
    let ours =
        locks(&format!("{}?{}", server.url(), certificates.option("tls_ca", "ca.pem")), ms(10_000)).await;
    ours.mutex("m").acquire().await.unwrap().release().await.unwrap();
    for wrong in [certificates.option("tls_ca", "stranger.pem"), "distlock.tls=on".to_owned(), String::new()]
    {
        let error = refusal(&format!("{}?{wrong}&distlock.failover_timeout=500ms", server.url())).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{wrong}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_requires_client_certificates_gets_one() {
    let certificates = certificates(true);
    let server = EtcdServer::configure().tls(certificates.tls.clone()).start();
    let ca = certificates.option("tls_ca", "ca.pem");
    let (cert, key) =
        (certificates.option("tls_cert", "client.pem"), certificates.option("tls_key", "client.key"));
    let config = config(&format!("{}?{ca}&{cert}&{key}", server.url()));
    let ours = locks_of(EtcdStore::connect(config).await.unwrap(), ms(10_000));
    let held = ours.mutex("m").acquire().await.unwrap();
    let findings = ours.doctor().await.unwrap();
    let open = findings.iter().find(|finding| finding.what.contains("authentication is off"));
    assert!(open.is_none_or(|finding| finding.level == Level::Ok), "{findings:?}");
    held.release().await.unwrap();
    let error = refusal(&format!("{}?{ca}&distlock.failover_timeout=500ms", server.url())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
