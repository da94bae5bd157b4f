//! The server of a pool of sqlx.

use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use mysql_async::OptsBuilder;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlSslMode};

use crate::config::MysqlConfig;
use crate::config::tls::Tls;
use crate::connections::Source;
use crate::{MysqlSessionStore, MysqlStore};

impl MysqlStore {
    /// Connects to the server of a pool of sqlx: its address, login, database and TLS settings are used, and those of `config`
    /// are not.
    ///
    /// The store opens one to four connections of its own and takes none of the pool: a renewal never waits until the
    /// application returns a connection, and the application never waits for one of ours. The store keeps its connections when
    /// the pool is closed. What the pool does after it connects (`after_connect`) is not done for them.
    ///
    /// TLS is as the pool asks for it, with a crypto provider of rustls (features `tls-ring` and `tls-aws-lc-rs`).
    /// `PREFERRED`, the default of sqlx, encrypts if the server offers TLS when the store connects. `VERIFY_CA` is refused.
    ///
    /// ```no_run
    /// use distlock_core::{Locks, store::Backend};
    /// use distlock_mysql::{MysqlConfig, MysqlStore};
    ///
    /// # async fn example(pool: sqlx::MySqlPool) -> distlock_core::Result<()> {
    /// let store = MysqlStore::with_sqlx_pool(&pool, MysqlConfig::default().table("order_locks")?).await?;
    /// let locks = Locks::new(Backend::lease(store))?;
    /// # drop(locks); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`connect`](MysqlStore::connect). [`ErrorKind::InvalidInput`] if the pool has certificates in memory and not in
    /// files, or the TLS mode `VERIFY_CA`.
    ///
    /// # Cancel safety
    /// As for [`connect`](MysqlStore::connect).
    pub async fn with_sqlx_pool(pool: &MySqlPool, config: MysqlConfig) -> Result<Self> {
        MysqlStore::connect(config.on_server_of(&pool.connect_options()).await?).await
    }
}

impl MysqlSessionStore {
    /// Connects to the server of a pool of sqlx: its address, login, database and TLS settings are used, and those of `config`
    /// are not.
    ///
    /// A lock lives as long as a session, so the store opens connections of its own, one and one for each waiter, and takes none
    /// of the pool. TLS is as for [`MysqlStore::with_sqlx_pool`].
    ///
    /// # Errors
    /// As for [`connect`](MysqlSessionStore::connect). [`ErrorKind::InvalidInput`] if the pool has certificates in memory and
    /// not in files, or the TLS mode `VERIFY_CA`.
    ///
    /// # Cancel safety
    /// As for [`connect`](MysqlSessionStore::connect).
    pub async fn with_sqlx_pool(pool: &MySqlPool, config: MysqlConfig) -> Result<Self> {
        MysqlSessionStore::connect(config.on_server_of(&pool.connect_options()).await?).await
    }
}

impl MysqlConfig {
    /// The same tables and time limits on the server of options of sqlx.
    async fn on_server_of(self, options: &MySqlConnectOptions) -> Result<Self> {
        let (config, is_optional) = self.read(options)?;
        if is_optional && !Source::of_config(&config)?.offers_tls().await {
            let opts = config.opts().clone();
            return Ok(config.on_server(opts, Tls::Disabled));
        }
        Ok(config)
    }

    /// Also whether TLS is used only if the server offers it.
    fn read(self, options: &MySqlConnectOptions) -> Result<(Self, bool)> {
        let mut builder = OptsBuilder::default();
        builder = match options.get_socket() {
            Some(path) => builder.socket(Some(path.to_str().ok_or_else(|| unreadable("socket"))?)),
            None => builder.ip_or_hostname(options.get_host()).tcp_port(options.get_port()),
        };
        builder = builder.user(Some(options.get_username())).db_name(options.get_database());
        let (password, tls) = secrets(options)?;
        builder = builder.pass(password);
        let is_socket = options.get_socket().is_some();
        let is_optional = matches!(options.get_ssl_mode(), MySqlSslMode::Preferred) && !is_socket;
        // As sqlx does: nothing leaves the machine through a socket.
        let tls = if is_socket { Tls::Disabled } else { tls };
        Ok((self.on_server(builder.into(), tls), is_optional))
    }
}

