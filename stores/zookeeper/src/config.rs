//! The typed options of the store, and its URLs.

use std::fmt;
use std::time::Duration;

use distlock_core::store::support::config::{Certificates, TLS_CERT, TLS_KEY, write_host_and_port};
use distlock_core::store::url::{Host, Secret};
use distlock_core::store::{StoreUrl, UrlOption};
use distlock_core::{Error, ErrorKind, Result};

use crate::SCHEMES;
use crate::connect::TLS_SCHEME;

/// The path below which all nodes are, unless the URL or the configuration names another.
pub const DEFAULT_CHROOT: &str = "/distlock";

const DEFAULT_PORT: u16 = 2181;

/// The `distlock.` options of a URL.
pub(crate) const OPTIONS: &[UrlOption] = &[
    UrlOption {
        name: "session_timeout",
        value: "duration",
        default: "",
        meaning: "the session time-out to ask the server for; without it, the expiry of each lock",
    },
    UrlOption {
        name: "connect_timeout",
        value: "duration",
        default: "10s",
        meaning: "how long it may take to connect, log in and open a session",
    },
    UrlOption {
        name: "tls_ca",
        value: "file",
        default: "",
        meaning: "zookeepers: the certificate authority to trust (PEM); needed there",
    },
    TLS_CERT,
    TLS_KEY,
    UrlOption {
        name: "acl",
        value: "open|creator",
        default: "",
        meaning: "who may use our nodes: everyone (open, the default without a login), or only the user of the URL (creator, the default with one)",
    },
];

/// A server: host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an IP address.
    pub host: String,
    /// The client port.
    pub port: u16,
}

impl Address {
    /// A server.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Address { host: host.into(), port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_host_and_port(f, &self.host, self.port)
    }
}

/// Who may read, write and delete the nodes that this store creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Every client of the ensemble.
    Open,
    /// Only clients that log in as the same user.
    Creator,
}

/// The options of a [`ZookeeperStore`](crate::ZookeeperStore).
///
/// ```
/// use std::time::Duration;
/// use distlock_zookeeper::{Address, ZookeeperConfig};
///
/// # fn main() -> distlock_core::Result<()> {
/// let config = ZookeeperConfig::new([Address::new("zk1", 2181), Address::new("zk2", 2181)])
///     .chroot("/apps/billing")?
///     .login("billing", "secret")
///     .session_timeout(Duration::from_secs(10))?;
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ZookeeperConfig {
    pub(crate) servers: Vec<Address>,
    pub(crate) chroot: String,
    /// `user:password`, as the digest scheme sends it.
    pub(crate) login: Option<Secret>,
    access: Option<Access>,
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    /// `None` for connections without TLS.
    pub(crate) tls: Option<Certificates>,
}

impl ZookeeperConfig {
    /// The default options for these servers: nodes below `/distlock`, no login.
    #[must_use]
    pub fn new(servers: impl IntoIterator<Item = Address>) -> Self {
        ZookeeperConfig {
            servers: servers.into_iter().collect(),
            chroot: DEFAULT_CHROOT.to_owned(),
            login: None,
            access: None,
            session_timeout: None,
            connect_timeout: Duration::from_secs(10),
            tls: None,
        }
    }

