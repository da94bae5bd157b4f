//! What a URL says. The driver reads it too, since it knows more options than we do: it gets a text that is made of the
//! parts we read, each escaped, and what it makes of them must be what we read.

#[cfg(test)]
mod tests;

use std::time::Duration;

use distlock_core::store::StoreUrl;
use distlock_core::store::url::{Authority, Host, Server, plain};
use distlock_core::{Error, Result};
use mongodb::options::{ClientOptions, ConnectionString, HostInfo, ServerAddress, Tls};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::config::{MongoOptions, Names};

/// A driver waits half a minute for a server by default. Nobody who asks for a lock waits that long for a store that
/// is down, and an election in between takes less.
const SERVER_SELECTION: Duration = Duration::from_secs(5);
/// With the heartbeat this bounds how long a request hangs on a server that stands still: the driver's monitor
/// gives up after both, and then ends every connection to that server.
const CONNECT: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_secs(2);

/// The parameters of ours that a URL may have.
const PARAMETERS: &[&str] = &["collection"];

/// The driver knows a socket by the ending of its name, before it decodes.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');

const SPELLING: &str = "write it like mongodb://user:password@host:27017/database, with % escapes in user, password and \
                        database, and only options that MongoDB knows";

/// Options that errors may name. Others may be anything.
const OPTIONS: &[&str] = &[
    "appName",
    "authMechanism",
    "authMechanismProperties",
    "authSource",
    "connectTimeoutMS",
    "directConnection",
    "heartbeatFrequencyMS",
    "journal",
    "loadBalanced",
    "localThresholdMS",
    "maxIdleTimeMS",
    "maxPoolSize",
    "minPoolSize",
    "readConcernLevel",
    "readPreference",
    "replicaSet",
    "retryReads",
    "retryWrites",
    "serverMonitoringMode",
    "serverSelectionTimeoutMS",
    "socketTimeoutMS",
    "srvMaxHosts",
    "srvServiceName",
    "ssl",
    "tls",
    "tlsAllowInvalidCertificates",
    "tlsCAFile",
    "tlsCertificateKeyFile",
    "tlsCertificateKeyFilePassword",
    "tlsInsecure",
    "w",
    "wtimeoutMS",
];

/// A URL, taken apart and checked; nothing was sent or looked up.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) connection: ConnectionString,
    pub(crate) names: Names,
    hosts: Vec<String>,
}

impl Target {
    /// Reads a store URL with our parameters.
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Target> {
        url.accept(crate::DRIVER.schemes())?;
        let mut options = MongoOptions::new();
        if let Some(collection) = url.take("collection") {
            options = options.collection(collection)?;
        }
        url.refuse_unknown(PARAMETERS)?;
        Target::read(&url, &options)
    }

    /// Reads a URL without parameters of ours: the options say what they would.
    pub(crate) fn new(url: &str, options: &MongoOptions) -> Result<Target> {
        let mut url = StoreUrl::parse(url)?;
        url.accept(crate::DRIVER.schemes())?;
        url.refuse_unknown(&[])?;
        Target::read(&url, options)
    }

    fn read(url: &StoreUrl, options: &MongoOptions) -> Result<Target> {
        if !url.has_authority() {
            return Err(refuse(url, "it has no // behind its scheme"));
        }
        let authority = url.authority()?;
        let path = url.path()?;
        let database = Some(path.strip_prefix('/').unwrap_or(&path)).filter(|name| !name.is_empty());
        check_options(url)?;
        let hosts = written_hosts(url, &authority)?;
        let login = written_login(url, &authority)?;
        let text = |options: &str| {
            let database = escaped(database.unwrap_or_default());
            format!("{}://{login}{}/{database}{options}", url.scheme(), hosts.join(","))
        };
        let pairs: Vec<String> =
            url.driver_parameters().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        let options_text = if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) };
        // The driver's own words may hold what was given, a password included: they are not repeated.
        let connection = ConnectionString::parse(text(&options_text)).map_err(|_| blame(url, &text))?;
        if !agrees(&connection, url, &authority, database) {
            return Err(refuse(url, "the driver reads it in another way than we do"));
        }
        let names = options.names(connection.default_database.as_deref())?;
        Ok(Target { connection, names, hosts })
    }

    /// Where the locks are, in words without secrets.
    pub(crate) fn place(&self) -> String {
        format!(
            "mongodb {}/{}.{}",
            self.hosts.join(","),
            plain(&self.names.database),
            plain(&self.names.locks)
        )
    }

    /// What to give to the driver. Resolves `mongodb+srv` names.
    pub(crate) async fn client_options(&self) -> mongodb::error::Result<ClientOptions> {
        let mut options = ClientOptions::parse(self.connection.clone()).await?;
        options.app_name.get_or_insert_with(|| "distlock".to_owned());
        options.server_selection_timeout.get_or_insert(SERVER_SELECTION);
        options.connect_timeout.get_or_insert(CONNECT);
        options.heartbeat_freq.get_or_insert(HEARTBEAT);
        Ok(options)
    }
}

fn refuse(url: &StoreUrl, what: impl Into<String>) -> Error {
    url.refuse(what).advise(SPELLING)
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The value of an option; its name is not case-sensitive.
fn option<'a>(url: &'a StoreUrl, name: &str) -> Option<&'a str> {
    url.driver_parameters().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Options that say one thing and its contrary. The driver refuses some of them and drops one of others.
