//! What a URL says. Everything is checked before anything is sent.

use std::time::Duration;

use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::config::{Address, Credentials, RedisConfig, Servers};

const PREFIX: &str = "prefix";
const RESPONSE_TIMEOUT: &str = "response_timeout";
const CONNECT_TIMEOUT: &str = "connect_timeout";
const RETENTION: &str = "retention";
const MIN_REPLICAS: &str = "min_replicas";
const TLS_CA: &str = "tls_ca";
const TLS_CERT: &str = "tls_cert";
const TLS_KEY: &str = "tls_key";
const SENTINEL_USER: &str = "sentinel_user";
const SENTINEL_PASSWORD: &str = "sentinel_password";

/// The parameters that every Redis URL knows.
pub(crate) const KNOWN: &[&str] = &[
    PREFIX,
    RESPONSE_TIMEOUT,
    CONNECT_TIMEOUT,
    RETENTION,
    MIN_REPLICAS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    SENTINEL_USER,
    SENTINEL_PASSWORD,
];

const SPELLING: &str = "write redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://h1:p,h2:p/master-name, \
                        redis+cluster://h1:p,h2:p or redlock://h1:p,h2:p,h3:p";

impl RedisConfig {
    /// What a URL says; see the [crate's page](crate) for what it may say.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for anything that is wrong with it.
    pub fn parse(url: &str) -> Result<Self> {
        RedisConfig::from_url(StoreUrl::parse(url)?)
    }

    /// What a URL that was split already says.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for anything that is wrong with it.
    pub fn from_url(mut url: StoreUrl) -> Result<Self> {
        let scheme = url.scheme().to_owned();
        let config = match scheme.as_str() {
            "redis+sentinel" | "rediss+sentinel" => {
                let (hosts, path) = hosts_of(&url)?;
                if path.is_empty() || path.contains('/') {
                    return Err(refuse(&url, "it names no master"));
                }
                let master = decoded(&url, path)?;
                let hosts = each_host(&url, &hosts)?;
                from_hosts(hosts, |sentinels| Servers::Sentinel { sentinels, master })?
            }
            "redis+cluster" | "rediss+cluster" => {
                let (hosts, path) = hosts_of(&url)?;
                if !path.is_empty() {
                    return Err(refuse(&url, "a Cluster has no databases, and this names one"));
                }
                from_hosts(each_host(&url, &hosts)?, |seeds| Servers::Cluster { seeds })?
            }
            _ => {
                let info = url.driver_part().into_connection_info().map_err(|error| {
                    // The driver's text holds nothing of the URL.
                    refuse(&url, "the URL is not one that the Redis driver reads").caused_by(error)
                })?;
                from_hosts(vec![info], |mut one| Servers::One(one.remove(0)))?
            }
        };
        let config = config.with_parameters(&mut url)?;
        url.refuse_unknown(KNOWN)?;
        Ok(config)
    }

    /// Takes our parameters out of a URL.
    pub(crate) fn with_parameters(mut self, url: &mut StoreUrl) -> Result<Self> {
        if let Some(prefix) = url.take(PREFIX) {
            self = self.prefix(&prefix)?;
        }
        if let Some(timeout) = take_duration(url, RESPONSE_TIMEOUT)? {
            self = self.response_timeout(timeout)?;
        }
        if let Some(timeout) = take_duration(url, CONNECT_TIMEOUT)? {
            self = self.connect_timeout(timeout)?;
        }
        if let Some(retention) = take_duration(url, RETENTION)? {
            self = self.retention(retention)?;
        }
        if let Some(replicas) = url.take(MIN_REPLICAS) {
            let number = replicas.parse();
            self.min_replicas = number.map_err(|_| bad_value(url, MIN_REPLICAS, "a number such as 1"))?;
        }
        let (user, password) = (url.take(SENTINEL_USER), url.take(SENTINEL_PASSWORD));
        if user.is_some() || password.is_some() {
            if !matches!(self.servers, Servers::Sentinel { .. }) {
                return Err(refuse(url, "it has a login for sentinels and names none"));
            }
            self.sentinel_credentials = Credentials { user, password };
        }
        self.with_certificates(url)
    }

