//! What a URL says. Everything is checked before anything is sent.

use distlock_core::store::StoreUrl;
use distlock_core::store::url::{Host, Login};
use distlock_core::{Error, Result};

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

/// The parameters without `distlock.` that a URL of one server may have, and those of a Unix socket.
const PROTOCOL: &str = "protocol";
const DRIVERS: &[&str] = &[PROTOCOL];
const DRIVERS_UNIX: &[&str] = &["db", "user", "pass", PROTOCOL];

const DEFAULT_PORT: u16 = 6379;

const SPELLING: &str = "write redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://h1:p,h2:p/master-name, \
                        redis+cluster://h1:p,h2:p or redlock://h1:p,h2:p,h3:p";

impl RedisConfig {
    /// What a URL says; see the [crate's page](crate) for what it may say.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for anything that is wrong with it.
    pub fn parse(url: &str) -> Result<Self> {
        RedisConfig::from_url(StoreUrl::parse(url)?)
    }

    /// What a URL that was split already says.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for anything that is wrong with it.
    pub fn from_url(mut url: StoreUrl) -> Result<Self> {
        url.accept(crate::DRIVER.schemes())?;
        let config = match url.scheme() {
            "redis+sentinel" | "rediss+sentinel" => {
                let path = url.path()?;
                let master = path.trim_matches('/');
                // The characters that sentinels allow.
                if master.is_empty()
                    || !master.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
                {
                    return Err(refuse(
                        &url,
                        "it names no master, or not with letters, digits, dots, - and _",
                    ));
                }
                let master = master.to_owned();
                of_hosts(&url, |sentinels| Servers::Sentinel { sentinels, master })?
            }
            "redis+cluster" | "rediss+cluster" => {
                if !url.path()?.trim_matches('/').is_empty() {
                    return Err(refuse(&url, "a Cluster has no databases, and this names one"));
                }
                of_hosts(&url, |seeds| Servers::Cluster { seeds })?
            }
            "redis" | "rediss" | "valkey" | "valkeys" => {
                let database = database_of(&url, &url.path()?)?;
                let mut hosts = hosts_of(&url)?;
                let (Some((credentials, address)), None) = (hosts.pop(), hosts.pop()) else {
                    return Err(refuse(&url, "it names several servers"));
                };
                of_one(&url, address, credentials)?.database(database)?
            }
            "unix" | "redis+unix" | "valkey+unix" => of_socket(&mut url)?,
            _ => {
                return Err(refuse(
                    &url,
                    "its scheme is that of a Redlock, which has a configuration of its own",
                ));
            }
        };
        let drivers = match config.servers {
            Servers::One(Address::Unix(_)) => DRIVERS_UNIX,
            Servers::One(_) => DRIVERS,
            _ => &[],
        };
        let other = |protocol: String| !matches!(protocol.as_str(), "3" | "resp3");
        if drivers.contains(&PROTOCOL) && url.take_driver(PROTOCOL).is_some_and(other) {
            return Err(refuse(&url, "its protocol is not resp3, the one that is spoken"));
        }
        let config = config.with_parameters(&mut url)?;
        url.refuse_unknown(KNOWN)?;
        url.refuse_unknown_driver(drivers)?;
        Ok(config)
    }

