//! Reading a URL. The driver gets the parts we read, never the text.

use distlock_core::store::StoreUrl;
use distlock_core::store::url::{Authority, Host, Secret};
use distlock_core::{Error, Result};

use super::ado::{self, Setting};
use super::{Login, OPTIONS, SqlServerConfig};
use crate::DRIVER;

const SPELLING: &str = "write it like sqlserver://user:password@host:1433/database, with % escapes in user and password; an instance is named by \
                        ?instancename=NAME";
/// An ADO.NET connection string as the whole URL.
const CONNECTION_STRING: &str = "connectionstring";
/// As the keywords of a connection string, without spaces and in lower case.
const DRIVER_OPTIONS: &[&str] = &[
    "encrypt",
    "trustservercertificate",
    "trustservercertificateca",
    "hostnameincertificate",
    "applicationname",
    "multisubnetfailover",
    "applicationintent",
    "instancename",
    "accesstoken",
    CONNECTION_STRING,
];

impl SqlServerConfig {
    /// Reads a URL, with the `distlock.` options of its driver and, in lower case, `encrypt`, `trustservercertificate`,
    /// `trustservercertificateca`, `hostnameincertificate`, `applicationname`, `multisubnetfailover`, `applicationintent`,
    /// `instancename` and `accesstoken`. Nothing is sent or resolved.
    ///
    /// An ADO.NET connection string can stand in a URL too, without a host and with `distlock.` options alone beside it:
    /// `sqlserver:?connectionstring=Server=tcp:db.example,1433;Database=orders;User Id=app;Password=secret`. In it `&`, `%`, `#` and
    /// `\` are written as escapes: `%26`, `%25`, `%23` and `%5C`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](distlock_core::ErrorKind::InvalidInput) for anything that is not understood, without
    /// repeating it.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let mut url = url.clone();
        url.accept(DRIVER.schemes())?;
        let (schema, table, principal) = (url.take("schema"), url.take("table"), url.take("principal"));
        let (tokens, heartbeat) = (url.take_switch("tokens")?, url.take_duration("heartbeat_timeout")?);
        url.refuse_other_options(OPTIONS)?;
        let connection_string = url.take_driver(CONNECTION_STRING);
        let mut settings = Vec::new();
        for name in DRIVER_OPTIONS {
            if let Some((setting, value)) = Setting::of(name).zip(url.take_driver(name)) {
                settings.push((*name, setting, value));
            }
        }
        url.refuse_unknown_driver(DRIVER_OPTIONS)?;
        let mut config = match connection_string {
            None => read_connection(&url)?,
            Some(_) if url.has_authority() || !url.path()?.is_empty() || !settings.is_empty() => {
                return Err(refuse(&url, "it has a connection string, and says beside it what that says"));
            }
            Some(text) => SqlServerConfig::from_connection_string(&text)?,
        };
        for (name, setting, value) in settings {
            if setting == Setting::AccessToken && !matches!(config.login, Login::None) {
                return Err(refuse(&url, "it has an access token and a login"));
            }
            if setting == Setting::Instance
                && url.authority()?.servers.iter().any(|server| server.port.is_some())
            {
                return Err(refuse(&url, "it names a port and an instance"));
            }
            ado::apply(&mut config, setting, &value)
                .map_err(|what| refuse(&url, &format!("its parameter {name} {what}")))?;
        }
        ado::check(&config).map_err(|what| refuse(&url, what))?;
        if let Some(schema) = schema {
            config = config.schema(&schema)?;
        }
        if let Some(table) = table {
            config = config.table(&table)?;
        }
        if let Some(principal) = principal {
            config = config.principal(&principal)?;
        }
        if let Some(timeout) = heartbeat {
            config = config.heartbeat_timeout(timeout)?;
        }
        Ok(config.tokens(tokens.unwrap_or(true)))
    }
}

fn refuse(url: &StoreUrl, what: &str) -> Error {
    url.refuse(what.to_owned()).advise(SPELLING)
}

