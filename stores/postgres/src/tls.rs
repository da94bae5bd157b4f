//! TLS as libpq means it: whether to encrypt, and whom to believe. With rustls and the provider *ring*, chosen
//! explicitly: a program may have another provider beside it, and rustls does not guess between two.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use distlock_core::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// What to make of the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Encrypt, and believe anybody: what `prefer` and `require` mean without a root certificate.
    Anybody,
    /// It must be signed by somebody we know, whatever its name.
    Signed,
    /// It must be signed by somebody we know and made for this host.
    Host,
}

/// `sslmode`, `sslrootcert`, `sslcert` and `sslkey` of a URL.
#[derive(Clone, Debug)]
pub(crate) struct TlsOptions {
    mode: SslMode,
    trust: Trust,
    roots: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
}

impl TlsOptions {
    pub(crate) fn of_mode(mode: SslMode) -> Self {
        TlsOptions { mode, trust: Trust::Anybody, roots: None, certificate: None }
    }

    pub(crate) fn driver_mode(&self) -> SslMode {
        self.mode
    }

    /// Takes its parameters out of a URL, since the driver does not know all of them.
    pub(crate) fn take_from(url: &str) -> Result<(String, Self)> {
        let (base, query) = match url.split_once('?') {
            // A question mark before the last @ belongs to a password that was not escaped.
            Some((base, query)) if !query.contains('@') => (base, query),
            _ => (url, ""),
        };
        let (mut rest, mut mode, mut roots) = (Vec::new(), None, None);
        let (mut certificate, mut key) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = || percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "sslmode" => mode = Some(value()),
                "sslrootcert" => roots = Some(value()),
                "sslcert" => certificate = Some(PathBuf::from(value())),
                "sslkey" => key = Some(PathBuf::from(value())),
                _ => rest.push(pair),
            }
        }
        let (mode, trust) = match (mode.as_deref().unwrap_or("prefer"), &roots) {
            ("disable", _) => (SslMode::Disable, Trust::Anybody),
            ("allow" | "prefer", _) => (SslMode::Prefer, Trust::Anybody),
            ("require", None) => (SslMode::Require, Trust::Anybody),
            // libpq: a root certificate that is given is used.
            ("require", Some(_)) | ("verify-ca", _) => (SslMode::Require, Trust::Signed),
            ("verify-full", _) => (SslMode::Require, Trust::Host),
            _ => {
                return Err(bad(
                    "sslmode is none of disable, allow, prefer, require, verify-ca, verify-full",
                ));
            }
        };
        let certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(bad("of sslcert and sslkey only one is given")),
        };
        let roots = roots.filter(|path| path != "system").map(PathBuf::from);
        let url = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
        Ok((url, TlsOptions { mode, trust, roots, certificate }))
    }

    /// Reads the certificates.
    pub(crate) fn connector(&self) -> Result<MakeRustlsConnect> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match self.trust {
            Trust::Anybody => Arc::new(Lenient { inner: None, provider: Arc::clone(&provider) }),
            Trust::Signed | Trust::Host => {
                let inner = WebPkiServerVerifier::builder_with_provider(
                    Arc::new(self.read_roots()?),
                    Arc::clone(&provider),
                )
                .build()
                .map_err(|error| bad(format!("the root certificates cannot be used: {error}")))?;
                match self.trust {
                    Trust::Signed => {
                        Arc::new(Lenient { inner: Some(inner), provider: Arc::clone(&provider) })
                    }
                    _ => inner,
                }
            }
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(format!("TLS cannot be set up: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = read_certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| bad(format!("the client certificate cannot be used: {error}")))?
            }
        };
        // Needed for `sslnegotiation=direct`; servers that do not know it pass over it.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(MakeRustlsConnect::new(config))
    }

    fn read_roots(&self) -> Result<RootCertStore> {
        let mut store = RootCertStore::empty();
        match &self.roots {
            Some(path) => {
                for certificate in read_certificates(path)? {
                    store.add(certificate).map_err(|error| unreadable(path, &error))?;
                }
            }
            None => {
                let _ = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if store.is_empty() {
            return Err(bad("there is no root certificate to check the server's with"));
        }
        Ok(store)
    }
}

fn bad(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
        .advise("give sslmode and, to check the server, sslrootcert=/path/to/ca.pem")
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Error {
    bad(format!("{} cannot be read: {error}", path.display()))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, &error))?;
    read.collect::<Result<_, _>>().map_err(|error| unreadable(path, &error))
}

/// Checks less than a browser would: the signer but not the host name, or nothing at all.
#[derive(Debug)]
struct Lenient {
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        // The name is looked at last, so whoever fails by its name alone is signed well.
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_mean_what_libpq_says() {
        for (query, mode, trust) in [
            ("", SslMode::Prefer, Trust::Anybody),
            ("?sslmode=disable", SslMode::Disable, Trust::Anybody),
            ("?sslmode=require", SslMode::Require, Trust::Anybody),
            ("?sslmode=require&sslrootcert=/ca.pem", SslMode::Require, Trust::Signed),
            ("?sslmode=verify-ca", SslMode::Require, Trust::Signed),
            ("?sslmode=verify-full&sslrootcert=system", SslMode::Require, Trust::Host),
        ] {
            let url = format!("postgres://u@h/db{query}{}port=1", if query.is_empty() { "?" } else { "&" });
            let (rest, options) = TlsOptions::take_from(&url).unwrap();
            assert_eq!((options.mode, options.trust), (mode, trust), "{query}");
            assert_eq!(rest, "postgres://u@h/db?port=1");
        }
        assert!(TlsOptions::take_from("postgres://h/db?sslcert=/c").is_err());
        let (_, missing) =
            TlsOptions::take_from("postgres://h?sslmode=verify-full&sslrootcert=/nowhere").unwrap();
        assert_eq!(missing.connector().map(drop).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_connector_needs_no_default_provider() {
        let (_, options) = TlsOptions::take_from("postgres://h/db?sslmode=require").unwrap();
        assert!(options.connector().is_ok());
    }
}
