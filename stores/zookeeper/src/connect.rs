//! From a configuration or a URL to a store.

use std::time::Duration;

#[cfg(feature = "tls")]
use distlock_core::store::support::errors::no_crypto_provider;
use distlock_core::store::support::errors::{brief, connect_timeout, unavailable};
use distlock_core::store::{Backend, Driver};
use distlock_core::{Error, ErrorKind, Result};
use tokio::net::TcpStream;
use zookeeper_client::{Client, Connector};

use crate::ZookeeperStore;
use crate::config::{Address, OPTIONS, ZookeeperConfig};
use crate::error::driver_error;
use crate::sessions::Sessions;

/// The URL schemes.
pub(crate) const SCHEMES: &[&str] = &["zookeeper", TLS_SCHEME];

/// The scheme with TLS. Only the scheme enables it, and certificates are always checked.
pub(crate) const TLS_SCHEME: &str = "zookeepers";

/// How long a server may take to answer when the reason of a failure is looked for.
const PROBE_LIMIT: Duration = Duration::from_millis(500);

/// The driver for `zookeeper://` URLs.
pub static DRIVER: Driver = driver();

const fn driver() -> Driver {
    let driver = Driver::new(SCHEMES, "zookeeper://h1:2181,h2:2181/chroot", |url| {
        Box::pin(async move {
            let config = ZookeeperConfig::from_url(&url)?;
            Ok(Backend::session(ZookeeperStore::connect(config).await?))
        })
    })
    .with_options(OPTIONS)
    .with_check(|url| ZookeeperConfig::from_url(url).map(drop));
    #[cfg(feature = "bench")]
    let driver = driver.with_baseline(|url| Box::pin(crate::baseline::open(url)));
    driver
}

impl ZookeeperStore {
    /// Connects and opens a session.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if no server accepts a session within the connect time-out, [`ErrorKind::Denied`] if the
    /// login is refused, [`ErrorKind::InvalidInput`] without a server.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but, at most, a session that the server ends.
    pub async fn connect(config: ZookeeperConfig) -> Result<Self> {
        if config.servers.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "no server is named")
                .advise("name at least one: ZookeeperConfig::new([Address::new(\"zk1\", 2181)])"));
        }
        let servers = config.connect_string();
        let sessions = Sessions::connect(config).await;
        Ok(ZookeeperStore::from_sessions(
            sessions.map_err(|error| error.doing("connect").on(format!("zookeeper {servers}")))?,
        ))
    }

    /// A store on a client that the application has connected. All locks live with its session, whatever their expiry. When
    /// that session ends, the store is of no more use.
    ///
    /// Servers, login and time-outs of the configuration are not used, except by `doctor`.
    #[must_use]
    pub fn with_client(client: Client, config: ZookeeperConfig) -> Self {
        ZookeeperStore::from_sessions(Sessions::of_client(client, config))
    }
}

/// Opens a session. `eager`: gives up after every server was tried once.
///
/// # Errors
/// If no server accepts it within the connect time-out, or the login is refused.
pub(crate) async fn open_client(config: &ZookeeperConfig, timeout: Duration, eager: bool) -> Result<Client> {
    // A silent server is given up early enough to try two others before the session is lost.
    let silent = (timeout / 5).max(Duration::from_millis(300)).min(timeout * 2 / 5);
    let mut connector = Client::connector().with_session_timeout(timeout).with_connection_timeout(silent);
    if let Some(login) = &config.login {
        connector = connector.with_auth("digest", login.expose().as_bytes());
    }
    if eager {
        connector = connector.with_fail_eagerly();
    }
    #[cfg(feature = "tls")]
    check_crypto_provider(config)?;
    let (limit, servers) = (config.connect_timeout, config.connect_string());
    match tokio::time::timeout(limit, connect(connector, config, &servers)).await {
        // The driver does not say why. Only who waits for the answer is told.
        Ok(Err(zookeeper_client::Error::NoHosts | zookeeper_client::Error::Timeout)) if eager => {
            Err(unavailable(unreachable_servers(config).await))
        }
        Ok(connected) => connected.map_err(|error| driver_error(&error)),
        Err(_) => Err(connect_timeout(limit)),
    }
}

/// Why no server accepted a session: `h1:2181: Connection refused, h2:2181: no reply`.
async fn unreachable_servers(config: &ZookeeperConfig) -> String {
    let probe = async |address: &Address| {
        let connecting = TcpStream::connect((address.host.as_str(), address.port));
        match tokio::time::timeout(PROBE_LIMIT, connecting).await {
            Ok(Ok(_)) => format!("{address}: no session"),
            Ok(Err(error)) => format!("{address}: {}", brief(error)),
            Err(_) => format!("{address}: no reply"),
        }
    };
    let reasons = futures_util::future::join_all(config.servers.iter().map(probe)).await;
    format!("no server accepted a session: {}", reasons.join(", "))
}

/// The driver uses the crypto provider that the program chose, and two are compiled in. The choice is the application's.
#[cfg(feature = "tls")]
fn check_crypto_provider(config: &ZookeeperConfig) -> Result<()> {
    if config.tls.is_none() || rustls::crypto::CryptoProvider::get_default().is_some() {
        return Ok(());
    }
    Err(no_crypto_provider())
}

#[cfg(feature = "tls")]
async fn connect(
    connector: Connector,
    config: &ZookeeperConfig,
    servers: &str,
) -> Result<Client, zookeeper_client::Error> {
    let Some(certificates) = &config.tls else { return connector.connect(servers).await };
    let mut options = zookeeper_client::TlsOptions::new();
    if let Some(authority) = &certificates.authority {
        options = options.with_pem_ca(&String::from_utf8_lossy(authority))?;
    }
    if let Some((certificate, key)) = &certificates.client {
        options = options
            .with_pem_identity(&String::from_utf8_lossy(certificate), &String::from_utf8_lossy(key))?;
    }
    connector.with_tls(options).secure_connect(servers).await
}

#[cfg(not(feature = "tls"))]
async fn connect(
    connector: Connector,
    _: &ZookeeperConfig,
    servers: &str,
) -> Result<Client, zookeeper_client::Error> {
    connector.connect(servers).await
}
