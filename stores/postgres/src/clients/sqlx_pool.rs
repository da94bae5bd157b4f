//! The server of a pool of sqlx.

use std::borrow::Cow;

use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgPool};

use crate::config::PostgresConfig;
use crate::config::tls::TlsOptions;
use crate::{AdvisoryStore, PostgresStore};

impl PostgresStore {
    /// Connects to the server of a pool of sqlx: its address, login, database and TLS settings are used, and those of `config`
    /// are not.
    ///
    /// The store opens connections of its own, one and a second while the process has waiters, and takes none of the pool: a
    /// renewal never waits until the application returns a connection, and the application never waits for one of ours. The
    /// store keeps its connections when the pool is closed. What the pool does after it connects (`after_connect`) is not done
    /// for them.
    ///
    /// ```no_run
    /// use distlock_core::{Locks, store::Backend};
    /// use distlock_postgres::{PostgresConfig, PostgresStore};
    ///
    /// # async fn example(pool: sqlx::PgPool) -> distlock_core::Result<()> {
    /// let store = PostgresStore::with_sqlx_pool(&pool, PostgresConfig::default().schema("locks")?).await?;
    /// let locks = Locks::new(Backend::lease(store))?;
    /// # drop(locks); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`connect`](PostgresStore::connect). [`ErrorKind::InvalidInput`] if the pool has certificates in memory and not in
    /// files.
    ///
    /// # Cancel safety
    /// As for [`connect`](PostgresStore::connect).
    pub async fn with_sqlx_pool(pool: &PgPool, config: PostgresConfig) -> Result<Self> {
        PostgresStore::connect(config.on_server_of(&pool.connect_options())?).await
    }
}

impl AdvisoryStore {
    /// Connects to the server of a pool of sqlx: its address, login, database and TLS settings are used, and those of `config`
    /// are not.
    ///
    /// A lock lives as long as a session, so the store opens connections of its own, one and one for each waiter, and takes none
    /// of the pool. In a transaction of the pool use [`SqlxTransactionLocks`](crate::SqlxTransactionLocks).
    ///
    /// # Errors
    /// As for [`connect`](AdvisoryStore::connect). [`ErrorKind::InvalidInput`] if the pool has certificates in memory and not in
    /// files.
    ///
    /// # Cancel safety
    /// As for [`connect`](AdvisoryStore::connect).
    pub async fn with_sqlx_pool(pool: &PgPool, config: PostgresConfig) -> Result<Self> {
        AdvisoryStore::connect(config.on_server_of(&pool.connect_options())?).await
    }
}

impl PostgresConfig {
    /// The same tables and options on the server of options of sqlx.
    fn on_server_of(self, options: &PgConnectOptions) -> Result<Self> {
        let mut client = tokio_postgres::Config::new();
        match options.get_socket() {
            Some(folder) => client.host_path(folder),
            None => client.host(options.get_host()),
        };
        client.port(options.get_port()).user(options.get_username());
        if let Some(database) = options.get_database() {
            client.dbname(database);
        }
        if let Some(name) = options.get_application_name() {
            client.application_name(name);
        }
        if let Some(settings) = options.get_options() {
            client.options(settings);
        }
        let (password, tls) = secrets(options)?;
        if let Some(password) = password {
            client.password(password.as_bytes());
        }
        Ok(self.on_with_tls(client, tls))
    }
}

/// The password and the certificates. sqlx shows them only in a URL.
fn secrets(options: &PgConnectOptions) -> Result<(Option<String>, TlsOptions)> {
    // It does not escape user and host, and panics if they make no URL.
    let url = options.clone().username("user").host("localhost").to_url_lossy();
    let password = match url.password() {
        Some(text) => {
            Some(percent_decode_str(text).decode_utf8().map_err(|_| unreadable("password"))?.into_owned())
        }
        None => None,
    };
    let mut text = String::from("postgres://localhost/?");
    for (name, value) in url.query_pairs() {
        if !["sslmode", "sslrootcert", "sslcert", "sslkey"].contains(&&*name) {
            continue;
        }
        // A file is shown as `file: PATH`, and a certificate in memory as its text.
        let value = match value.strip_prefix("file: ") {
            Some(path) => path,
            None if name == "sslmode" => &value,
            None => return Err(unreadable("certificate")),
        };
        let value: Cow<'_, str> = utf8_percent_encode(value, NON_ALPHANUMERIC).into();
        text.push_str(&format!("{name}={value}&"));
    }
    let mut url = StoreUrl::parse(text.trim_end_matches('&'))?;
    Ok((password, TlsOptions::take_from(&mut url)?))
}

fn unreadable(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("the {what} of the pool cannot be read from it"))
        .doing("read the options of a pool of sqlx")
        .advise("use certificates in files, or connect with a PostgresConfig of your own")
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::{Host, SslMode};

    use super::*;

    #[test]
    fn every_part_of_the_pools_options_is_used_whatever_its_characters() {
        let options = PgConnectOptions::new_without_pgpass()
            .host("db.example")
            .port(6543)
            .username("o'neil @/:%")
            .password("p%41ss @/:?#&=ü")
            .database("app/db")
            .application_name("svc")
            .options([("statement_timeout", "7s")]);
        let config = PostgresConfig::default().schema("locks").unwrap().on_server_of(&options).unwrap();
        let client = &config.client;
        assert_eq!(client.get_hosts(), [Host::Tcp("db.example".to_owned())]);
        assert_eq!(client.get_ports(), [6543]);
        assert_eq!(client.get_user(), Some("o'neil @/:%"));
        assert_eq!(client.get_password(), Some("p%41ss @/:?#&=ü".as_bytes()));
        assert_eq!(client.get_dbname(), Some("app/db"));
        assert_eq!(client.get_application_name(), Some("svc"));
        assert_eq!(client.get_options(), Some("-c statement_timeout=7s"));
        assert_eq!(config.schema.as_str(), "locks");
    }

    #[test]
    fn the_pools_tls_is_not_weakened() {
        use sqlx::postgres::PgSslMode;
        let base = PgConnectOptions::new_without_pgpass();
        for (mode, expected) in [
            (PgSslMode::Disable, SslMode::Disable),
            (PgSslMode::Prefer, SslMode::Prefer),
            (PgSslMode::Require, SslMode::Require),
            (PgSslMode::VerifyCa, SslMode::Require),
            (PgSslMode::VerifyFull, SslMode::Require),
        ] {
            let (_, tls) = secrets(&base.clone().ssl_mode(mode)).unwrap();
            assert_eq!(tls.driver_mode(), expected, "{mode:?}");
        }
        let (_, full) =
            secrets(&base.clone().ssl_mode(PgSslMode::VerifyFull).ssl_root_cert("/a b/ca.pem")).unwrap();
        let text = "postgres://h/?sslmode=verify-full&sslrootcert=%2Fa%20b%2Fca.pem";
        let expected = TlsOptions::take_from(&mut StoreUrl::parse(text).unwrap()).unwrap();
        assert_eq!(format!("{full:?}"), format!("{expected:?}"));
        let inline = base
            .ssl_mode(PgSslMode::VerifyFull)
            .ssl_root_cert_from_pem(b"-----BEGIN CERTIFICATE-----".to_vec());
        assert_eq!(secrets(&inline).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
