//! Parses store URLs. Everything is checked before anything is sent.

use distlock_core::store::StoreUrl;
use distlock_core::store::support::config::{Certificates, take_timeout};
use distlock_core::store::url::Host;
use distlock_core::{Error, Result};

use super::{EtcdConfig, OPTIONS};

const DEFAULT_PORT: u16 = 2379;
const EXAMPLE: &str = "write etcd://h1:2379,h2:2379,h3:2379, with a login etcd://user:password@h1,h2";

impl EtcdConfig {
    /// The options in a URL; the [crate's page](crate) lists them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for an invalid URL or option.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut url = url.clone();
        url.accept(crate::SCHEMES)?;
        let authority = url.authority()?;
        if !url.path()?.trim_matches('/').is_empty() {
            return Err(refuse(&url, "it has a path").advise("name a prefix with ?distlock.prefix=app/"));
        }
        let mut endpoints = Vec::new();
        for server in authority.servers {
            match server.host {
                Host::Name(host) => endpoints.push((host, server.port.unwrap_or(DEFAULT_PORT))),
                Host::Socket(_) => return Err(refuse(&url, "it names a socket, and etcd clients use TCP")),
            }
        }
        if endpoints.is_empty() {
            return Err(refuse(&url, "it names no server"));
        }
        let mut config = EtcdConfig::new(endpoints)?;
        if let Some(login) = &authority.login {
            let password = login.password().map(std::str::from_utf8);
            config = match (login.user(), password) {
                (Some(user), Some(Ok(password))) => config.login(user, password),
                (_, Some(Err(_))) => return Err(refuse(&url, "its password is not UTF-8")),
                _ => return Err(refuse(&url, "its login is not a user and a password")),
            };
        }
        config = config.with_options(&mut url)?;
        url.refuse_other_options(OPTIONS)?;
        url.refuse_unknown_driver(&[])?;
        Ok(config)
    }

    fn with_options(mut self, url: &mut StoreUrl) -> Result<Self> {
        if let Some(prefix) = url.take("prefix") {
            let wanted = "at most 256 bytes without control characters";
            self = self.prefix(&prefix).map_err(|_| url.refuse_value("prefix", wanted))?;
        }
        self.response_timeout = take_timeout(url, "response_timeout")?.unwrap_or(self.response_timeout);
        self.connect_timeout = take_timeout(url, "connect_timeout")?.unwrap_or(self.connect_timeout);
        self.failover_timeout = take_timeout(url, "failover_timeout")?.unwrap_or(self.failover_timeout);
        let wanted = url.take_switch("tls")?;
        let without_tls =
            (wanted == Some(false)).then(|| refuse(url, "it has certificates, and its distlock.tls is off"));
        let certificates = Certificates::take_from(url, without_tls)?;
        self.tls = (wanted == Some(true) || !certificates.is_empty()).then_some(certificates);
        Ok(self)
    }
}

fn refuse(url: &StoreUrl, what: &str) -> Error {
    url.refuse(what).advise(EXAMPLE)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_core::ErrorKind;

    use super::*;

    fn config(url: &str) -> Result<EtcdConfig> {
        EtcdConfig::from_url(&StoreUrl::parse(url)?)
    }

    #[test]
    fn endpoints_login_and_options_are_read() {
        let config = config(
            "etcd://locks:p%40ss@h1:1234,h2,[::1]:99?distlock.prefix=app/&distlock.response_timeout=1s\
             &distlock.failover_timeout=3s&distlock.tls=on",
        )
        .unwrap();
        let shown: Vec<String> = config.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["h1:1234", "h2:2379", "[::1]:99"]);
        assert_eq!(config.login.as_ref().map(|login| login.password.expose()), Some("p@ss"));
        assert_eq!(config.keys.prefix(), "app/");
        assert_eq!(config.response_timeout, Duration::from_secs(1));
        assert!(config.tls.is_some());
        assert!(!format!("{config:?}").contains("p@ss"));
    }

    #[test]
    fn what_cannot_be_done_is_refused_before_anything_is_sent_and_no_secret_is_shown() {
        for bad in [
            "etcd:",
            "etcd://",
            "etcd://h/db",
            "etcd://user@h",
            "etcd://:secret@h",
            "etcd://u:secret@h?distlock.prefx=a",
            "etcd://u:secret@h?timeout=1",
            "etcd://u:secret@h?distlock.response_timeout=1",
            "etcd://u:secret@h?distlock.tls=maybe",
            "etcd://u:secret@h?distlock.tls_cert=/nonexistent/secret",
            "etcd://u:secret@%2Frun%2Fetcd",
            "etcd://u:secret@h?distlock.prefix=%0A",
        ] {
            let error = config(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}: {error}");
            assert!(!format!("{error:#}").contains("secret"), "{error:#}");
        }
    }
}
