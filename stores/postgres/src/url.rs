//! What a URL says. The driver has a parser of its own, which does not know all that we read; so it gets each part by
//! itself.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use distlock_core::store::StoreUrl;
use distlock_core::store::url::{Authority, Host};
use distlock_core::{Error, Result};
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};

use crate::config::{KeyScheme, Listen, PostgresConfig};
use crate::tls::TlsOptions;

const SCHEMES: &[&str] = &["postgres", "postgresql", "postgres+advisory", "postgresql+advisory"];
const KNOWN: &[&str] = &["schema", "table", "listen", "create", "retention"];
const KNOWN_ADVISORY: &[&str] = &["schema", "table", "create", "keys", "session_timeout"];

/// What libpq knows and we do too. What it knows beside (`sslcrl`, `require_auth`, `gssencmode` and others) is refused.
const DRIVERS: &[&str] = &[
    "user",
    "password",
    "dbname",
    "host",
    "hostaddr",
    "port",
    "application_name",
    "options",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslnegotiation",
    "channel_binding",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "load_balance_hosts",
];

const SPELLING: &str = "write it like postgres://user@host:5432/database?distlock.table=distribute_lock";
const NAME: &str = "a name of letters, digits and _, not a digit first, and at most 63 bytes";
const DEFAULT_PORT: u16 = 5432;

impl PostgresConfig {
    pub(crate) fn from_store_url(mut url: StoreUrl) -> Result<Self> {
        url.accept(SCHEMES)?;
        let advisory = url.scheme().ends_with("+advisory");
        let tls = TlsOptions::take_from(&mut url)?;
        let driver = driver(&mut url, &tls)?;
        url.refuse_unknown_driver(DRIVERS)?;
        let mut config = PostgresConfig::with_driver(driver, tls);
        if let Some(schema) = url.take("schema") {
            config = config.schema(&schema).map_err(|_| url.refuse_value("schema", NAME))?;
        }
        if let Some(table) = url.take("table") {
            config = config.table(&table).map_err(|_| url.refuse_value("table", NAME))?;
        }
        config.create = url.take_switch("create")?.unwrap_or(config.create);
        if advisory {
            config.keys = match url.take_word("keys", &["hashed", "raw"])? {
                Some("raw") => KeyScheme::Raw,
                _ => KeyScheme::Hashed,
            };
            if let Some(timeout) = url.take_duration_or_seconds("session_timeout")? {
                let wanted = "a time from 1s to 1h";
                config = config
                    .session_timeout(timeout)
                    .map_err(|_| url.refuse_value("session_timeout", wanted))?;
            }
            url.refuse_unknown(KNOWN_ADVISORY)?;
            return Ok(config);
        }
        config.listen = match url.take_word("listen", &["auto", "on", "off"])? {
            Some("on") => Listen::On,
            Some("off") => Listen::Off,
            _ => Listen::Auto,
        };
        if let Some(retention) = url.take_duration_or_seconds("retention")? {
            config = config
                .retention(retention)
                .map_err(|_| url.refuse_value("retention", "a time from 1m on"))?;
        }
        url.refuse_unknown(KNOWN)?;
        Ok(config)
    }
}

fn refuse(url: &StoreUrl, what: impl Into<String>) -> Error {
    url.refuse(what).advise(SPELLING)
}

/// What the driver gets. Whatever a URL says in two places is refused.
fn driver(url: &mut StoreUrl, tls: &TlsOptions) -> Result<Config> {
    if !url.has_authority() {
        return Err(refuse(url, "it has no // behind its scheme"));
    }
    let mut driver = Config::new();
    let Authority { login, servers } = url.authority()?;
    let login = login.unwrap_or_default();
    let user = login.user().map(str::to_owned);
    if let Some(user) = either(url, "user", user)? {
        driver.user(user);
    }
    let password = url.take_driver("password").map(String::into_bytes);
    match (login.password(), password) {
        (Some(_), Some(_)) => return Err(twice(url, "password")),
        (Some(password), None) => {
            driver.password(password);
        }
        (None, Some(password)) => {
            driver.password(password);
        }
        (None, None) => {}
    }
    let path = url.path()?;
    let database = Some(path.strip_prefix('/').unwrap_or(&path)).filter(|name| !name.is_empty());
    if let Some(database) = either(url, "dbname", database.map(str::to_owned))? {
        driver.dbname(database);
    }
    let in_authority = !servers.is_empty();
    let mut ports: Vec<Option<u16>> = servers.iter().map(|server| server.port).collect();
    let mut hosts: Vec<Host> = servers.into_iter().map(|server| server.host).collect();
    if let Some(list) = url.take_driver("host") {
        if in_authority {
            return Err(twice(url, "host"));
        }
        hosts = each(url, "host", &list, Host::of_value)?;
    }
    let addresses: Vec<IpAddr> = match url.take_driver("hostaddr") {
        Some(list) => each(url, "hostaddr", &list, |text| text.parse().ok())?,
        None => Vec::new(),
    };
    if !hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len() {
        return Err(refuse(url, "it has not as many values of hostaddr as hosts"));
    }
    if let Some(list) = url.take_driver("port") {
        if ports.iter().any(Option::is_some) {
            return Err(twice(url, "port"));
        }
        ports = each(url, "port", &list, |text| match text {
            "" => Some(None),
            port => Some(Some(port.parse().ok().filter(|port| *port != 0)?)),
        })?;
        if ports.len() > 1 && ports.len() != hosts.len().max(addresses.len()) {
            return Err(refuse(url, "it has not as many values of port as hosts"));
        }
    }
    for host in hosts {
        match host {
            Host::Name(name) => {
                driver.host(name);
            }
            #[cfg(unix)]
            Host::Socket(path) => {
                driver.host_path(path);
            }
            #[cfg(not(unix))]
            Host::Socket(_) => return Err(refuse(url, "one of its hosts is a socket")),
        }
    }
    for address in addresses {
        driver.hostaddr(address);
    }
    for port in ports {
        driver.port(port.unwrap_or(DEFAULT_PORT));
    }
    options(url, &mut driver)?;
    security(url, &mut driver, tls)?;
    Ok(driver)
}

