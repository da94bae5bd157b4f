//! Reading a URL. The driver gets the parts we read, never the text.

#[cfg(test)]
mod tests;

use distlock_core::store::StoreUrl;
use distlock_core::store::url::{Authority, Host};
use distlock_core::{Error, Result};
use mysql_async::OptsBuilder;

use super::tls::Tls;
use super::{LEASE_OPTIONS, MysqlConfig, SESSION_OPTIONS};
use crate::{DRIVER, SESSION_DRIVER};

const SPELLING: &str = "write it like mysql://user:password@host:3306/database?ssl-mode=VERIFY_IDENTITY, with % escapes in user \
                        and password; a socket is a host with escapes: mysql://user@%2Frun%2Fmysqld%2Fmysqld.sock/database";
const DRIVER_OPTIONS: &[&str] = &["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"];
const PORT: u16 = 3306;

impl MysqlConfig {
    /// Reads a URL of either store, with the `distlock.` options of its driver and `ssl-mode`, `ssl-ca`, `ssl-cert` and
    /// `ssl-key`. Nothing is sent or resolved.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for anything that is not understood, without
    /// repeating it.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut url = url.clone();
        let schemes: Vec<&str> = DRIVER.schemes().iter().chain(SESSION_DRIVER.schemes()).copied().collect();
        url.accept(&schemes)?;
        let is_session = SESSION_DRIVER.schemes().contains(&url.scheme());
        let table = url.take("table");
        let retention = url.take_duration("retention")?;
        let session_timeout = if is_session { url.take_duration("session_timeout")? } else { None };
        let heartbeat_timeout = if is_session { url.take_duration("heartbeat_timeout")? } else { None };
        url.refuse_other_options(if is_session { SESSION_OPTIONS } else { LEASE_OPTIONS })?;
        let tls = Tls::take_from(&mut url)?;
        url.refuse_unknown_driver(DRIVER_OPTIONS)?;
        let mut config = read_connection(&url, tls)?;
        if let Some(table) = table {
            config = config.table(&table)?;
        }
        if let Some(retention) = retention {
            config = config.retention(retention)?;
        }
        if let Some(timeout) = session_timeout {
            config = config.session_timeout(timeout)?;
        }
        if let Some(timeout) = heartbeat_timeout {
            config = config.heartbeat_timeout(timeout)?;
        }
        Ok(config)
    }
}

fn refuse(url: &StoreUrl, what: &str) -> Error {
    url.refuse(what.to_owned()).advise(SPELLING)
}

fn read_connection(url: &StoreUrl, tls: Tls) -> Result<MysqlConfig> {
    let Authority { login, servers, .. } = url.authority()?;
    let [server] = &servers[..] else {
        return Err(refuse(url, "it does not name one host"));
    };
    let mut builder = OptsBuilder::default();
    builder = match &server.host {
        Host::Name(name) => builder.ip_or_hostname(name.clone()).tcp_port(server.port.unwrap_or(PORT)),
        Host::Socket(path) => {
            if server.port.is_some() {
                return Err(refuse(url, "a socket has no port"));
            }
            if tls.is_encrypted() {
                return Err(refuse(url, "it asks for TLS, which a socket does not have"));
            }
            let path = path.to_str().ok_or_else(|| refuse(url, "the path of the socket is not UTF-8"))?;
            builder.socket(Some(path))
        }
    };
    if let Some(login) = &login {
        let user = login.user().ok_or_else(|| refuse(url, "it has an @ without a user before it"))?;
        builder = builder.user(Some(user));
        if let Some(password) = login.password() {
            let password =
                std::str::from_utf8(password).map_err(|_| refuse(url, "the password is not UTF-8"))?;
            builder = builder.pass(Some(password));
        }
    }
    let path = url.path()?;
    let database = path.strip_prefix('/').unwrap_or(&path);
    if database.is_empty() {
        return Err(refuse(url, "it names no database"));
    }
    let config = MysqlConfig::build(builder.db_name(Some(database)).into(), Some(tls));
    config.tables(config.connected_to()).map_err(|_| {
        refuse(url, "the name of its database cannot be used: ASCII letters, digits, _ and - make one")
    })?;
    Ok(config)
}
