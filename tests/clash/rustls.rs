//! An application with a `rustls` of its own, which chooses no crypto provider because it has only one.

use distlock::ErrorKind;
use rustls::crypto::CryptoProvider;

/// Nothing listens there.
const POSTGRES: &str = "postgres://127.0.0.1:1/app?sslmode=";
const REDIS: &str = "rediss://127.0.0.1:1/";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // Without a feature and without a default provider, TLS that is required is refused with what to do.
    let required = format!("{POSTGRES}require");
    if env!("CARGO_PKG_NAME") == "clash-rustls-default" {
        let error = distlock::connect(&required).await.expect_err("no server listens");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("tls-ring"), "{error}");
    }
    refused_by_the_network(&format!("{POSTGRES}prefer")).await;
    assert!(CryptoProvider::get_default().is_none(), "distlock installed a default crypto provider");

    // Panics if two crypto providers are compiled in, or none.
    let roots = rustls::RootCertStore::empty();
    let _config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    assert!(CryptoProvider::get_default().is_some());

    // From here on the stores use the application's provider, and fail because nothing listens.
    refused_by_the_network(&required).await;
    refused_by_the_network(REDIS).await;
    println!("one crypto provider");
}

async fn refused_by_the_network(url: &str) {
    let error = distlock::connect(url).await.expect_err("no server listens");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
}