fn read_connection(url: &StoreUrl) -> Result<SqlServerConfig> {
    let Authority { login, servers, .. } = url.authority()?;
    let [server] = &servers[..] else {
        return Err(refuse(url, "it does not name one host"));
    };
    let Host::Name(host) = &server.host else {
        return Err(refuse(url, "it names a socket, and the server has none"));
    };
    let mut config = SqlServerConfig::new(host.clone())?;
    if let Some(port) = server.port {
        config.port = port;
    }
    if let Some(login) = &login {
        let user = login.user().ok_or_else(|| refuse(url, "it has an @ without a user before it"))?;
        let password = std::str::from_utf8(login.password().unwrap_or_default())
            .map_err(|_| refuse(url, "the password is not UTF-8"))?;
        config.login = Login::Sql { user: user.to_owned(), password: Secret::new(password) };
    }
    let path = url.path()?;
    let database = path.strip_prefix('/').unwrap_or(&path);
    if database.is_empty() {
        return Err(refuse(url, "it names no database"));
    }
    if database.len() > 128 || database.contains(['/', '\0']) {
        return Err(refuse(url, "the name of its database cannot be used"));
    }
    config.database = Some(database.to_owned());
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_core::ErrorKind;

    use super::super::Encrypt;
    use super::*;

    fn read(text: &str) -> Result<SqlServerConfig> {
        SqlServerConfig::from_url(&StoreUrl::parse(text)?)
    }

    #[test]
    fn a_url_says_where_and_as_whom() {
        let config = read("sqlserver://app:p%40ss@db.example:1533/orders?distlock.schema=locks&distlock.table=t&distlock.principal=jobs&distlock.heartbeat_timeout=5s&multisubnetfailover=true").unwrap();
        assert_eq!(
            (config.host.as_str(), config.port, config.database.as_deref()),
            ("db.example", 1533, Some("orders"))
        );
        assert!(
            matches!(&config.login, Login::Sql { user, password } if user == "app" && password.expose() == "p@ss")
        );
        assert_eq!(config.names.holders(), "[locks].[t_holder]");
        assert_eq!((config.principal.as_str(), config.tokens), ("jobs", true));
        assert_eq!(config.heartbeat_timeout, Duration::from_secs(5));
        assert!(config.multi_subnet_failover);
        assert_eq!(config.to_string(), "sqlserver db.example:1533/orders locks.t");
        assert!(!format!("{config:?}").contains("p@ss"));
        let config = read("sqlserver://h/d?instancename=EXPRESS&distlock.tokens=off").unwrap();
        assert_eq!((config.instance.as_deref(), config.tokens), (Some("EXPRESS"), false));
        assert!(matches!(read("sqlserver://h/d?accesstoken=ey").unwrap().login, Login::AccessToken(_)));
    }

    #[test]
    fn a_connection_string_can_be_the_url() {
        let config = read(
            "sqlserver:?connectionstring=Server=db%5CX;Database=o;User Id=a;Password=p%26;=@&distlock.table=t",
        );
        assert!(config.is_err(), "an empty keyword");
        let config = read(
            "sqlserver:?connectionstring=Server=db%5CX;Database=o d;User Id=a;Password='p%26;=@'&distlock.table=t",
        )
        .unwrap();
        assert_eq!((config.host.as_str(), config.instance.as_deref()), ("db", Some("X")));
        assert!(matches!(&config.login, Login::Sql { password, .. } if password.expose() == "p&;=@"));
        assert_eq!(config.names.holders(), "[dbo].[t_holder]");
        assert_eq!(config.encrypt, Encrypt::Mandatory);
    }

    #[test]
    fn encryption_is_on_unless_encrypt_itself_says_otherwise() {
        for (parameters, encrypt) in [
            ("", Encrypt::Mandatory),
            ("?trustservercertificate=true", Encrypt::Mandatory),
            ("?encrypt=strict", Encrypt::Strict),
            ("?encrypt=false", Encrypt::LoginOnly),
            ("?encrypt=danger_plaintext", Encrypt::Plaintext),
        ] {
            assert_eq!(
                read(&format!("sqlserver://h/d{parameters}")).unwrap().encrypt,
                encrypt,
                "{parameters}"
            );
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_and_not_repeated() {
        for bad in [
            "sqlserver://h",
            "sqlserver://h1,h2/d",
            "sqlserver://:s3cret@h/d",
            "sqlserver://h/d?encrypt=s3cret",
            "sqlserver://h/d?encrypt=true&Encrypt=false",
            "sqlserver://h/d?Encrypt=false",
            "sqlserver://h/d?trustservercertificate=true&trustservercertificateca=/s3cret",
            "sqlserver://h/d?trustservercertificate=true&hostnameincertificate=h",
            "sqlserver://h/d?encrypt=strict&trustservercertificate=true",
            "sqlserver://h/d?applicationintent=readonly",
            "sqlserver://u:s3cret@h/d?accesstoken=s3cret",
            "sqlserver://h:1/d?instancename=X",
            "sqlserver://h/d?instancename=s3cret!",
            "sqlserver://h/d?sslmode=disable",
            "sqlserver://h/d?distlock.table=s3]cret",
            "sqlserver://h/d?distlock.heartbeat_timeout=30s",
            "sqlserver://h/d?distlock.heartbeat_timeout=100ms",
            "sqlserver://h/d?distlock.retention=1h",
            "sqlserver://%2Frun%2Fs3cret/d",
            "sqlserver://h/d?connectionstring=Server=s3cret",
            "sqlserver:?connectionstring=Server=h&encrypt=false",
            "sqlserver:?connectionstring=Server=h;Password=s3cret",
            "sqlserver:?connectionstring=Server=h;User=u;Password=s3cret&Encrypt=false",
            "Server=tcp:h;Password=s3cret",
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
            assert!(!format!("{error:#}").contains("s3cret"), "{error:#}");
        }
    }
}
