//! Options that several stores have, checked and read once.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::store::{StoreUrl, UrlOption};

/// `distlock.tls_ca`, where the certificate authorities of the system are the default.
pub const TLS_CA: UrlOption = UrlOption {
    name: "tls_ca",
    value: "file",
    default: "",
    meaning: "the certificate authority to trust instead of the system's (PEM)",
};

/// `distlock.tls_cert`.
pub const TLS_CERT: UrlOption =
    UrlOption { name: "tls_cert", value: "file", default: "", meaning: "the client certificate (PEM)" };

/// `distlock.tls_key`.
pub const TLS_KEY: UrlOption = UrlOption {
    name: "tls_key",
    value: "file",
    default: "",
    meaning: "the key of the client certificate (PEM)",
};

/// The certificates of a TLS connection, in PEM. `Debug` shows none of them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Certificates {
    /// The certificate authority to trust instead of the system's.
    pub authority: Option<Vec<u8>>,
    /// The client certificate and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    /// Takes `distlock.tls_ca`, `distlock.tls_cert` and `distlock.tls_key` out of a URL and reads the files that they name. If
    /// there is any and the connection has no TLS, the result is `without_tls`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if a file cannot be read, or a certificate has no key. The path is not shown: a
    /// misplaced password may be in it.
    pub fn take_from(url: &mut StoreUrl, without_tls: Option<Error>) -> Result<Self> {
        let paths = [TLS_CA, TLS_CERT, TLS_KEY].map(|option| (option.name, url.take(option.name)));
        if let Some(refusal) = without_tls
            && paths.iter().any(|(_, path)| path.is_some())
        {
            return Err(refusal);
        }
        let read = |(key, path): (&str, Option<String>)| {
            path.map(std::fs::read).transpose().map_err(|error| {
                url.refuse(format!("the file of distlock.{key} cannot be read: {}", error.kind()))
                    .advise(format!("check the path in distlock.{key}"))
            })
        };
        let [authority, certificate, key] = paths.map(read);
        let client = match (certificate?, key?) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                return Err(url
                    .refuse("it has only one of distlock.tls_cert and distlock.tls_key")
                    .advise("name the files of both, or of neither"));
            }
        };
        Ok(Certificates { authority: authority?, client })
    }

    /// Whether the certificates of the system are to be used, and no client certificate.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.authority.is_none() && self.client.is_none()
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates(***)")
    }
}

/// A limit of a store for a reply or a connection: from 10 ms to 10 minutes.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for any other; `what` names the option.
pub fn check_timeout(timeout: Duration, what: &str) -> Result<Duration> {
    if timeout < Duration::from_millis(10) || timeout > Duration::from_secs(600) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("a {what} of {timeout:?} is not between 10 ms and 10 minutes"),
        )
        .doing("read the options of the store")
        .advise("use a few times the slowest round trip"));
    }
    Ok(timeout)
}

/// Takes a limit out of a URL: see [`check_timeout`].
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if it is no duration from 10 ms to 10 minutes.
pub fn take_timeout(url: &mut StoreUrl, key: &str) -> Result<Option<Duration>> {
    let Some(timeout) = url.take_duration(key)? else { return Ok(None) };
    let timeout = check_timeout(timeout, key);
    timeout.map(Some).map_err(|_| url.refuse_value(key, "a duration from 10ms to 10m"))
}

/// Host and port as they are written in a URL: IPv6 addresses in brackets.
pub fn write_host_and_port(f: &mut fmt::Formatter<'_>, host: &str, port: u16) -> fmt::Result {
    if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
}

/// A prefix of keys, unless it has characters of a URL that was put in the wrong place and may contain a password.
#[must_use]
pub fn shown_prefix(prefix: &str) -> &str {
    let is_usual = prefix.chars().all(|c| c.is_alphanumeric() || ":/{}._-".contains(c));
    if is_usual { prefix } else { "***" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(options: &str, without_tls: Option<Error>) -> Result<Certificates> {
        Certificates::take_from(&mut StoreUrl::parse(&format!("redis://h?{options}"))?, without_tls)
    }

    #[test]
    fn certificates_that_cannot_be_used_are_refused_without_their_path() {
        // Any file will do.
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let pem = std::fs::read(file).unwrap();
        let whole = take(&format!("distlock.tls_cert={file}&distlock.tls_key={file}"), None).unwrap();
        assert_eq!(whole.client, Some((pem.clone(), pem)));
        assert!(take("", None).unwrap().is_empty() && take("", Some(url_error())).is_ok());
        for (bad, without_tls) in [
            (format!("distlock.tls_cert={file}"), None),
            (format!("distlock.tls_key={file}"), None),
            ("distlock.tls_ca=/nonexistent/secret".to_owned(), None),
            (format!("distlock.tls_ca={file}"), Some(url_error())),
        ] {
            let error = take(&bad, without_tls).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(!format!("{error:#}").contains("secret"), "{error:#}");
        }
        assert!(!format!("{whole:?}").contains("package"));
    }

    fn url_error() -> Error {
        Error::new(ErrorKind::InvalidInput, "it has no TLS")
    }

    #[test]
    fn a_timeout_has_bounds() {
        for (text, accepted) in [("9ms", false), ("10ms", true), ("10m", true), ("601s", false)] {
            let mut url = StoreUrl::parse(&format!("redis://h?distlock.response_timeout={text}")).unwrap();
            assert_eq!(take_timeout(&mut url, "response_timeout").is_ok(), accepted, "{text}");
        }
        let mut url = StoreUrl::parse("redis://h").unwrap();
        assert_eq!(take_timeout(&mut url, "response_timeout").unwrap(), None);
    }
}
