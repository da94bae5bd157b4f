//! Parses store URLs. Everything is checked before anything is sent.

use distlock_core::store::StoreUrl;
#[cfg(feature = "tls")]
use distlock_core::store::support::config::Certificates;
use distlock_core::store::support::config::take_timeout;
use distlock_core::store::url::{Host, Login};
use distlock_core::{Error, Result};

use super::{Address, Credentials, OPTIONS, RedisConfig, Servers};

/// The parameters without `distlock.` of a URL of one server, and of a Unix socket.
const PROTOCOL: &str = "protocol";
const SERVER_PARAMETERS: &[&str] = &[PROTOCOL];
const SOCKET_PARAMETERS: &[&str] = &["db", "user", "pass", PROTOCOL];

const DEFAULT_PORT: u16 = 6379;

const EXAMPLES: &str = "write redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://h1:p,h2:p/master-name, \
                        redis+cluster://h1:p,h2:p or redlock://h1:p,h2:p,h3:p";

impl RedisConfig {
    /// The options in a URL; the [crate's page](crate) lists them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for an invalid URL or option.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut url = url.clone();
        url.accept(crate::SCHEMES)?;
        let config = match url.scheme() {
            "redis+sentinel" | "rediss+sentinel" => {
                let path = url.path()?;
                let master = path.trim_matches('/');
                // The characters that sentinels allow in a name.
                if master.is_empty()
                    || !master.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
                {
                    return Err(invalid_url(&url, "it has no master name of letters, digits, dots, - and _"));
                }
                let master = master.to_owned();
                many_servers(&url, |sentinels| Servers::Sentinel { sentinels, master })?
            }
            "redis+cluster" | "rediss+cluster" => {
                if !url.path()?.trim_matches('/').is_empty() {
                    return Err(invalid_url(
                        &url,
                        "it has a database number, and a Cluster has no databases",
                    ));
                }
                many_servers(&url, |seeds| Servers::Cluster { seeds })?
            }
            "redis" | "rediss" | "valkey" | "valkeys" => {
                let database = parse_database(&url, &url.path()?)?;
                let mut hosts = parse_hosts(&url)?;
                let (Some((credentials, address)), None) = (hosts.pop(), hosts.pop()) else {
                    return Err(invalid_url(&url, "it has several servers"));
                };
                one_server(&url, address, credentials)?.database(database)?
            }
            "unix" | "redis+unix" | "valkey+unix" => unix_socket(&mut url)?,
            _ => {
                return Err(invalid_url(&url, "its scheme is that of a Redlock: use RedlockConfig"));
            }
        };
        let parameters = match config.servers {
            Servers::One(Address::Unix(_)) => SOCKET_PARAMETERS,
            Servers::One(_) => SERVER_PARAMETERS,
            _ => &[],
        };
        let is_other = |protocol: String| !matches!(protocol.as_str(), "3" | "resp3");
        if parameters.contains(&PROTOCOL) && url.take_driver(PROTOCOL).is_some_and(is_other) {
            return Err(invalid_url(&url, "its protocol is not resp3, the only one that distlock supports"));
        }
        let config = config.with_options(&mut url)?;
        url.refuse_other_options(OPTIONS)?;
        url.refuse_unknown_driver(parameters)?;
        Ok(config)
    }

    /// The servers of a Redlock URL without the options of the quorum. `defaults` sets what the URL may override.
    pub(crate) fn nodes_from_url(
        url: &StoreUrl,
        defaults: impl Fn(RedisConfig) -> Result<RedisConfig>,
    ) -> Result<Vec<Self>> {
        let database = parse_database(url, &url.path()?)?;
        let mut nodes = Vec::new();
        for (credentials, address) in parse_hosts(url)? {
            let node = defaults(one_server(url, address, credentials)?.database(database)?)?;
            let mut rest = url.clone();
            nodes.push(node.with_options(&mut rest)?);
            rest.refuse_other_options(OPTIONS)?;
            rest.refuse_unknown_driver(&[])?;
        }
        Ok(nodes)
    }

    /// Takes the options of every Redis URL out of it.
    fn with_options(mut self, url: &mut StoreUrl) -> Result<Self> {
        if let Some(prefix) = url.take("prefix") {
            let wanted =
                "at most 128 bytes, without spaces, control characters and a { that begins no hash tag";
            self = self.prefix(&prefix).map_err(|_| url.refuse_value("prefix", wanted))?;
        }
        self.response_timeout = take_timeout(url, "response_timeout")?.unwrap_or(self.response_timeout);
        self.connect_timeout = take_timeout(url, "connect_timeout")?.unwrap_or(self.connect_timeout);
        if let Some(retention) = url.take_duration("retention")? {
            let wanted = "a duration from 1s to 8760h";
            self = self.retention(retention).map_err(|_| url.refuse_value("retention", wanted))?;
        }
        if let Some(replicas) = url.take("min_replicas") {
            let number = replicas.parse();
            self.min_replicas = number.map_err(|_| url.refuse_value("min_replicas", "a number such as 1"))?;
        }
        let (user, password) = (url.take("sentinel_user"), url.take("sentinel_password"));
        if user.is_some() || password.is_some() {
            if !matches!(self.servers, Servers::Sentinel { .. }) {
                return Err(invalid_url(url, "it has a login for sentinels and no sentinels"));
            }
            self.sentinel_credentials = credentials(url, user, password)?;
        }
        self.with_certificates(url)
    }

    #[cfg(feature = "tls")]
    fn with_certificates(mut self, url: &mut StoreUrl) -> Result<Self> {
        let without_tls = self.tls.is_none().then(|| {
            invalid_url(url, "it has certificates, and its scheme is one without TLS")
                .advise("write rediss:// instead of redis://")
        });
        let certificates = Certificates::take_from(url, without_tls)?;
        if let Some(tls) = &mut self.tls {
            *tls = certificates;
        }
        Ok(self)
    }

    #[cfg(not(feature = "tls"))]
    fn with_certificates(self, url: &mut StoreUrl) -> Result<Self> {
        for key in ["tls_ca", "tls_cert", "tls_key"] {
            if url.take(key).is_some() {
                return Err(invalid_url(url, format!("distlock.{key} needs a build with the feature `tls`")));
            }
        }
        Ok(self)
    }
}