    #[cfg(feature = "tls")]
    fn with_certificates(mut self, url: &mut StoreUrl) -> Result<Self> {
        let secure = self.tls.is_some();
        let mut file = |key: &str| match url.take(key) {
            None => Ok(None),
            Some(_) if !secure => Err(refuse(url, "it has certificates, and the connection is in the clear")
                .advise("write rediss:// instead of redis://")),
            Some(path) => std::fs::read(&path).map(Some).map_err(|error| {
                refuse(url, format!("the file {path:?} of distlock.{key} cannot be read")).caused_by(error)
            }),
        };
        let (authority, certificate, key) = (file(TLS_CA)?, file(TLS_CERT)?, file(TLS_KEY)?);
        if let Some(authority) = authority {
            self = self.tls_authority(authority)?;
        }
        match (certificate, key) {
            (Some(certificate), Some(key)) => self.tls_client(certificate, key),
            (None, None) => Ok(self),
            _ => Err(refuse(url, "of distlock.tls_cert and distlock.tls_key, one is missing")),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn with_certificates(self, url: &mut StoreUrl) -> Result<Self> {
        for key in [TLS_CA, TLS_CERT, TLS_KEY] {
            if url.take(key).is_some() {
                return Err(refuse(url, format!("distlock.{key} needs a build with the feature `tls`")));
            }
        }
        Ok(self)
    }
}

pub(crate) fn refuse(url: &StoreUrl, what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, what.into())
        .doing("read the store URL")
        .on(url.to_string())
        .advise(SPELLING)
}

fn bad_value(url: &StoreUrl, key: &str, wanted: &str) -> Error {
    refuse(url, format!("distlock.{key} is not {wanted}")).advise(format!("write distlock.{key}=…, {wanted}"))
}

/// `500ms`, `2s`, `5m`, `1h`.
pub(crate) fn take_duration(url: &mut StoreUrl, key: &str) -> Result<Option<Duration>> {
    let Some(text) = url.take(key) else { return Ok(None) };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let total = number.parse::<u64>().ok().zip(milliseconds).and_then(|(n, unit)| n.checked_mul(unit));
    match total {
        Some(total) => Ok(Some(Duration::from_millis(total))),
        None => Err(bad_value(url, key, "a time such as 500ms, 2s or 1h")),
    }
}

fn decoded(url: &StoreUrl, text: &str) -> Result<String> {
    let text = percent_encoding::percent_decode_str(text).decode_utf8();
    text.map(Into::into).map_err(|_| refuse(url, "it is not UTF-8"))
}

/// The hosts of `scheme://h1:p,h2:p/path`, and the path.
pub(crate) fn hosts_of(url: &StoreUrl) -> Result<(Vec<&str>, &str)> {
    if let Some((_, query)) = url.driver_part().split_once('?') {
        let key = query.split_once('=').map_or(query, |(key, _)| key);
        return Err(refuse(url, format!("unknown parameter {key:?}")));
    }
    let Some(rest) = url.rest().strip_prefix("//") else {
        return Err(refuse(url, "it names no servers"));
    };
    // A password may hold a slash that should have been escaped; hosts do not.
    let hosts_begin = rest.rfind('@').map_or(0, |at| at + 1);
    let path_begins = rest[hosts_begin..].find('/').map_or(rest.len(), |at| hosts_begin + at);
    let path = rest[path_begins..].trim_start_matches('/').trim_end_matches('/');
    let hosts: Vec<&str> = rest[..path_begins].split(',').map(str::trim).collect();
    if hosts.iter().any(|host| host.is_empty() || host.ends_with('@')) {
        return Err(refuse(url, "one of its servers has no name"));
    }
    Ok((hosts, path))
}

/// What the driver makes of each host. A login that stands before the first host only is meant for all.
pub(crate) fn each_host(url: &StoreUrl, hosts: &[&str]) -> Result<Vec<ConnectionInfo>> {
    let scheme =
        if url.scheme().starts_with("rediss") || url.scheme() == "redlocks" { "rediss" } else { "redis" };
    let login = hosts.first().and_then(|first| first.rsplit_once('@')).map(|(login, _)| login);
    let alone = hosts.iter().skip(1).all(|host| !host.contains('@'));
    let mut found: Vec<ConnectionInfo> = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        let text = match login.filter(|_| alone && number > 0) {
            Some(login) => format!("{scheme}://{login}@{host}"),
            None => format!("{scheme}://{host}"),
        };
        let info = text.as_str().into_connection_info().map_err(|error| {
            refuse(url, format!("its server {} is not one that the Redis driver reads", number + 1))
                .caused_by(error)
        })?;
        if found.iter().any(|other| other.addr() == info.addr()) {
            return Err(refuse(url, format!("it names {} twice", info.addr())));
        }
        found.push(info);
    }
    Ok(found)
}

/// A configuration from what the driver read: all hosts share the login and the database of the first.
pub(crate) fn from_hosts(
    hosts: Vec<ConnectionInfo>,
    servers: impl FnOnce(Vec<Address>) -> Servers,
) -> Result<RedisConfig> {
    let Some(first) = hosts.first() else {
        return Err(Error::new(ErrorKind::InvalidInput, "no server is named").advise(SPELLING));
    };
    let settings = first.redis_settings();
    let credentials = Credentials {
        user: settings.username().map(str::to_owned),
        password: settings.password().map(str::to_owned),
    };
    let database = u32::try_from(settings.db()).map_err(|_| {
        Error::new(ErrorKind::InvalidInput, "the number of the database is negative").advise(SPELLING)
    })?;
    let mut secure = false;
    let mut addresses = Vec::new();
    for host in &hosts {
        addresses.push(match host.addr() {
            ConnectionAddr::Tcp(host, port) => Address::Tcp(host.clone(), *port),
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                return Err(Error::new(ErrorKind::InvalidInput, "certificates are always checked")
                    .advise("leave #insecure out, and name your authority with distlock.tls_ca=/path/ca.pem"));
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                secure = true;
                Address::Tcp(host.clone(), *port)
            }
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err(Error::new(ErrorKind::InvalidInput, "an unknown sort of address").advise(SPELLING)),
        });
    }
    let mut config = RedisConfig::new(servers(addresses)).database(database)?;
    config.credentials = credentials;
    config.tls = secure.then(Default::default);
    Ok(config)
}