    /// Takes our parameters out of a URL.
    pub(crate) fn with_parameters(mut self, url: &mut StoreUrl) -> Result<Self> {
        if let Some(prefix) = url.take(PREFIX) {
            let wanted = "up to 128 bytes without spaces, control characters and a { that begins no hash tag";
            self = self.prefix(&prefix).map_err(|_| url.refuse_value(PREFIX, wanted))?;
        }
        let short = "a time from 10ms to 10m";
        if let Some(timeout) = url.take_duration(RESPONSE_TIMEOUT)? {
            self = self.response_timeout(timeout).map_err(|_| url.refuse_value(RESPONSE_TIMEOUT, short))?;
        }
        if let Some(timeout) = url.take_duration(CONNECT_TIMEOUT)? {
            self = self.connect_timeout(timeout).map_err(|_| url.refuse_value(CONNECT_TIMEOUT, short))?;
        }
        if let Some(retention) = url.take_duration(RETENTION)? {
            let wanted = "a time from 1s to 8760h";
            self = self.retention(retention).map_err(|_| url.refuse_value(RETENTION, wanted))?;
        }
        if let Some(replicas) = url.take(MIN_REPLICAS) {
            let number = replicas.parse();
            self.min_replicas = number.map_err(|_| url.refuse_value(MIN_REPLICAS, "a number such as 1"))?;
        }
        let (user, password) = (url.take(SENTINEL_USER), url.take(SENTINEL_PASSWORD));
        if user.is_some() || password.is_some() {
            if !matches!(self.servers, Servers::Sentinel { .. }) {
                return Err(refuse(url, "it has a login for sentinels and names none"));
            }
            self.sentinel_credentials = credentials(url, user, password)?;
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
                // The kind of failure and not the path: what was meant as something else may stand there.
                refuse(url, format!("the file of distlock.{key} cannot be read: {}", error.kind()))
                    .advise(format!("check the path in distlock.{key}"))
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
    url.refuse(what).advise(SPELLING)
}

/// Whether the scheme asks for TLS. Nothing else in a URL does, or can take it away.
fn is_secure(url: &StoreUrl) -> Result<bool> {
    let secure = url.scheme().starts_with("rediss") || matches!(url.scheme(), "redlocks" | "valkeys");
    if secure && !cfg!(feature = "tls") {
        return Err(refuse(url, "its scheme needs a build with the feature `tls`"));
    }
    Ok(secure)
}

/// The number of a database, as a path or a parameter says it.
pub(crate) fn database_of(url: &StoreUrl, text: &str) -> Result<u32> {
    match text.trim_matches('/') {
        "" => Ok(0),
        number if number.bytes().all(|digit| digit.is_ascii_digit()) => {
            number.parse().map_err(|_| refuse(url, "the number of its database is too large"))
        }
        _ => Err(refuse(url, "its database is not a number")),
    }
}

/// The servers of a list, each with its login. A login before the first one only is meant for all.
pub(crate) fn hosts_of(url: &StoreUrl) -> Result<Vec<(Credentials, Address)>> {
    let servers = url.authority_each()?;
    let Some((first, _)) = servers.first() else { return Err(refuse(url, "it names no servers")) };
    let shared = first.clone().filter(|_| servers.iter().skip(1).all(|(login, _)| login.is_none()));
    let mut found: Vec<(Credentials, Address)> = Vec::new();
    for (login, server) in servers {
        let address = match server.host {
            Host::Name(name) if matches!(name.as_str(), "0.0.0.0" | "::") => {
                return Err(refuse(url, "one of its servers is an address that stands for all"));
            }
            Host::Name(name) => Address::Tcp(name, server.port.unwrap_or(DEFAULT_PORT)),
            Host::Socket(_) => return Err(refuse(url, "one of its servers is a socket")),
        };
        if found.iter().any(|(_, other)| *other == address) {
            return Err(refuse(url, "it names a server twice"));
        }
        found.push((of_login(url, login.or_else(|| shared.clone()))?, address));
    }
    Ok(found)
}

fn of_login(url: &StoreUrl, login: Option<Login>) -> Result<Credentials> {
    let Some(login) = login else { return Ok(Credentials::default()) };
    let password = login.password().map(|password| String::from_utf8(password.to_vec()));
    let password = password.transpose().map_err(|_| refuse(url, "the password is not UTF-8"))?;
    credentials(url, login.user().map(str::to_owned), password)
}

/// A user without a password would be a connection without a login.
fn credentials(url: &StoreUrl, user: Option<String>, password: Option<String>) -> Result<Credentials> {
    if user.is_some() && password.is_none() {
        return Err(refuse(url, "it has a user and no password")
            .advise("write redis://user:password@host, or redis://:password@host for a password alone"));
    }
    Ok(Credentials { user, password })
}

/// One server.
pub(crate) fn of_one(url: &StoreUrl, address: Address, credentials: Credentials) -> Result<RedisConfig> {
    let mut config = RedisConfig::new(Servers::One(address));
    config.credentials = credentials;
    config.tls = is_secure(url)?.then(Default::default);
    Ok(config)
}

/// Servers that all have one login.
fn of_hosts(url: &StoreUrl, servers: impl FnOnce(Vec<Address>) -> Servers) -> Result<RedisConfig> {
    let hosts = hosts_of(url)?;
    let credentials = hosts.first().map(|(credentials, _)| credentials.clone()).unwrap_or_default();
    if hosts.iter().any(|(other, _)| *other != credentials) {
        return Err(
            refuse(url, "its servers have different logins").advise("put the login before the first one")
        );
    }
    let mut config = RedisConfig::new(servers(hosts.into_iter().map(|(_, address)| address).collect()));
    config.credentials = credentials;
    config.tls = is_secure(url)?.then(Default::default);
    Ok(config)
}

/// `unix:///path?db=0&user=u&pass=p`.
fn of_socket(url: &mut StoreUrl) -> Result<RedisConfig> {
    let authority = url.authority()?;
    let here = |host: &Host| matches!(host, Host::Name(name) if name.eq_ignore_ascii_case("localhost"));
    if authority.login.is_some() || !authority.servers.iter().all(|server| here(&server.host)) {
        return Err(refuse(url, "it names a host, and a Unix socket is local"));
    }
    let path = url.file_path()?;
    if !path.is_absolute() {
        return Err(refuse(url, "its path is not absolute"));
    }
    let number = url.take_driver("db").unwrap_or_default();
    let database = database_of(url, &number)?;
    let (user, password) = (url.take_driver("user"), url.take_driver("pass"));
    let credentials = credentials(url, user, password)?;
    of_one(url, Address::Unix(path), credentials)?.database(database)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::RedlockConfig;

    #[test]
    fn only_the_scheme_decides_about_tls_and_nothing_takes_it_away() {
        let secure = |url: &str| RedisConfig::parse(url).unwrap().tls.is_some();
        for scheme in ["rediss", "valkeys", "rediss+cluster", "REDISS"] {
            assert!(secure(&format!("{scheme}://u:p@h:1")), "{scheme}");
            for bad in [
                "/#insecure",
                "#insecure",
                "?tls=false",
                "?ssl=0",
                "?insecure=true",
                "/?verify=none",
                "?tlsInsecure=true",
                "/0#insecure",
                "/\n#insecure",
                "/%23insecure",
                "?distlock.tls=off",
                "?protocol=resp2",
            ] {
                let url = format!("{scheme}://u:p@h:1{bad}");
                assert!(RedisConfig::parse(&url).is_err(), "{url}");
            }
        }
        assert!(secure("rediss+sentinel://h/main"));
        for scheme in ["redis", "valkey", "redis+cluster"] {
            assert!(!secure(&format!("{scheme}://h")), "{scheme}");
            // What asks for TLS in another way is refused, and not dropped.
            for asked in ["?tls=true", "?ssl=true", "?sslmode=require"] {
                assert!(RedisConfig::parse(&format!("{scheme}://h/{asked}")).is_err(), "{scheme}{asked}");
            }
        }
    }

    #[test]
    fn a_list_has_one_scheme_and_so_one_answer_about_tls() {
        let nodes = |url: &str| RedlockConfig::parse(url).unwrap().nodes;
        assert!(nodes("redlocks://a,b:1,[::1]").iter().all(|node| node.tls.is_some()));
        assert!(nodes("redlock://a,b,c").iter().all(|node| node.tls.is_none()));
        for mixed in [
            "redlock://rediss://a,redis://b",
            "redlocks://a,redis://b",
            "redlock://a,b,rediss:c",
            "redlocks://a,b#insecure",
        ] {
            assert!(RedlockConfig::parse(mixed).is_err(), "{mixed}");
        }
        assert!(RedisConfig::parse("redis+cluster://rediss://a,b").is_err());
        assert!(RedisConfig::parse("rediss+sentinel://redis://a/main").is_err());
    }

    #[test]
    fn each_server_gets_the_login_that_is_meant_for_it() {
        let logins = |url: &str| -> Vec<(Option<String>, Option<String>)> {
            let nodes = RedlockConfig::parse(url).unwrap().nodes;
            nodes.into_iter().map(|node| (node.credentials.user, node.credentials.password)).collect()
        };
        let login = |user: &str, password: &str| (Some(user.to_owned()), Some(password.to_owned()));
        assert_eq!(logins("redlock://u:p@a,b"), [login("u", "p"), login("u", "p")]);
        assert_eq!(logins("redlock://u:p@a,v:q%2C@b,c"), [login("u", "p"), login("v", "q,"), (None, None)]);
        assert_eq!(logins("redlock://@a,v:q@b"), [(None, None), login("v", "q")]);
        let cluster = RedisConfig::parse("redis+cluster://u:p@a,u:p@b").unwrap();
        assert_eq!(cluster.credentials.password.as_deref(), Some("p"));
        for bad in [
            "redlock://a,v:q@b",
            "redis+cluster://u:p@a,v:q@b",
            "redis://u@h",
            "redis://u:@h",
            "redis://h1,h2",
        ] {
            assert!(RedlockConfig::parse(bad).is_err() && RedisConfig::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_login_is_decoded_once() {
        for (written, meant) in [
            ("p%40%2F%3F%23%5C", "p@/?#\\"),
            ("p%2540", "p%40"),
            ("a+b;d:e=g", "a+b;d:e=g"),
            ("%0A", "\n"),
            ("p ss", "p ss"),
        ] {
            for url in [format!("unix:///s?db=3&user=u&pass={written}"), format!("redis://u:{written}@h/3")] {
                let config = RedisConfig::parse(&url).unwrap();
                assert_eq!(config.credentials.password.as_deref(), Some(meant), "{written}");
                assert_eq!(config.database, 3);
            }
        }
        assert!(RedisConfig::parse("redis://u:%ff@h").is_err());
    }

    #[test]
    fn sockets_are_read_as_the_driver_spells_them() {
        for url in
            ["unix:///run/r%20s", "redis+unix://localhost/run/r%20s?db=2", "unix:/run/r%20s?protocol=resp3"]
        {
            let config = RedisConfig::parse(url).unwrap();
            assert_eq!(config.servers, Servers::One(Address::Unix("/run/r s".into())), "{url}");
        }
        for bad in [
            "unix:",
            "unix:x",
            "unix://h/x",
            "unix://u:p@localhost/x",
            "unix:///x?dbs=1",
            "unix:///x?user=u",
            "redis://%2Frun%2Fx",
        ] {
            assert!(RedisConfig::parse(bad).is_err(), "{bad}");
        }
    }
}
