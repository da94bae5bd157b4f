//! `ssl-mode`, `ssl-ca`, `ssl-cert` and `ssl-key`, as the servers' own clients spell them. A mode is done or refused, never
//! done by half, and no other parameter weakens it.

use std::path::PathBuf;

use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use mysql_async::{ClientIdentity, SslOpts};

const ADVICE: &str = "use ssl-mode=DISABLED, REQUIRED (encrypted, any certificate) or VERIFY_IDENTITY, the latter with ssl-ca=/path/ca.pem or the \
     system's certificates";

/// How to encrypt, and which certificates to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tls {
    Disabled,
    /// Encrypted; any certificate.
    Required {
        identity: Option<Identity>,
    },
    /// The certificate is signed by one we trust, and names the host.
    VerifyIdentity {
        roots: Option<PathBuf>,
        identity: Option<Identity>,
    },
}

/// Files of our own certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    certificate: PathBuf,
    key: PathBuf,
}

impl Tls {
    /// Takes its parameters out of a URL.
    pub(crate) fn take_from(url: &mut StoreUrl) -> Result<Self> {
        let refuse = |url: &StoreUrl, what: &str| Err(url.refuse(what).advise(ADVICE));
        let mode = url.take_driver("ssl-mode").map(|mode| mode.to_ascii_uppercase());
        let roots = url.take_driver("ssl-ca").map(PathBuf::from);
        let identity = match (url.take_driver("ssl-cert"), url.take_driver("ssl-key")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                Some(Identity { certificate: certificate.into(), key: key.into() })
            }
            _ => return refuse(url, "of ssl-cert and ssl-key only one is given"),
        };
        match (mode.as_deref(), roots, identity) {
            (None | Some("DISABLED"), None, None) => Ok(Tls::Disabled),
            (None | Some("DISABLED"), _, _) => {
                refuse(url, "it gives certificates, and its ssl-mode does not encrypt")
            }
            (Some("REQUIRED"), None, identity) => Ok(Tls::Required { identity }),
            (Some("REQUIRED"), Some(_), _) => {
                refuse(url, "it gives ssl-ca, and its ssl-mode does not check the server")
            }
            (Some("VERIFY_IDENTITY"), roots, identity) => Ok(Tls::VerifyIdentity { roots, identity }),
            (Some("PREFERRED"), _, _) => {
                refuse(url, "its ssl-mode PREFERRED would go on in plain text where the server has no TLS")
            }
            (Some("VERIFY_CA"), _, _) => refuse(
                url,
                "its ssl-mode VERIFY_CA cannot be done by the driver, which checks the host's name too",
            ),
            _ => refuse(url, "its ssl-mode is not known"),
        }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        *self != Tls::Disabled
    }

    /// For the driver. Reads the system's certificates where those are asked for.
    pub(crate) fn options(&self) -> Result<Option<SslOpts>> {
        let (options, identity) = match self {
            Tls::Disabled => return Ok(None),
            Tls::Required { identity } => {
                (SslOpts::default().with_danger_accept_invalid_certs(true), identity)
            }
            Tls::VerifyIdentity { roots, identity } => {
                let roots = match roots {
                    Some(path) => {
                        // Read here: the driver's error would name the path.
                        let bytes = std::fs::read(path).map_err(|error| {
                            Error::new(
                                ErrorKind::InvalidInput,
                                format!("the file of ssl-ca cannot be read: {}", error.kind()),
                            )
                            .advise(ADVICE)
                        })?;
                        vec![bytes.into()]
                    }
                    None => rustls_native_certs::load_native_certs()
                        .certs
                        .into_iter()
                        .map(|certificate| certificate.to_vec().into())
                        .collect(),
                };
                if roots.is_empty() {
                    return Err(Error::new(
                        ErrorKind::InvalidInput,
                        "there is no root certificate to check the server's with",
                    )
                    .advise(ADVICE));
                }
                (SslOpts::default().with_root_certs(roots).with_disable_built_in_roots(true), identity)
            }
        };
        let identity = identity
            .as_ref()
            .map(|files| ClientIdentity::new(files.certificate.clone().into(), files.key.clone().into()));
        Ok(Some(options.with_client_identity(identity)))
    }
}
