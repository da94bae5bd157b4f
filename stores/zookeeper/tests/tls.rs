//! TLS to a real server, with a private authority and client certificates.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use distlock_core::ErrorKind;
use distlock_core::Locks;
use distlock_core::store::{Level, StoreUrl};
use distlock_testkit::servers::{Port, ZookeeperServer, wait_for};
use distlock_zookeeper::DRIVER;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// An authority, and a certificate of it for a name.
fn certificates(name: &str) -> (String, String, String) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    (authority_certificate.pem(), certificate.pem(), key.serialize_pem())
}

fn write(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_a_private_authority_and_a_client_certificate() {
    let unchosen = StoreUrl::parse("zookeepers://localhost:1?distlock.tls_ca=/dev/null").unwrap();
    let error = DRIVER.connect(unchosen).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    rustls::crypto::ring::default_provider().install_default().unwrap();
    let (authority, certificate, key) = certificates("localhost");
    let (stranger, ..) = certificates("localhost");
    let port = Port::reserve();
    let server = ZookeeperServer::configure()
        .setting("serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
        .setting(format!("secureClientPort={}", port.number()))
        .setting("ssl.keyStore.location={folder}/server.pem")
        .setting("ssl.trustStore.location={folder}/ca.pem")
        .setting("ssl.clientAuth=need")
        .file("server.pem", format!("{key}{certificate}"))
        .file("ca.pem", authority.clone())
        .start();
    wait_for("the secure port is open", Duration::from_secs(30), || {
        std::net::TcpStream::connect(port.addr()).ok().map(drop)
    });
    let folder = server.folder();
    let bare = format!("zookeepers://localhost:{}", port.number());
    let trusting = format!("{bare}?distlock.tls_ca={}", write(folder, "our-ca.pem", &authority));
    let client = format!(
        "&distlock.tls_cert={}&distlock.tls_key={}",
        write(folder, "our.pem", &certificate),
        write(folder, "our.key", &key)
    );
    let connect = async |url: &str| DRIVER.connect(StoreUrl::parse(url).unwrap()).await;
    // Without an authority, with that of another, and without a client certificate.
    assert_eq!(connect(&bare).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let foreign = format!("{bare}?distlock.tls_ca={}{client}", write(folder, "other-ca.pem", &stranger));
    for refused in [&foreign, &trusting] {
        let error = connect(refused).await.expect_err("TLS without the certificates");
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable), "{error}");
    }
    let secure = Locks::new(connect(&format!("{trusting}{client}")).await.unwrap()).unwrap();
    let plain = Locks::new(connect(&server.url()).await.unwrap()).unwrap();
    let guard = secure.mutex("m").acquire().await.unwrap();
    assert!(plain.mutex("m").try_acquire().await.unwrap().is_none());
    let findings = secure.doctor().await.unwrap();
    assert!(
        !findings.iter().any(|found| found.level == Level::Warning && found.what.contains("does not answer")),
        "{findings:?}"
    );
    guard.release().await.unwrap();
}
