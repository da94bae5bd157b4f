//! Reading a URL. The driver's own parser does not know all that we read, so the driver gets each part by itself.

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use distlock_core::store::StoreUrl;
use distlock_core::store::url::{Authority, Host};
use distlock_core::{Error, Result};
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};

use super::tls::TlsOptions;
use super::{ADVISORY_OPTIONS, KeyScheme, LEASE_OPTIONS, Listen, PostgresConfig};

/// The options of libpq that we support. Its others (`sslcrl`, `require_auth`, `gssencmode` and more) are refused.
const DRIVER_OPTIONS: &[&str] = &[
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

pub(super) const SPELLING: &str =
    "write it like postgres://user@host:5432/database?distlock.table=distribute_lock";
const NAME: &str = "a name of letters, digits and _, not a digit first, and at most 63 bytes";
const DEFAULT_PORT: u16 = 5432;

impl PostgresConfig {
    /// Reads a URL of the form of libpq, with the `distlock.` options of [`DRIVER`](crate::DRIVER) or, with the scheme
    /// `postgres+advisory`, of [`ADVISORY_DRIVER`](crate::ADVISORY_DRIVER). Nothing is sent or resolved.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for anything that is not known, without repeating
    /// it.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut url = url.clone();
        let advisory = crate::ADVISORY_DRIVER.schemes();
        url.accept(&[crate::DRIVER.schemes(), advisory].concat())?;
        let is_advisory = advisory.contains(&url.scheme());
        let tls = TlsOptions::take_from(&mut url)?;
        let client = read_client(&mut url, &tls)?;
        url.refuse_unknown_driver(DRIVER_OPTIONS)?;
        let mut config = PostgresConfig::with_tls(client, tls);
        if let Some(schema) = url.take("schema") {
            config = config.schema(&schema).map_err(|_| url.refuse_value("schema", NAME))?;
        }
        if let Some(table) = url.take("table") {
            config = config.table(&table).map_err(|_| url.refuse_value("table", NAME))?;
        }
        config.create = url.take_switch("create")?.unwrap_or(config.create);
        if is_advisory { config.take_advisory_options(&mut url) } else { config.take_lease_options(&mut url) }
    }

    fn take_lease_options(mut self, url: &mut StoreUrl) -> Result<Self> {
        self.listen = match url.take_word("listen", &["auto", "on", "off"])? {
            Some("on") => Listen::On,
            Some("off") => Listen::Off,
            _ => Listen::Auto,
        };
        if let Some(retention) = url.take_duration("retention")? {
            let refused = |_| url.refuse_value("retention", "a time of 1m or more");
            self = self.retention(retention).map_err(refused)?;
        }
        url.refuse_other_options(LEASE_OPTIONS)?;
        Ok(self)
    }

    fn take_advisory_options(mut self, url: &mut StoreUrl) -> Result<Self> {
        self.keys = match url.take_word("keys", &["hashed", "raw"])? {
            Some("raw") => KeyScheme::Raw,
            _ => KeyScheme::Hashed,
        };
        if let Some(timeout) = url.take_duration("session_timeout")? {
            let refused = |_| url.refuse_value("session_timeout", "a time from 1s to 1h");
            self = self.session_timeout(timeout).map_err(refused)?;
        }
        url.refuse_other_options(ADVISORY_OPTIONS)?;
        Ok(self)
    }
}

fn refuse(url: &StoreUrl, what: impl Into<String>) -> Error {
    url.refuse(what).advise(SPELLING)
}