/// What has nothing to do with who is who.
fn options(url: &mut StoreUrl, driver: &mut Config) -> Result<()> {
    if let Some(options) = url.take_driver("options") {
        driver.options(options);
    }
    if let Some(name) = url.take_driver("application_name") {
        driver.application_name(name);
    }
    // As the driver has it: zero and less mean the default.
    let mut seconds = |name: &str| -> Result<Option<Duration>> {
        let number: Option<i64> = number(url, name)?;
        Ok(number.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0).map(Duration::from_secs))
    };
    if let Some(time) = seconds("connect_timeout")? {
        driver.connect_timeout(time);
    }
    if let Some(time) = seconds("tcp_user_timeout")? {
        driver.tcp_user_timeout(time);
    }
    if let Some(time) = seconds("keepalives_idle")? {
        driver.keepalives_idle(time);
    }
    if let Some(time) = seconds("keepalives_interval")? {
        driver.keepalives_interval(time);
    }
    if let Some(retries) = number(url, "keepalives_retries")? {
        driver.keepalives_retries(retries);
    }
    if let Some(on) = number::<u64>(url, "keepalives")? {
        driver.keepalives(on != 0);
    }
    let attributes = [
        ("any", TargetSessionAttrs::Any),
        ("read-write", TargetSessionAttrs::ReadWrite),
        ("read-only", TargetSessionAttrs::ReadOnly),
    ];
    if let Some(attributes) = word(url, "target_session_attrs", &attributes)? {
        driver.target_session_attrs(attributes);
    }
    let orders = [("disable", LoadBalanceHosts::Disable), ("random", LoadBalanceHosts::Random)];
    if let Some(order) = word(url, "load_balance_hosts", &orders)? {
        driver.load_balance_hosts(order);
    }
    Ok(())
}

/// How the connection is protected. Words that contradict each other are refused: one of them would be dropped.
fn security(url: &mut StoreUrl, driver: &mut Config, tls: &TlsOptions) -> Result<()> {
    driver.ssl_mode(tls.driver_mode());
    let negotiations = [("postgres", SslNegotiation::Postgres), ("direct", SslNegotiation::Direct)];
    if let Some(negotiation) = word(url, "sslnegotiation", &negotiations)? {
        if negotiation == SslNegotiation::Direct && tls.driver_mode() != SslMode::Require {
            return Err(refuse(
                url,
                "its sslnegotiation is direct, and its sslmode does not require encryption",
            ));
        }
        driver.ssl_negotiation(negotiation);
    }
    let bindings = [
        ("disable", ChannelBinding::Disable),
        ("prefer", ChannelBinding::Prefer),
        ("require", ChannelBinding::Require),
    ];
    if let Some(binding) = word(url, "channel_binding", &bindings)? {
        if binding == ChannelBinding::Require && tls.driver_mode() == SslMode::Disable {
            return Err(refuse(url, "its channel_binding is require, and its sslmode is disable"));
        }
        driver.channel_binding(binding);
    }
    Ok(())
}

fn twice(url: &StoreUrl, name: &str) -> Error {
    refuse(url, format!("it says {name} both in front and as a parameter")).advise("say it once")
}

/// A value from in front or from a parameter.
fn either(url: &mut StoreUrl, name: &str, in_front: Option<String>) -> Result<Option<String>> {
    match (in_front, url.take_driver(name)) {
        (Some(_), Some(_)) => Err(twice(url, name)),
        (one, other) => Ok(one.or(other)),
    }
}

