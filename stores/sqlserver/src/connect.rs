//! Connecting: addresses, TLS and login.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::store::support::errors::{self, brief};
use distlock_core::{Error, ErrorKind, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tiberius::{AuthMethod, Client, Config, EncryptionLevel, SqlBrowser};
use tokio::net::TcpStream;

use crate::config::{Encrypt, Login, SqlServerConfig};
use crate::connection::{Connection, Socket};
use crate::error;

/// How long connecting and logging in may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A server whose connection is silently gone is noticed within half a minute, also by a session that only waits.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How often a server may send us to another one.
const MOST_REDIRECTS: u32 = 4;

/// Opens a connection.
///
/// # Cancel safety
/// Dropping the future closes it.
pub(crate) async fn open(config: &SqlServerConfig) -> Result<Connection> {
    tokio::time::timeout(CONNECT_TIMEOUT, log_in(config))
        .await
        .unwrap_or_else(|_| Err(errors::connect_timeout(CONNECT_TIMEOUT)))
}

async fn log_in(config: &SqlServerConfig) -> Result<Connection> {
    let mut options = driver_options(config)?;
    options.authentication(match &config.login {
        Login::Sql { user, password } => AuthMethod::sql_server(user, password.expose()),
        Login::AccessToken(token) => AuthMethod::aad_token(token.expose()),
        Login::AccessTokenFrom(source) => AuthMethod::aad_token(source.token().await?.expose()),
        Login::None => AuthMethod::None,
    });
    let (mut host, mut port) = (config.host.clone(), config.port);
    let mut instance = config.instance.is_some();
    for _ in 0..=MOST_REDIRECTS {
        let socket = if instance { of_instance(&options).await? } else { reach(config, &host, port).await? };
        prepare(&socket)?;
        let socket = Arc::new(socket);
        match Client::connect(options.clone(), Socket(Arc::clone(&socket))).await {
            Ok(client) => return Ok(Connection::new(client, socket)),
            // Azure SQL sends clients to the node that has the database.
            Err(tiberius::error::Error::Routing { host: next, port: at }) => {
                (host, port, instance) = (next, at, false);
                options.host(&host);
                options.port(port);
            }
            Err(error) => return Err(error::of_connecting(&error)),
        }
    }
    Err(errors::unavailable("the server sent us from one address to another, and on again"))
}

/// Everything but the login.
fn driver_options(config: &SqlServerConfig) -> Result<Config> {
    let mut options = Config::new();
    options.host(&config.host);
    if let Some(instance) = &config.instance {
        options.instance_name(instance);
    } else {
        options.port(config.port);
    }
    if let Some(database) = &config.database {
        options.database(database);
    }
    options.application_name(&config.application_name);
    options.multi_subnet_failover(config.multi_subnet_failover);
    options.handshake_timeout(Some(CONNECT_TIMEOUT));
    // A wait on the server takes as long as it takes. What must not take long has a time limit of ours.
    options.command_timeout(None);
    options.encryption(match config.encrypt {
        Encrypt::Strict => EncryptionLevel::Strict,
        Encrypt::Mandatory => EncryptionLevel::Required,
        Encrypt::LoginOnly => EncryptionLevel::Off,
        Encrypt::Plaintext => EncryptionLevel::NotSupported,
    });
    if config.encrypt != Encrypt::Plaintext && !cfg!(feature = "tls") {
        return Err(Error::new(ErrorKind::InvalidInput, "this build cannot encrypt, and encrypt asks for it").advise(
            "enable the feature `sqlserver-tls` of the crate `distlock`; encrypt=danger_plaintext sends the password and \
             everything else in plain text",
        ));
    }
    match (&config.trust_ca, config.trust_any) {
        (None, true) => options.trust_cert(),
        (Some(pem), false) => options.trust_cert_ca_bundle(pem.clone()),
        (None, false) => {}
        (Some(_), true) => {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "trustservercertificate and trustservercertificateca exclude each other",
            ));
        }
    }
    if let Some(name) = &config.host_in_certificate {
        options.hostname_in_certificate(name);
    }
    Ok(options)
}

/// Asks the server's browser service for the port of a named instance.
async fn of_instance(options: &Config) -> Result<TcpStream> {
    TcpStream::connect_named(options).await.map_err(|error| {
        errors::unavailable(format!("the instance cannot be reached: {}", brief(&error)))
            .advise("check that the SQL Server Browser service runs (UDP port 1434), or name the port of the instance")
    })
}

/// Connects to one of the addresses of a host: one after the other, or to all at once if the servers of an availability group are
/// in several subnets, where all but one do not answer.
async fn reach(config: &SqlServerConfig, host: &str, port: u16) -> Result<TcpStream> {
    let found = tokio::net::lookup_host((host, port)).await;
    let addresses: Vec<SocketAddr> = found.map_err(|error| errors::unavailable(brief(error)))?.collect();
    reach_one_of(addresses, config.multi_subnet_failover).await
}

async fn reach_one_of(addresses: Vec<SocketAddr>, at_once: bool) -> Result<TcpStream> {
    let mut last = errors::unavailable("the host has no address");
    let failed = |error: std::io::Error| errors::unavailable(brief(error));
    if at_once {
        let mut attempts: FuturesUnordered<_> = addresses.into_iter().map(TcpStream::connect).collect();
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(socket) => return Ok(socket),
                Err(error) => last = failed(error),
            }
        }
        return Err(last);
    }
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(socket) => return Ok(socket),
            Err(error) => last = failed(error),
        }
    }
    Err(last)
}

fn prepare(socket: &TcpStream) -> Result<()> {
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
    socket
        .set_nodelay(true)
        .and_then(|()| socket2::SockRef::from(socket).set_tcp_keepalive(&keepalive))
        .map_err(|error| errors::unavailable(brief(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "tls")]
    #[test]
    fn the_driver_does_not_cut_a_wait_off_after_30_seconds() {
        let config = SqlServerConfig::new("h").unwrap().multi_subnet_failover(true);
        let options = driver_options(&config).unwrap();
        assert_eq!(options.get_command_timeout(), None);
        assert!(options.get_multi_subnet_failover());
        assert_eq!(options.get_addr(), "h:1433");
    }

    #[tokio::test]
    async fn a_replica_that_does_not_answer_does_not_delay_one_that_does() {
        let patience = Duration::from_secs(60);
        let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        silent.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        silent.listen(0).unwrap();
        let address = silent.local_addr().unwrap().as_socket().unwrap();
        // Its queue is full when a connection is not answered.
        let mut queued = Vec::new();
        while let Ok(socket) =
            tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await
        {
            queued.push(socket.unwrap());
            assert!(queued.len() < 1000);
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = listener.local_addr().unwrap();
        let reached = tokio::time::timeout(patience, reach_one_of(vec![address, live], true)).await;
        assert_eq!(reached.unwrap().unwrap().peer_addr().unwrap(), live);
    }

    #[tokio::test]
    async fn all_addresses_of_an_availability_group_are_tried() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for parallel in [false, true] {
            let config = SqlServerConfig::new("localhost").unwrap().multi_subnet_failover(parallel);
            // `localhost` may have an IPv6 address too, where nothing listens.
            let socket = reach(&config, "localhost", port).await.unwrap();
            prepare(&socket).unwrap();
            assert!(socket2::SockRef::from(&socket).keepalive().unwrap());
        }
        drop(listener);
        let config = SqlServerConfig::new("localhost").unwrap().multi_subnet_failover(true);
        let error = reach(&config, "localhost", port).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