/// The password and the certificates. sqlx shows them only in a URL.
fn secrets(options: &MySqlConnectOptions) -> Result<(Option<String>, Tls)> {
    // It does not escape user and host, and panics if they make no URL.
    let url = options.clone().username("user").host("localhost").to_url_lossy();
    let password = match url.password() {
        Some(text) => {
            Some(percent_decode_str(text).decode_utf8().map_err(|_| unreadable("password"))?.into_owned())
        }
        None => None,
    };
    let mode = match options.get_ssl_mode() {
        MySqlSslMode::Disabled => return Ok((password, Tls::Disabled)),
        MySqlSslMode::Preferred | MySqlSslMode::Required => "REQUIRED",
        MySqlSslMode::VerifyCa => "VERIFY_CA",
        MySqlSslMode::VerifyIdentity => "VERIFY_IDENTITY",
    };
    let mut text = format!("mysql://localhost/d?ssl-mode={mode}");
    for (name, value) in url.query_pairs() {
        let is_used = match &*name {
            "ssl-cert" | "ssl-key" => true,
            // sqlx does not look at it in the other modes.
            "ssl-ca" => mode.starts_with("VERIFY"),
            _ => false,
        };
        if !is_used {
            continue;
        }
        // A file is shown as `file: PATH`, and a certificate in memory as its text.
        let path = value.strip_prefix("file: ").ok_or_else(|| unreadable("certificate"))?;
        text.push_str(&format!("&{name}={}", utf8_percent_encode(path, NON_ALPHANUMERIC)));
    }
    let tls = Tls::take_from(&mut StoreUrl::parse(&text)?);
    Ok((password, tls.map_err(|error| error.doing("read the options of a pool of sqlx"))?))
}

fn unreadable(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("the {what} of the pool cannot be read from it"))
        .doing("read the options of a pool of sqlx")
        .advise("use certificates in files, or connect with a MysqlConfig of your own")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_pools_options_is_used_whatever_its_characters() {
        let options = MySqlConnectOptions::new()
            .host("db.example")
            .port(3307)
            .username("o'neil @/:%")
            .password("p%41ss @/:?#&=ü")
            .database("app/db");
        let (config, is_optional) = MysqlConfig::default().table("locks").unwrap().read(&options).unwrap();
        assert!(is_optional);
        let opts = config.opts();
        assert_eq!((opts.ip_or_hostname(), opts.tcp_port()), ("db.example", 3307));
        assert_eq!((opts.user(), opts.pass()), (Some("o'neil @/:%"), Some("p%41ss @/:?#&=ü")));
        assert_eq!(opts.db_name(), Some("app/db"));
        assert!(config.location().ends_with(".locks"), "{}", config.location());
        let (config, is_optional) =
            MysqlConfig::default().read(&MySqlConnectOptions::new().socket("/run/s")).unwrap();
        assert_eq!(
            (config.opts().socket(), is_optional, config.is_plain_text()),
            (Some("/run/s"), false, false)
        );
    }

    #[test]
    fn the_pools_tls_is_not_weakened() {
        let base = MySqlConnectOptions::new();
        let tls = |text: &str| Tls::take_from(&mut StoreUrl::parse(text).unwrap()).unwrap();
        for (mode, expected) in [
            (MySqlSslMode::Disabled, "mysql://h/d?ssl-mode=DISABLED"),
            (MySqlSslMode::Preferred, "mysql://h/d?ssl-mode=REQUIRED"),
            (MySqlSslMode::Required, "mysql://h/d?ssl-mode=REQUIRED"),
            (MySqlSslMode::VerifyIdentity, "mysql://h/d?ssl-mode=VERIFY_IDENTITY"),
        ] {
            assert_eq!(secrets(&base.clone().ssl_mode(mode)).unwrap().1, tls(expected), "{mode:?}");
        }
        let full = base.clone().ssl_mode(MySqlSslMode::VerifyIdentity).ssl_ca("/a b/ca.pem");
        let full = full.ssl_client_cert("/c.pem").ssl_client_key("/k.pem");
        let expected = "mysql://h/d?ssl-mode=VERIFY_IDENTITY&ssl-ca=%2Fa%20b%2Fca.pem&ssl-cert=%2Fc.pem&ssl-key=%2Fk.pem";
        assert_eq!(secrets(&full).unwrap().1, tls(expected));
        for refused in [
            base.clone().ssl_mode(MySqlSslMode::VerifyCa),
            base.ssl_mode(MySqlSslMode::VerifyIdentity)
                .ssl_ca_from_pem(b"-----BEGIN CERTIFICATE-----".to_vec()),
        ] {
            assert_eq!(secrets(&refused).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