fn bad_value(url: &StoreUrl, name: &str) -> Error {
    refuse(url, format!("the value of {name} cannot be used"))
}

fn each<T>(url: &StoreUrl, name: &str, list: &str, read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    list.split(',').map(|text| read(text).ok_or_else(|| bad_value(url, name))).collect()
}

fn number<T: FromStr>(url: &mut StoreUrl, name: &str) -> Result<Option<T>> {
    let Some(text) = url.take_driver(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| bad_value(url, name))
}

fn word<T: Copy>(url: &mut StoreUrl, name: &str, words: &[(&str, T)]) -> Result<Option<T>> {
    let Some(text) = url.take_driver(name) else { return Ok(None) };
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, meaning)| Some(*meaning)).ok_or_else(|| bad_value(url, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        let mut url = StoreUrl::parse(text)?;
        let tls = TlsOptions::take_from(&mut url)?;
        let config = driver(&mut url, &tls)?;
        url.refuse_unknown_driver(DRIVERS)?;
        Ok(config)
    }

    #[test]
    fn a_url_means_to_us_what_it_means_to_the_driver() {
        for url in [
            "postgresql://user@localhost",
            "postgres://user:password@%2Fvar%2Frun%2Fpostgresql/mydb?connect_timeout=10",
            "postgresql://user@host1:1234,host2,host3:5678?target_session_attrs=read-write",
            "postgresql:///mydb?user=user&host=/var/run/postgresql",
            "postgres://u%40x:p%40%2F%3A%25ss@[::1]:5433/my%20db/x?application_name=my%20app&options=-c%20geqo%3Doff",
            "postgres://u:a:b,c+d@h/?keepalives=0&keepalives_idle=7&keepalives_interval=8&keepalives_retries=9",
            "postgres://h:1/db?tcp_user_timeout=3&load_balance_hosts=random&channel_binding=require&sslmode=require",
            "postgres://h/db?hostaddr=127.0.0.1&sslnegotiation=direct&sslmode=require",
            "postgres:///?host=h&port=7&user=u&password=p%26&dbname=d",
            "postgres://",
        ] {
            let theirs: Config = url.parse().unwrap();
            assert!(
                read(url).unwrap() == theirs,
                "{url}: {:?}, and the driver {theirs:?}",
                read(url).unwrap()
            );
        }
    }

    #[test]
    fn an_at_sign_in_the_query_hides_nothing() {
        let url =
            "postgres://h/db?sslmode=require&channel_binding=require&application_name=me@host&user=me@srv";
        let config = read(url).unwrap();
        assert_eq!(
            (config.get_ssl_mode(), config.get_channel_binding()),
            (SslMode::Require, ChannelBinding::Require)
        );
        assert_eq!((config.get_user(), config.get_application_name()), (Some("me@srv"), Some("me@host")));
        assert_eq!(config.get_hosts(), [tokio_postgres::config::Host::Tcp("h".to_owned())]);
        // Before a path it could be the end of a password.
        assert!(read("postgres://h?sslmode=require&application_name=me@host").is_err());
    }

    #[test]
    fn what_is_said_twice_or_against_itself_is_refused() {
        for bad in [
            "postgres://u@h/db?user=v",
            "postgres://u:p@h/db?password=q",
            "postgres://h/db?dbname=other",
            "postgres://h/db?host=other",
            "postgres://h:1/db?port=2",
            "postgres://h1,h2/db?port=1,2,3",
            "postgres://h1,h2/db?hostaddr=127.0.0.1",
            "postgres:///db?host=a&host=b",
            "postgres://h/db?sslmode=disable&channel_binding=require",
            "postgres://h/db?sslnegotiation=direct",
            "postgres://h/db?sslmode=disable&sslnegotiation=direct",
            "postgres://h/db?channel_binding=Require",
            "postgres://h/db?sslcrl=/crl",
            "postgres://h/db?require_auth=scram-sha-256",
            "postgres://h/db?gssencmode=require",
            "postgres://h/db?ssl=true",
            "postgres://h/db?requiressl=1",
            "postgres://h/db?host=a b",
            "postgres:h/db",
            "postgres:host=h sslmode=require",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ports_without_hosts_of_their_own_are_the_hosts() {
        let ports = |url: &str| read(url).unwrap().get_ports().to_vec();
        assert_eq!(ports("postgres://h/db?port=7"), [7]);
        assert_eq!(ports("postgres://a,b/db?port=7,"), [7, 5432]);
        assert_eq!(ports("postgres://a:7,b/db"), [7, 5432]);
        assert!(ports("postgres:///db").is_empty());
    }
}