fn invalid_url(url: &StoreUrl, what: impl Into<String>) -> Error {
    url.refuse(what).advise(EXAMPLES)
}

/// Whether the scheme asks for TLS. Nothing else in a URL can enable or disable it.
fn is_secure(url: &StoreUrl) -> Result<bool> {
    let secure = url.scheme().starts_with("rediss") || matches!(url.scheme(), "redlocks" | "valkeys");
    if secure && !cfg!(feature = "tls") {
        return Err(invalid_url(url, "its scheme needs a build with the feature `tls`"));
    }
    Ok(secure)
}

/// The number of a database, from a path or a parameter.
fn parse_database(url: &StoreUrl, text: &str) -> Result<u32> {
    match text.trim_matches('/') {
        "" => Ok(0),
        number if number.bytes().all(|digit| digit.is_ascii_digit()) => {
            number.parse().map_err(|_| invalid_url(url, "its database number is too large"))
        }
        _ => Err(invalid_url(url, "its database is not a number")),
    }
}

/// The servers of a list, each with its login. A login before the first one only applies to all.
fn parse_hosts(url: &StoreUrl) -> Result<Vec<(Credentials, Address)>> {
    let servers = url.authority_each()?;
    let Some((first, _)) = servers.first() else { return Err(invalid_url(url, "it has no servers")) };
    let shared = first.clone().filter(|_| servers.iter().skip(1).all(|(login, _)| login.is_none()));
    let mut found: Vec<(Credentials, Address)> = Vec::new();
    for (login, server) in servers {
        let address = match server.host {
            Host::Name(name) if matches!(name.as_str(), "0.0.0.0" | "::") => {
                return Err(invalid_url(url, "one of its servers is a wildcard address"));
            }
            Host::Name(name) => Address::Tcp(name, server.port.unwrap_or(DEFAULT_PORT)),
            Host::Socket(_) => return Err(invalid_url(url, "one of its servers is a socket")),
        };
        if found.iter().any(|(_, other)| *other == address) {
            return Err(invalid_url(url, "it has the same server twice"));
        }
        found.push((parse_login(url, login.or_else(|| shared.clone()))?, address));
    }
    Ok(found)
}

fn parse_login(url: &StoreUrl, login: Option<Login>) -> Result<Credentials> {
    let Some(login) = login else { return Ok(Credentials::default()) };
    let password = login.password().map(|password| String::from_utf8(password.to_vec()));
    let password = password.transpose().map_err(|_| invalid_url(url, "the password is not UTF-8"))?;
    credentials(url, login.user().map(str::to_owned), password)
}

/// Refuses a user without a password: the connection would have no login.
fn credentials(url: &StoreUrl, user: Option<String>, password: Option<String>) -> Result<Credentials> {
    if user.is_some() && password.is_none() {
        return Err(invalid_url(url, "it has a user and no password")
            .advise("write redis://user:password@host, or redis://:password@host for a password alone"));
    }
    Ok(Credentials { user, password })
}

/// One server.
fn one_server(url: &StoreUrl, address: Address, credentials: Credentials) -> Result<RedisConfig> {
    let mut config = RedisConfig::new(Servers::One(address));
    config.credentials = credentials;
    config.tls = is_secure(url)?.then(Default::default);
    Ok(config)
}

/// Servers that share one login.
fn many_servers(url: &StoreUrl, servers: impl FnOnce(Vec<Address>) -> Servers) -> Result<RedisConfig> {
    let hosts = parse_hosts(url)?;
    let credentials = hosts.first().map(|(credentials, _)| credentials.clone()).unwrap_or_default();
    if hosts.iter().any(|(other, _)| *other != credentials) {
        return Err(invalid_url(url, "its servers have different logins")
            .advise("put the login before the first one"));
    }
    let mut config = RedisConfig::new(servers(hosts.into_iter().map(|(_, address)| address).collect()));
    config.credentials = credentials;
    config.tls = is_secure(url)?.then(Default::default);
    Ok(config)
}

