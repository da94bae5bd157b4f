//! TLS as libpq defines it: whether to encrypt, and which servers to trust. The crypto provider of rustls is
//! passed explicitly: the process's default, or else the one of the feature `tls-ring` or `tls-aws-lc-rs`. The store installs none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use distlock_core::store::StoreUrl;
use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How the server's certificate is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verification {
    /// Not at all: what `prefer` and `require` mean without a root certificate.
    None,
    /// It must be signed by a known authority, whatever its host name.
    Authority,
    /// It must be signed by a known authority and name this host.
    Host,
}

/// `sslmode`, `sslrootcert`, `sslcert` and `sslkey` of a URL.
#[derive(Clone, Debug)]
pub(crate) struct TlsOptions {
    mode: SslMode,
    verification: Verification,
    roots: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
}

impl TlsOptions {
    pub(crate) fn unverified(mode: SslMode) -> Self {
        TlsOptions { mode, verification: Verification::None, roots: None, certificate: None }
    }

    pub(crate) fn driver_mode(&self) -> SslMode {
        self.mode
    }

    /// Takes its parameters out of a URL. As in libpq, except that no request for verification is ignored: a root certificate
    /// with a mode that does not use it is refused.
    pub(crate) fn take_from(url: &mut StoreUrl) -> Result<Self> {
        let refuse = |url: &StoreUrl, what: &str| Err(url.refuse(what).advise(ADVICE));
        let mode = url.take_driver("sslmode");
        let roots = url.take_driver("sslrootcert");
        let (certificate, key) = (url.take_driver("sslcert"), url.take_driver("sslkey"));
        let (mode, verification) = match (mode.as_deref(), &roots) {
            (None | Some("disable" | "allow" | "prefer"), Some(_)) => {
                return refuse(url, "it has sslrootcert, and its sslmode does not verify the server");
            }
            (Some("disable"), None) => (SslMode::Disable, Verification::None),
            (None | Some("allow" | "prefer"), None) => (SslMode::Prefer, Verification::None),
            (Some("require"), None) => (SslMode::Require, Verification::None),
            // libpq: a root certificate that is given is used.
            (Some("require"), Some(_)) | (Some("verify-ca"), _) => {
                (SslMode::Require, Verification::Authority)
            }
            (Some("verify-full"), _) => (SslMode::Require, Verification::Host),
            _ => {
                return refuse(
                    url,
                    "its sslmode is none of disable, allow, prefer, require, verify-ca, verify-full",
                );
            }
        };
        let certificate = match (certificate, key) {
            (Some(_), Some(_)) if mode == SslMode::Disable => {
                return refuse(url, "it has sslcert, and its sslmode is disable");
            }
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => return refuse(url, "it has only one of sslcert and sslkey"),
        };
        let roots = roots.filter(|path| path != "system").map(PathBuf::from);
        Ok(TlsOptions { mode, verification, roots, certificate })
    }

    /// Reads the certificates. `None` connects without TLS: it is disabled, or preferred and there is no crypto provider.
    pub(crate) fn connector(&self) -> Result<Option<MakeRustlsConnect>> {
        let provider = match (self.mode, crypto_provider()) {
            (SslMode::Disable, _) => return Ok(None),
            (_, Some(provider)) => provider,
            (SslMode::Prefer, None) => {
                tracing::debug!("connecting without TLS: no crypto provider of rustls is chosen");
                return Ok(None);
            }
            (_, None) => return Err(errors::no_crypto_provider()),
        };
        let verifier: Arc<dyn ServerCertVerifier> = match self.verification {
            Verification::None => Arc::new(LenientVerifier { inner: None, provider: Arc::clone(&provider) }),
            Verification::Authority | Verification::Host => {
                let inner = WebPkiServerVerifier::builder_with_provider(
                    Arc::new(self.read_roots()?),
                    Arc::clone(&provider),
                )
                .build()
                .map_err(|error| invalid(format!("the root certificates cannot be used: {error}")))?;
                match self.verification {
                    Verification::Authority => {
                        Arc::new(LenientVerifier { inner: Some(inner), provider: Arc::clone(&provider) })
                    }
                    _ => inner,
                }
            }
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(format!("TLS cannot be set up: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = read_certificates("sslcert", certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("sslkey", &error))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| invalid(format!("the client certificate cannot be used: {error}")))?
            }
        };
        // Needed for `sslnegotiation=direct`; servers that do not know it ignore it.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Some(MakeRustlsConnect::new(config)))
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
            return Err(invalid("there is no root certificate to verify the server's with"));
        }
        Ok(store)
    }
}

/// The process's default crypto provider, or else the one that was chosen by a feature. Installs none.
fn crypto_provider() -> Option<Arc<CryptoProvider>> {
    CryptoProvider::get_default().cloned().or_else(provider_of_feature)
}

#[cfg(feature = "tls-ring")]
fn provider_of_feature() -> Option<Arc<CryptoProvider>> {
    Some(Arc::new(rustls::crypto::ring::default_provider()))
}

#[cfg(all(feature = "tls-aws-lc-rs", not(feature = "tls-ring")))]
fn provider_of_feature() -> Option<Arc<CryptoProvider>> {
    Some(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

#[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc-rs")))]
fn provider_of_feature() -> Option<Arc<CryptoProvider>> {
    None
}

const ADVICE: &str = "give sslmode and, to verify the server, sslrootcert=/path/to/ca.pem";

fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, what).advise(ADVICE)
}

/// Names the parameter and not its value, which may be a misplaced secret.
fn unreadable(parameter: &str, error: &dyn std::fmt::Display) -> Error {
    invalid(format!("the file of {parameter} cannot be used: {error}"))
}

fn read_certificates(parameter: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(parameter, &error))?;
    read.collect::<Result<_, _>>().map_err(|error| unreadable(parameter, &error))
}

/// Verifies the authority but not the host name, or nothing at all.
#[derive(Debug)]
struct LenientVerifier {
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        // The host name is verified last, so a certificate that fails by it has a known authority.
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
        for (query, mode, verification) in [
            ("", SslMode::Prefer, Verification::None),
            ("&sslmode=disable", SslMode::Disable, Verification::None),
            ("&sslmode=allow", SslMode::Prefer, Verification::None),
            ("&sslmode=require", SslMode::Require, Verification::None),
            ("&sslmode=require&sslrootcert=/ca.pem", SslMode::Require, Verification::Authority),
            ("&sslmode=verify-ca", SslMode::Require, Verification::Authority),
            ("&sslmode=verify-full&sslrootcert=system", SslMode::Require, Verification::Host),
        ] {
            let options = read(query).unwrap();
            assert_eq!((options.mode, options.verification), (mode, verification), "{query}");
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
    fn no_request_for_verification_is_ignored() {
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
    fn a_connector_needs_no_default_crypto_provider() {
        assert!(read("&sslmode=require").unwrap().connector().is_ok());
    }
}