    /// The options in a URL; the [crate's page](crate) lists them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an invalid URL or option.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut url = url.clone();
        url.accept(SCHEMES)?;
        let authority = url.authority()?;
        let servers = authority.servers.iter().map(|server| match &server.host {
            Host::Name(host) => Ok(Address::new(host.clone(), server.port.unwrap_or(DEFAULT_PORT))),
            _ => Err(url.refuse("it has a socket in the place of a host")),
        });
        let servers = servers.collect::<Result<Vec<_>>>()?;
        if servers.is_empty() {
            return Err(url.refuse("it has no host: write zookeeper://h1:2181,h2:2181/chroot"));
        }
        let mut config = ZookeeperConfig::new(servers);
        let path = url.path()?;
        if !path.trim_matches('/').is_empty() {
            config = config.chroot(path.trim_end_matches('/')).map_err(|_| {
                url.refuse(
                    "its path is no path of ZooKeeper: no empty part, no . or .., no control characters",
                )
            })?;
        }
        if let Some(login) = &authority.login {
            let password = login.password().map(|password| std::str::from_utf8(password));
            match (login.user(), password) {
                (Some(user), Some(Ok(password))) if !user.contains(':') => {
                    config = config.login(user, password)
                }
                _ => return Err(url.refuse("its login is not user:password")),
            }
        }
        if let Some(timeout) = url.take_duration("session_timeout")? {
            config = config
                .session_timeout(timeout)
                .map_err(|_| url.refuse_value("session_timeout", "between 100ms and 24h"))?;
        }
        if let Some(limit) = url.take_duration("connect_timeout")? {
            config = config
                .connect_timeout(limit)
                .map_err(|_| url.refuse_value("connect_timeout", "more than zero"))?;
        }
        match url.take_word("acl", &["open", "creator"])? {
            Some("open") => config = config.access(Access::Open),
            Some(_) if config.login.is_none() => {
                return Err(url.refuse_value("acl", "`open`, or `creator` with a login in the URL"));
            }
            Some(_) => config = config.access(Access::Creator),
            None => {}
        }
        if url.scheme() == TLS_SCHEME {
            config.tls = Some(certificates(&mut url)?);
        }
        url.refuse_other_options(OPTIONS)?;
        url.refuse_unknown_driver(&[])?;
        Ok(config)
    }

    /// Sets the path below which all nodes are. It is created when it is needed. Default `/distlock`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is not absolute, or has other characters than letters, digits, `.`, `-` and `_`.
    pub fn chroot(mut self, path: &str) -> Result<Self> {
        let part_is_valid = |part: &str| {
            !matches!(part, "" | "." | "..") && part.chars().all(|c| c.is_alphanumeric() || ".-_".contains(c))
        };
        let parts = path.strip_prefix('/').map(|parts| parts.split('/'));
        let valid = parts.is_some_and(|mut parts| {
            // The server keeps nodes of its own below /zookeeper.
            parts.clone().next() != Some("zookeeper") && parts.all(part_is_valid)
        });
        if !valid {
            return Err(invalid(
                format!("{path:?} is no path for our nodes"),
                "write /name/name with letters, digits, dots, - and _, and not below /zookeeper",
            ));
        }
        path.clone_into(&mut self.chroot);
        Ok(self)
    }

    /// Logs in with the digest scheme. Nodes are then readable and writable for this user only, unless
    /// [`access`](Self::access) says otherwise.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some(Secret::new(format!("{user}:{password}")));
        self
    }

    /// Sets who may read and write the nodes. Default: [`Access::Creator`] with a login, [`Access::Open`] without.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Asks for this session time-out, whatever expiry a lock asks for. By default each expiry gets a session of its own,
    /// with the expiry as its time-out. The server has limits of its own: by default 2 and 20 of its ticks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 100 ms and above 24 h.
    pub fn session_timeout(mut self, timeout: Duration) -> Result<Self> {
        if timeout < Duration::from_millis(100) || timeout > Duration::from_secs(24 * 3600) {
            return Err(invalid(
                format!("a session time-out of {timeout:?}"),
                "choose one between 100ms and 24h: the server allows 2 to 20 of its ticks by default",
            ));
        }
        self.session_timeout = Some(timeout);
        Ok(self)
    }

    /// Uses TLS and trusts this certificate authority (PEM).
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.get_or_insert_default().authority = Some(pem.into());
        self
    }

    /// Uses TLS with a client certificate (both PEM). The authority is needed too.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_client(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.tls.get_or_insert_default().client = Some((certificate.into(), key.into()));
        self
    }

    /// Sets how long it may take to connect, log in and open a session. Default 10 s.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for zero.
    pub fn connect_timeout(mut self, limit: Duration) -> Result<Self> {
        if limit.is_zero() {
            return Err(invalid("a connect time-out of zero".to_owned(), "choose more than zero"));
        }
        self.connect_timeout = limit;
        Ok(self)
    }

    pub(crate) fn nodes_access(&self) -> Access {
        self.access.unwrap_or(if self.login.is_some() { Access::Creator } else { Access::Open })
    }

    /// The servers as the driver wants them.
    pub(crate) fn connect_string(&self) -> String {
        self.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

/// The certificates that a URL names.
fn certificates(url: &mut StoreUrl) -> Result<Certificates> {
    if cfg!(not(feature = "tls")) {
        return Err(Error::new(ErrorKind::Unsupported, "TLS is not built in")
            .advise("build distlock-zookeeper with its feature `tls`"));
    }
    let certificates = Certificates::take_from(url, None)?;
    if certificates.authority.is_none() {
        return Err(
            url.refuse_value("tls_ca", "the PEM file of the authority that signed the servers' certificates")
        );
    }
    Ok(certificates)
}

fn invalid(what: String, advice: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, what).advise(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<ZookeeperConfig> {
        ZookeeperConfig::from_url(&StoreUrl::parse(url)?)
    }

    #[test]
    fn servers_chroot_and_login_are_read() {
        let config = parse("zookeeper://u:p%40@a,b:1,[::1]:2/apps/x?distlock.session_timeout=4s").unwrap();
        assert_eq!(config.connect_string(), "a:2181,b:1,[::1]:2");
        assert_eq!(
            (config.chroot.as_str(), config.session_timeout),
            ("/apps/x", Some(Duration::from_secs(4)))
        );
        assert_eq!(config.login.as_ref().map(Secret::expose), Some("u:p@"));
        assert_eq!(config.nodes_access(), Access::Creator);
        let plain = parse("zookeeper://a/").unwrap();
        assert_eq!((plain.chroot.as_str(), plain.nodes_access()), (DEFAULT_CHROOT, Access::Open));
    }

    #[test]
    fn what_is_no_server_path_login_or_option_is_refused_without_its_text() {
        for bad in [
            "zookeeper://",
            "zookeeper:///secret",
            "zookeeper://%2Fsecret",
            "zookeeper://secret@h",
            "zookeeper://u:%ffsecret@h",
            "zookeeper://h/secret//x",
            "zookeeper://h/secret/..",
            "zookeeper://h/zookeeper/secret",
            "zookeeper://h/secret%01",
            "zookeeper://h?distlock.session_timeout=1ms",
            "zookeeper://h?distlock.session_timeout=secret",
            "zookeeper://h?distlock.connect_timeout=0s",
            "zookeeper://h?distlock.acl=creator",
            "zookeeper://h?distlock.acl=secret",
            "zookeeper://h?distlock.bogus=secret",
            "zookeeper://h?bogus=secret",
        ] {
            let error = parse(bad).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{bad}: {error}");
        }
    }
}