/// The options of the client. A URL that has one of them twice is refused.
fn read_client(url: &mut StoreUrl, tls: &TlsOptions) -> Result<Config> {
    if !url.has_authority() {
        return Err(refuse(url, "it has no // after its scheme"));
    }
    let mut client = Config::new();
    let Authority { login, servers } = url.authority()?;
    let login = login.unwrap_or_default();
    let user = login.user().map(str::to_owned);
    if let Some(user) = either(url, "user", user)? {
        client.user(user);
    }
    let password = url.take_driver("password").map(String::into_bytes);
    match (login.password(), password) {
        (Some(_), Some(_)) => return Err(twice(url, "password")),
        (Some(password), None) => {
            client.password(password);
        }
        (None, Some(password)) => {
            client.password(password);
        }
        (None, None) => {}
    }
    let path = url.path()?;
    let database = Some(path.strip_prefix('/').unwrap_or(&path)).filter(|name| !name.is_empty());
    if let Some(database) = either(url, "dbname", database.map(str::to_owned))? {
        client.dbname(database);
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
        return Err(refuse(url, "it has another number of values of hostaddr than hosts"));
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
            return Err(refuse(url, "it has another number of values of port than hosts"));
        }
    }
    for host in hosts {
        match host {
            Host::Name(name) => {
                client.host(name);
            }
            #[cfg(unix)]
            Host::Socket(path) => {
                client.host_path(path);
            }
            #[cfg(not(unix))]
            Host::Socket(_) => return Err(refuse(url, "one of its hosts is a socket")),
        }
    }
    for address in addresses {
        client.hostaddr(address);
    }
    for port in ports {
        client.port(port.unwrap_or(DEFAULT_PORT));
    }
    read_options(url, &mut client)?;
    read_security(url, &mut client, tls)?;
    Ok(client)
}

/// Session parameters, time limits and the choice of the host.
fn read_options(url: &mut StoreUrl, client: &mut Config) -> Result<()> {
    if let Some(options) = url.take_driver("options") {
        client.options(options);
    }
    if let Some(name) = url.take_driver("application_name") {
        client.application_name(name);
    }
    // As in the driver: zero and less mean the default.
    let mut seconds = |name: &str| -> Result<Option<Duration>> {
        let number: Option<i64> = number(url, name)?;
        Ok(number.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0).map(Duration::from_secs))
    };
    if let Some(time) = seconds("connect_timeout")? {
        client.connect_timeout(time);
    }
    if let Some(time) = seconds("tcp_user_timeout")? {
        client.tcp_user_timeout(time);
    }
    if let Some(time) = seconds("keepalives_idle")? {
        client.keepalives_idle(time);
    }
    if let Some(time) = seconds("keepalives_interval")? {
        client.keepalives_interval(time);
    }
    if let Some(retries) = number(url, "keepalives_retries")? {
        client.keepalives_retries(retries);
    }
    if let Some(on) = number::<u64>(url, "keepalives")? {
        client.keepalives(on != 0);
    }
    let attributes = [
        ("any", TargetSessionAttrs::Any),
        ("read-write", TargetSessionAttrs::ReadWrite),
        ("read-only", TargetSessionAttrs::ReadOnly),
    ];
    if let Some(attributes) = word(url, "target_session_attrs", &attributes)? {
        client.target_session_attrs(attributes);
    }
    let orders = [("disable", LoadBalanceHosts::Disable), ("random", LoadBalanceHosts::Random)];
    if let Some(order) = word(url, "load_balance_hosts", &orders)? {
        client.load_balance_hosts(order);
    }
    Ok(())
}

/// How the connection is encrypted. Options that contradict each other are refused: one of them would have no effect.
fn read_security(url: &mut StoreUrl, client: &mut Config, tls: &TlsOptions) -> Result<()> {
    client.ssl_mode(tls.driver_mode());
    let negotiations = [("postgres", SslNegotiation::Postgres), ("direct", SslNegotiation::Direct)];
    if let Some(negotiation) = word(url, "sslnegotiation", &negotiations)? {
        if negotiation == SslNegotiation::Direct && tls.driver_mode() != SslMode::Require {
            return Err(refuse(
                url,
                "its sslnegotiation is direct, and its sslmode does not require encryption",
            ));
        }
        client.ssl_negotiation(negotiation);
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
        client.channel_binding(binding);
    }
    Ok(())
}

fn twice(url: &StoreUrl, name: &str) -> Error {
    refuse(url, format!("it has {name} both before the query and as a parameter")).advise("give it once")
}

/// A value from before the query or from a parameter.
fn either(url: &mut StoreUrl, name: &str, before_query: Option<String>) -> Result<Option<String>> {
    match (before_query, url.take_driver(name)) {
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