fn check_options(url: &StoreUrl) -> Result<()> {
    if let (Some(one), Some(other)) = (option(url, "tls"), option(url, "ssl"))
        && one != other
    {
        return Err(refuse(url, "its options tls and ssl say different things"));
    }
    if is_unchecked(url) && option(url, "tlsCAFile").is_some() {
        return Err(refuse(url, "it gives tlsCAFile, and other options say that no certificate is checked"));
    }
    Ok(())
}

fn is_unchecked(url: &StoreUrl) -> bool {
    ["tlsInsecure", "tlsAllowInvalidCertificates"].iter().any(|name| option(url, name) == Some("true"))
}

/// Whether the URL asks for encryption; `None` if it says nothing about it.
fn wants_tls(url: &StoreUrl) -> Option<bool> {
    if let Some(value) = option(url, "tls").or(option(url, "ssl")) {
        return Some(value == "true");
    }
    let details = ["tlsCAFile", "tlsCertificateKeyFile", "tlsInsecure", "tlsAllowInvalidCertificates"];
    let implied = url.scheme() == "mongodb+srv" || details.iter().any(|name| option(url, name).is_some());
    implied.then_some(true)
}

fn written_hosts(url: &StoreUrl, authority: &Authority) -> Result<Vec<String>> {
    if authority.servers.is_empty() {
        return Err(refuse(url, "it names no host"));
    }
    let write = |server: &Server| {
        let host = match &server.host {
            Host::Name(name) if name.contains(':') => format!("[{name}]"),
            Host::Name(name) => name.clone(),
            Host::Socket(path) => match path.to_str() {
                Some(path) if path.ends_with(".sock") && server.port.is_none() => escaped(path),
                _ => {
                    return Err(refuse(
                        url,
                        "a socket is written with % escapes, ends in .sock and has no port",
                    ));
                }
            },
        };
        Ok(server.port.map_or(host.clone(), |port| format!("{host}:{port}")))
    };
    authority.servers.iter().map(write).collect()
}

fn written_login(url: &StoreUrl, authority: &Authority) -> Result<String> {
    let Some(login) = &authority.login else { return Ok(String::new()) };
    let Some(user) = login.user() else {
        return Err(refuse(url, "there is an @ in it and no user before it"));
    };
    match login.password().map(std::str::from_utf8) {
        None => Ok(format!("{}@", escaped(user))),
        Some(Ok(password)) => Ok(format!("{}:{}@", escaped(user), escaped(password))),
        Some(Err(_)) => Err(refuse(url, "the password is not UTF-8")),
    }
}

/// Which option the driver does not take, as far as it can be told by trying each alone.
fn blame(url: &StoreUrl, text: &dyn Fn(&str) -> String) -> Error {
    let fails = |options: &str| ConnectionString::parse(text(options)).is_err();
    if fails("") {
        return refuse(url, "the driver does not take its hosts, its login or its database");
    }
    for (name, value) in url.driver_parameters() {
        if fails(&format!("?{name}={}", escaped(value))) {
            return match OPTIONS.iter().find(|known| known.eq_ignore_ascii_case(name)) {
                Some(known) => refuse(url, format!("the driver does not take its value of {known}")),
                None => url.refuse_driver(name, "is no option that the driver takes").advise(SPELLING),
            };
        }
    }
    refuse(url, "the driver does not take its options together")
}

/// Whether the driver made of a text what we had read before.
fn agrees(
    connection: &ConnectionString,
    url: &StoreUrl,
    authority: &Authority,
    database: Option<&str>,
) -> bool {
    let login = authority.login.clone().unwrap_or_default();
    let credential = connection.credential.clone().unwrap_or_default();
    let same_login = credential.username.as_deref() == login.user()
        && credential.password.as_deref().map(str::as_bytes) == login.password()
        && credential.mechanism.as_ref().map(|mechanism| mechanism.as_str()) == option(url, "authMechanism")
        && credential.source.as_deref() == option(url, "authSource");
    let same_hosts = match &connection.host_info {
        HostInfo::HostIdentifiers(hosts) => {
            hosts.len() == authority.servers.len()
                && hosts.iter().zip(&authority.servers).all(|(theirs, ours)| match (theirs, &ours.host) {
                    (ServerAddress::Tcp { host, port }, Host::Name(name)) => {
                        host.eq_ignore_ascii_case(name) && *port == ours.port
                    }
                    #[cfg(unix)]
                    (ServerAddress::Unix { path }, Host::Socket(ours)) => path == ours,
                    _ => false,
                })
        }
        HostInfo::DnsRecord(name) => {
            matches!(&authority.servers[..], [one] if one.port.is_none()
                && matches!(&one.host, Host::Name(ours) if ours.eq_ignore_ascii_case(name)))
        }
        _ => false,
    };
    let same_tls = match &connection.tls {
        None => wants_tls(url).is_none(),
        Some(Tls::Disabled) => wants_tls(url) == Some(false),
        Some(Tls::Enabled(tls)) => {
            wants_tls(url) == Some(true)
                && tls.allow_invalid_certificates.unwrap_or(false) == is_unchecked(url)
                && tls.ca_file_path.as_deref() == option(url, "tlsCAFile").map(std::path::Path::new)
        }
    };
    same_login && same_hosts && same_tls && connection.default_database.as_deref() == database
}