/// `unix:///path?db=0&user=u&pass=p`.
fn unix_socket(url: &mut StoreUrl) -> Result<RedisConfig> {
    let authority = url.authority()?;
    let is_local = |host: &Host| matches!(host, Host::Name(name) if name.eq_ignore_ascii_case("localhost"));
    if authority.login.is_some() || !authority.servers.iter().all(|server| is_local(&server.host)) {
        return Err(invalid_url(url, "it has a host, and a Unix socket is local"));
    }
    let path = url.file_path()?;
    if !path.is_absolute() {
        return Err(invalid_url(url, "its path is not absolute"));
    }
    let number = url.take_driver("db").unwrap_or_default();
    let database = parse_database(url, &number)?;
    let (user, password) = (url.take_driver("user"), url.take_driver("pass"));
    let credentials = credentials(url, user, password)?;
    one_server(url, Address::Unix(path), credentials)?.database(database)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redlock::RedlockConfig;

    fn parse(url: &str) -> Result<RedisConfig> {
        RedisConfig::from_url(&StoreUrl::parse(url)?)
    }

    fn parse_redlock(url: &str) -> Result<RedlockConfig> {
        RedlockConfig::from_url(&StoreUrl::parse(url)?)
    }

    #[test]
    fn only_the_scheme_enables_tls_and_nothing_disables_it() {
        let has_tls = |url: &str| parse(url).unwrap().tls.is_some();
        for scheme in ["rediss", "valkeys", "rediss+cluster", "REDISS"] {
            assert!(has_tls(&format!("{scheme}://u:p@h:1")), "{scheme}");
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
                assert!(parse(&url).is_err(), "{url}");
            }
        }
        assert!(has_tls("rediss+sentinel://h/main"));
        for scheme in ["redis", "valkey", "redis+cluster"] {
            assert!(!has_tls(&format!("{scheme}://h")), "{scheme}");
            // Other ways to ask for TLS are refused, not ignored.
            for other in ["?tls=true", "?ssl=true", "?sslmode=require"] {
                assert!(parse(&format!("{scheme}://h/{other}")).is_err(), "{scheme}{other}");
            }
        }
    }

    #[test]
    fn all_servers_of_a_list_use_tls_or_none_does() {
        let nodes = |url: &str| parse_redlock(url).unwrap().nodes;
        assert!(nodes("redlocks://a,b:1,[::1]").iter().all(|node| node.tls.is_some()));
        assert!(nodes("redlock://a,b,c").iter().all(|node| node.tls.is_none()));
        for mixed in [
            "redlock://rediss://a,redis://b",
            "redlocks://a,redis://b",
            "redlock://a,b,rediss:c",
            "redlocks://a,b#insecure",
        ] {
            assert!(parse_redlock(mixed).is_err(), "{mixed}");
        }
        assert!(parse("redis+cluster://rediss://a,b").is_err());
        assert!(parse("rediss+sentinel://redis://a/main").is_err());
    }

    #[test]
    fn each_server_gets_its_own_login() {
        let logins = |url: &str| -> Vec<(Option<String>, Option<String>)> {
            let nodes = parse_redlock(url).unwrap().nodes;
            nodes.into_iter().map(|node| (node.credentials.user, node.credentials.password)).collect()
        };
        let login = |user: &str, password: &str| (Some(user.to_owned()), Some(password.to_owned()));
        assert_eq!(logins("redlock://u:p@a,b"), [login("u", "p"), login("u", "p")]);
        assert_eq!(logins("redlock://u:p@a,v:q%2C@b,c"), [login("u", "p"), login("v", "q,"), (None, None)]);
        assert_eq!(logins("redlock://@a,v:q@b"), [(None, None), login("v", "q")]);
        let cluster = parse("redis+cluster://u:p@a,u:p@b").unwrap();
        assert_eq!(cluster.credentials.password.as_deref(), Some("p"));
        for bad in [
            "redlock://a,v:q@b",
            "redis+cluster://u:p@a,v:q@b",
            "redis://u@h",
            "redis://u:@h",
            "redis://h1,h2",
        ] {
            assert!(parse_redlock(bad).is_err() && parse(bad).is_err(), "{bad}");
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
                let config = parse(&url).unwrap();
                assert_eq!(config.credentials.password.as_deref(), Some(meant), "{written}");
                assert_eq!(config.database, 3);
            }
        }
        assert!(parse("redis://u:%ff@h").is_err());
    }

    #[test]
    fn socket_urls_are_parsed_as_the_driver_writes_them() {
        for url in
            ["unix:///run/r%20s", "redis+unix://localhost/run/r%20s?db=2", "unix:/run/r%20s?protocol=resp3"]
        {
            let config = parse(url).unwrap();
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
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
