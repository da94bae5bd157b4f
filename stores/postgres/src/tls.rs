//! TLS as libpq means it: whether to encrypt, and whom to believe. With rustls and the provider *ring*, chosen
//! explicitly: a program may have another provider beside it, and rustls does not guess between two.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
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

    /// Takes its parameters out of a URL. As in libpq, except that what asks for a check is never dropped silently: a root
    /// certificate with a mode that does not look at it is refused.
    pub(crate) fn take_from(url: &mut StoreUrl) -> Result<Self> {
        let refuse = |url: &StoreUrl, what: &str| Err(url.refuse(what).advise(ADVICE));
        let mode = url.take_driver("sslmode");
        let roots = url.take_driver("sslrootcert");
        let (certificate, key) = (url.take_driver("sslcert"), url.take_driver("sslkey"));
        let (mode, trust) = match (mode.as_deref(), &roots) {
            (None | Some("disable" | "allow" | "prefer"), Some(_)) => {
                return refuse(url, "it gives sslrootcert, and its sslmode does not check the server");
            }
            (Some("disable"), None) => (SslMode::Disable, Trust::Anybody),
            (None | Some("allow" | "prefer"), None) => (SslMode::Prefer, Trust::Anybody),
            (Some("require"), None) => (SslMode::Require, Trust::Anybody),
            // libpq: a root certificate that is given is used.
            (Some("require"), Some(_)) | (Some("verify-ca"), _) => (SslMode::Require, Trust::Signed),
            (Some("verify-full"), _) => (SslMode::Require, Trust::Host),
            _ => {
                return refuse(
                    url,
                    "its sslmode is none of disable, allow, prefer, require, verify-ca, verify-full",
                );
            }
        };
        let certificate = match (certificate, key) {
            (Some(_), Some(_)) if mode == SslMode::Disable => {
                return refuse(url, "it gives sslcert, and its sslmode is disable");
            }
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => return refuse(url, "of sslcert and sslkey only one is given"),
        };
        let roots = roots.filter(|path| path != "system").map(PathBuf::from);
        Ok(TlsOptions { mode, trust, roots, certificate })
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
                let chain = read_certificates("sslcert", certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("sslkey", &error))?;
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
                for certificate in read_certificates("sslrootcert", path)? {
                    store.add(certificate).map_err(|error| unreadable("sslrootcert", &error))?;
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

const ADVICE: &str = "give sslmode and, to check the server, sslrootcert=/path/to/ca.pem";

fn bad(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, what).advise(ADVICE)
}

/// Which parameter, and not its value: what was meant as something else may stand there.
fn unreadable(parameter: &str, error: &dyn std::fmt::Display) -> Error {
    bad(format!("the file of {parameter} cannot be used: {error}"))
}

fn read_certificates(parameter: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(parameter, &error))?;
    read.collect::<Result<_, _>>().map_err(|error| unreadable(parameter, &error))
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

    fn read(query: &str) -> Result<TlsOptions> {
        TlsOptions::take_from(&mut StoreUrl::parse(&format!(
            "postgres://u@h/db?application_name=me@host{query}"
        ))?)
    }

    #[test]
    fn modes_mean_what_libpq_says() {
        for (query, mode, trust) in [
            ("", SslMode::Prefer, Trust::Anybody),
            ("&sslmode=disable", SslMode::Disable, Trust::Anybody),
            ("&sslmode=allow", SslMode::Prefer, Trust::Anybody),
            ("&sslmode=require", SslMode::Require, Trust::Anybody),
            ("&sslmode=require&sslrootcert=/ca.pem", SslMode::Require, Trust::Signed),
            ("&sslmode=verify-ca", SslMode::Require, Trust::Signed),
            ("&sslmode=verify-full&sslrootcert=system", SslMode::Require, Trust::Host),
        ] {
            let options = read(query).unwrap();
            assert_eq!((options.mode, options.trust), (mode, trust), "{query}");
        }
        let missing = read("&sslmode=verify-full&sslrootcert=/nowhere").unwrap();
        let error = missing.connector().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(
            error.to_string().contains("sslrootcert") && !error.to_string().contains("/nowhere"),
            "{error}"
        );
    }

    #[test]
    fn what_asks_for_a_check_is_not_dropped() {
        for query in [
            "&sslrootcert=/ca.pem",
            "&sslmode=prefer&sslrootcert=/ca.pem",
            "&sslmode=disable&sslrootcert=/ca.pem",
            "&sslmode=disable&sslcert=/c&sslkey=/k",
            "&sslmode=require&sslcert=/c",
            "&sslmode=",
            "&sslmode=Require",
            "&sslmode=require%20",
            "&sslmode=require&sslmode=disable",
            "&sslmode=verify-full&SSLMODE=prefer",
        ] {
            assert_eq!(read(query).unwrap_err().kind(), ErrorKind::InvalidInput, "{query}");
        }
    }

    #[test]
    fn a_connector_needs_no_default_provider() {
        assert!(read("&sslmode=require").unwrap().connector().is_ok());
    }
}
