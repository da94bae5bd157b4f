//! ADO.NET connection strings, and the settings that a URL has too. Every keyword is known or refused, and none may stand there
//! twice, under whatever synonym: what another parser would drop may be what asked for encryption.

use distlock_core::store::url::Secret;
use distlock_core::{Error, ErrorKind, Result};

use super::{Encrypt, Login, SqlServerConfig};

/// What a keyword sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Server,
    Database,
    User,
    Password,
    AccessToken,
    Encrypt,
    TrustAny,
    TrustCa,
    HostInCertificate,
    ApplicationName,
    MultiSubnetFailover,
    ApplicationIntent,
    IntegratedSecurity,
    Instance,
    /// A time limit of the driver: ours are `Options`.
    Ignored,
}

impl Setting {
    /// By its keyword: without spaces and in lower case.
    pub(super) fn of(keyword: &str) -> Option<Self> {
        let keyword: String = keyword.chars().filter(|c| *c != ' ').map(|c| c.to_ascii_lowercase()).collect();
        Some(match keyword.as_str() {
            "server" | "datasource" | "address" | "addr" | "networkaddress" => Setting::Server,
            "database" | "initialcatalog" => Setting::Database,
            "uid" | "user" | "userid" | "username" => Setting::User,
            "password" | "pwd" => Setting::Password,
            "accesstoken" => Setting::AccessToken,
            "encrypt" => Setting::Encrypt,
            "trustservercertificate" => Setting::TrustAny,
            "trustservercertificateca" => Setting::TrustCa,
            "hostnameincertificate" => Setting::HostInCertificate,
            "applicationname" | "app" => Setting::ApplicationName,
            "multisubnetfailover" => Setting::MultiSubnetFailover,
            "applicationintent" => Setting::ApplicationIntent,
            "integratedsecurity" | "trusted_connection" => Setting::IntegratedSecurity,
            "instancename" => Setting::Instance,
            "connecttimeout" | "connectiontimeout" | "timeout" | "commandtimeout" | "pooling"
            | "maxpoolsize" | "minpoolsize" => Setting::Ignored,
            _ => return None,
        })
    }
}

fn flag(value: &str) -> Result<bool, &'static str> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" => Ok(true),
        "false" | "no" => Ok(false),
        _ => Err("is neither true nor false"),
    }
}

/// Reads what a setting says. The error says what is wrong with it, without its text.
pub(super) fn apply(config: &mut SqlServerConfig, setting: Setting, value: &str) -> Result<(), &'static str> {
    let text = || if value.is_empty() { Err("is empty") } else { Ok(value.to_owned()) };
    match setting {
        Setting::Server => server(config, value)?,
        Setting::Database => config.database = Some(text()?),
        Setting::User => {
            let password = match &config.login {
                Login::Sql { password, .. } => password.clone(),
                _ => Secret::new(""),
            };
            config.login = Login::Sql { user: text()?, password };
        }
        Setting::Password => {
            let user = match &config.login {
                Login::Sql { user, .. } => user.clone(),
                _ => String::new(),
            };
            config.login = Login::Sql { user, password: Secret::new(value) };
        }
        Setting::AccessToken => config.login = Login::AccessToken(Secret::new(text()?)),
        Setting::Encrypt => {
            config.encrypt = match value.to_ascii_lowercase().as_str() {
                "strict" => Encrypt::Strict,
                "true" | "yes" | "mandatory" => Encrypt::Mandatory,
                "false" | "no" | "optional" => Encrypt::LoginOnly,
                "danger_plaintext" => Encrypt::Plaintext,
                _ => return Err("is none of strict, true, false and danger_plaintext"),
            };
        }
        Setting::TrustAny => config.trust_any = flag(value)?,
        Setting::TrustCa => {
            let pem = std::fs::read(text()?).map_err(|_| "names a file that cannot be read")?;
            config.trust_ca = Some(pem);
        }
        Setting::HostInCertificate => config.host_in_certificate = Some(text()?),
        Setting::ApplicationName => config.application_name = text()?,
        Setting::MultiSubnetFailover => config.multi_subnet_failover = flag(value)?,
        Setting::ApplicationIntent => match value.to_ascii_lowercase().as_str() {
            "readwrite" => {}
            "readonly" => {
                return Err("asks for a read-only replica, where no lock excludes those of the primary");
            }
            _ => return Err("is not ReadWrite"),
        },
        Setting::IntegratedSecurity => {
            if value.eq_ignore_ascii_case("sspi") || flag(value)? {
                return Err("asks for Windows authentication, which this store does not have");
            }
        }
        Setting::Instance => config.instance = Some(instance_name(value)?),
        Setting::Ignored => {}
    }
    Ok(())
}

