//! Reading a URL. The driver reads it too, since it knows more options than we do. It gets a text made of the parts we
//! read, each escaped, and its reading must agree with ours.

#[cfg(test)]
mod tests;

use distlock_core::store::StoreUrl;
use distlock_core::store::url::{Authority, Host, Server};
use distlock_core::{Error, Result};
use mongodb::options::{ConnectionString, HostInfo, ServerAddress, Tls};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{ConnectionSource, MongoConfig, URL_OPTIONS};

/// What stands unescaped in the text for the driver: it recognises a socket by `.sock` before it decodes.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');

const SPELLING: &str = "write it like mongodb://user:password@host:27017/database, with % escapes in user, password and \
                        database, and only options that MongoDB knows";

/// The driver's options that errors may name. Any other text may be a secret.
const DRIVER_OPTIONS: &[&str] = &[
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

impl MongoConfig {
    /// Reads a URL of the driver's form, with the `distlock.` options of [`DRIVER`](crate::DRIVER). Nothing is sent or
    /// resolved.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for anything that the driver or the store does
    /// not take, without repeating it.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut url = url.clone();
        url.accept(crate::DRIVER.schemes())?;
        let collection = url.take("collection");
        let retention = url.take_duration("retention")?;
        url.refuse_other_options(URL_OPTIONS)?;
        let mut config = MongoConfig { connection: read_connection(&url)?, ..MongoConfig::default() };
        if let Some(collection) = collection {
            config = config.collection(collection)?;
        }
        if let Some(retention) = retention {
            config = config.retention(retention)?;
        }
        config.names(config.default_database())?;
        Ok(config)
    }
}

fn read_connection(url: &StoreUrl) -> Result<ConnectionSource> {
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
    // The driver's message may repeat what was given, a password included, so it is not used.
    let connection = ConnectionString::parse(text(&options_text)).map_err(|_| find_fault(url, &text))?;
    if !agrees(&connection, url, &authority, database) {
        return Err(refuse(url, "the driver reads it differently than we do"));
    }
    Ok(ConnectionSource::Url { connection: Box::new(connection), hosts })
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

/// Refuses options that contradict each other. The driver refuses some of them and silently drops others.
fn check_options(url: &StoreUrl) -> Result<()> {
    if let (Some(one), Some(other)) = (option(url, "tls"), option(url, "ssl"))
        && one != other
    {
        return Err(refuse(url, "its options tls and ssl contradict each other"));
    }
    if skips_certificate_checks(url) && option(url, "tlsCAFile").is_some() {
        return Err(refuse(url, "it has tlsCAFile, and other options say that no certificate is checked"));
    }
    Ok(())
}

fn skips_certificate_checks(url: &StoreUrl) -> bool {
    ["tlsInsecure", "tlsAllowInvalidCertificates"].iter().any(|name| option(url, name) == Some("true"))
}

/// Whether the URL asks for encryption; `None` if it does not say.
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
        return Err(refuse(url, "it has an @ without a user before it"));
    };
    match login.password().map(std::str::from_utf8) {
        None => Ok(format!("{}@", escaped(user))),
        Some(Ok(password)) => Ok(format!("{}:{}@", escaped(user), escaped(password))),
        Some(Err(_)) => Err(refuse(url, "the password is not UTF-8")),
    }
}

/// Which option the driver does not take, found by trying each alone.
fn find_fault(url: &StoreUrl, text: &dyn Fn(&str) -> String) -> Error {
    let fails = |options: &str| ConnectionString::parse(text(options)).is_err();
    if fails("") {
        return refuse(url, "the driver does not take its hosts, its login or its database");
    }
    for (name, value) in url.driver_parameters() {
        if fails(&format!("?{name}={}", escaped(value))) {
            return match DRIVER_OPTIONS.iter().find(|known| known.eq_ignore_ascii_case(name)) {
                Some(known) => refuse(url, format!("the driver does not take its value of {known}")),
                None => url.refuse_driver(name, "is not an option of the driver").advise(SPELLING),
            };
        }
    }
    refuse(url, "the driver does not take its options together")
}

/// Whether the driver read the same as we did.
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
                && tls.allow_invalid_certificates.unwrap_or(false) == skips_certificate_checks(url)
                && tls.ca_file_path.as_deref() == option(url, "tlsCAFile").map(std::path::Path::new)
        }
    };
    same_login && same_hosts && same_tls && connection.default_database.as_deref() == database
}