/// `tcp:host,port`, `host\instance`, `host`.
fn server(config: &mut SqlServerConfig, value: &str) -> Result<(), &'static str> {
    let value = value.strip_prefix("tcp:").unwrap_or(value);
    if value.contains(':') && value.parse::<std::net::Ipv6Addr>().is_err() && !value.contains(',') {
        return Err("has a protocol other than tcp");
    }
    let (host, port) = match value.split_once(',') {
        Some((host, port)) => {
            (host, Some(port.trim().parse::<u16>().map_err(|_| "has a port that is no number")?))
        }
        None => (value, None),
    };
    let (host, instance) = match host.split_once('\\') {
        Some((host, instance)) => (host, Some(instance_name(instance)?)),
        None => (host, None),
    };
    let host = match host.trim() {
        "." | "(local)" => "localhost",
        host => host,
    };
    let is_host = host.parse::<std::net::IpAddr>().is_ok()
        || (!host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)));
    if !is_host {
        return Err("names no host");
    }
    config.host = host.to_owned();
    // A port says where the instance is, as in ADO.NET.
    config.instance = if port.is_some() { None } else { instance };
    config.port = port.unwrap_or(super::PORT);
    Ok(())
}

fn instance_name(value: &str) -> Result<String, &'static str> {
    let well_formed = value.chars().all(|c| c.is_ascii_alphanumeric() || "_$#".contains(c));
    if value.is_empty() || value.len() > 16 || !well_formed {
        return Err("names no instance");
    }
    Ok(value.to_owned())
}

/// What no single setting is wrong with.
pub(super) fn check(config: &SqlServerConfig) -> Result<(), &'static str> {
    let verifies = config.trust_ca.is_some() || config.host_in_certificate.is_some();
    if config.trust_any && verifies {
        return Err("it says which certificate to trust, and to trust any");
    }
    if config.trust_any && config.encrypt == Encrypt::Strict {
        return Err("it asks for strict encryption, and to trust any certificate");
    }
    if config.encrypt == Encrypt::Plaintext && (verifies || config.trust_any) {
        return Err("it says which certificate to trust, and encrypt asks for plain text");
    }
    if matches!(&config.login, Login::Sql { user, .. } if user.is_empty()) {
        return Err("it has a password without a user");
    }
    Ok(())
}

const SPELLING: &str = "write it like Server=tcp:host,1433;Database=app;User Id=user;Password='pass;word', and a value with a ; or a quote in \
                        quotes";

fn refuse(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, what.to_owned()).doing("read the connection string").advise(SPELLING)
}

impl SqlServerConfig {
    /// Reads an ADO.NET connection string. Nothing is sent or resolved. Time limits and pool sizes in it are not used.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for anything that is not understood, without repeating it.
    pub fn from_connection_string(text: &str) -> Result<Self> {
        let mut config = SqlServerConfig::new("")?;
        let mut seen = Vec::new();
        let mut has_token = false;
        for (place, (keyword, value)) in pairs(text)?.into_iter().enumerate() {
            let number = place + 1;
            let setting = Setting::of(&keyword)
                .ok_or_else(|| refuse(&format!("the keyword of its part {number} is not known here")))?;
            if setting != Setting::Ignored && seen.contains(&setting) {
                return Err(refuse(&format!("its part {number} says again what an earlier one says")));
            }
            seen.push(setting);
            has_token |= setting == Setting::AccessToken;
            apply(&mut config, setting, &value)
                .map_err(|what| refuse(&format!("its part {number} {what}")))?;
        }
        if has_token && (seen.contains(&Setting::User) || seen.contains(&Setting::Password)) {
            return Err(refuse("it has an access token and a login"));
        }
        if config.host.is_empty() {
            return Err(refuse("it names no server"));
        }
        check(&config).map_err(refuse)?;
        Ok(config)
    }
}

/// Keywords and values. A value in quotes may contain anything; a quote in it is written twice.
fn pairs(text: &str) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (keyword, after) = rest.split_once('=').ok_or_else(|| refuse("a part of it has no ="))?;
        let after = after.trim_start();
        let (value, next) = match after.chars().next() {
            Some(quote @ ('\'' | '"')) => quoted(&after[1..], quote)?,
            _ => match after.split_once(';') {
                Some((value, next)) => (value.trim().to_owned(), next),
                None => (after.trim().to_owned(), ""),
            },
        };
        pairs.push((keyword.trim().to_owned(), value));
        rest = next.trim_start().trim_start_matches(';').trim_start();
    }
    Ok(pairs)
}

fn quoted(text: &str, quote: char) -> Result<(String, &str)> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let end = rest.find(quote).ok_or_else(|| refuse("a quote in it is not closed"))?;
        value.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix(quote) {
            Some(after) => {
                value.push(quote);
                rest = after;
            }
            None => break,
        }
    }
    let rest = rest.trim_start();
    match rest.strip_prefix(';') {
        Some(next) => Ok((value, next)),
        None if rest.is_empty() => Ok((value, "")),
        None => Err(refuse("there is something between a quote and the next ;")),
    }
}

#[cfg(test)]
#[path = "ado_tests.rs"]
mod tests;
