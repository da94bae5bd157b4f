//! Opens connections to servers: address, TLS, login, time limit.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use distlock_core::store::support::config::Certificates;
use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    PushInfo, RedisConnectionInfo, RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};

use crate::config::{Address, Credentials, RedisConfig};
use crate::error;
use crate::net::{
    CommandChannel, DirectConnection, IntoHalves, ReadHalf, ServerConnection, Subscriptions, WriteHalf,
    check_master,
};

/// Opens connections with the settings of one store.
#[derive(Clone)]
pub(crate) struct Connector {
    credentials: Credentials,
    sentinel_credentials: Credentials,
    database: i64,
    tls: Option<Certificates>,
    pub(crate) limit: Duration,
}

impl Connector {
    pub(crate) fn new(config: &RedisConfig) -> Self {
        Connector {
            credentials: config.credentials.clone(),
            sentinel_credentials: config.sentinel_credentials.clone(),
            database: config.database,
            tls: config.tls.clone(),
            limit: config.connect_timeout,
        }
    }

    /// The driver's client for a server. Checks what can be checked without a connection.
    pub(crate) fn client(&self, address: &Address) -> Result<Client> {
        let settings =
            RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(self.database);
        self.client_with(address, settings, &self.credentials)
    }

    pub(crate) fn sentinel_client(&self, address: &Address) -> Result<Client> {
        let settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
        self.client_with(address, settings, &self.sentinel_credentials)
    }

    fn client_with(
        &self,
        address: &Address,
        settings: RedisConnectionInfo,
        credentials: &Credentials,
    ) -> Result<Client> {
        let mut settings = settings.set_lib_name("distlock", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &credentials.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &credentials.password {
            settings = settings.set_password(password);
        }
        let addr = match (address, &self.tls) {
            (Address::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
            (Address::Tcp(host, port), None) => ConnectionAddr::Tcp(host.clone(), *port),
            (Address::Tcp(host, port), Some(_)) => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
        };
        let build = || {
            let info = addr
                .into_connection_info()?
                .set_redis_settings(settings)
                // Off by default in the driver; without it a small request may wait for the reply to the previous one.
                .set_tcp_settings(TcpSettings::default().set_nodelay(true));
            open(info, self.tls.as_ref())
        };
        build().map_err(|error| error::connect_failed(error).on(address.to_string()))
    }

    /// Connects, logs in and reads the server's clock. With `check_role`, refuses a server that is no master.
    pub(crate) async fn connect(
        &self,
        client: &Client,
        address: String,
        check_role: bool,
    ) -> Result<ServerConnection> {
        let subscriptions = Arc::new(Subscriptions::default());
        let connected = async {
            let channel = open_channel(client, &subscriptions).await.map_err(error::connect_failed)?;
            let connection = ServerConnection::new(channel, subscriptions, address.clone());
            let mut first = redis::pipe();
            first.cmd("TIME");
            if check_role {
                first.cmd("ROLE");
            }
            let replies = connection.send_all(&first, self.limit).await?;
            if let Some(Value::ServerError(refusal)) = replies.first() {
                return Err(error::refused(&error::text_of(refusal)));
            }
            let server_ms = replies.first().and_then(milliseconds);
            connection.set_clock(server_ms.ok_or_else(|| errors::unexpected_reply(&replies))?);
            if check_role {
                check_master(replies.get(1))?;
            }
            Ok(connection)
        };
        match tokio::time::timeout(self.limit, connected).await {
            Ok(outcome) => outcome.map_err(|error| error.on(address)),
            Err(_) => Err(errors::connect_timeout(self.limit).on(address)),
        }
    }

    /// Reads the server's clock over a connection of the application.
    pub(crate) async fn read_clock(&self, connection: &ServerConnection) -> Result<()> {
        let reply = error::accepted(connection.send(&redis::cmd("TIME"), self.limit).await?)?;
        connection.set_clock(milliseconds(&reply).ok_or_else(|| errors::unexpected_reply(&reply))?);
        Ok(())
    }

    /// Sends one command over a connection of its own, as to sentinels.
    pub(crate) async fn send_once(&self, client: &Client, command: &Cmd) -> Result<Value> {
        let replied = async {
            let mut connection = client.get_multiplexed_async_connection_with_config(&unlimited()).await?;
            connection.send_packed_command(command).await
        };
        match tokio::time::timeout(self.limit, replied).await {
            Ok(reply) => error::accepted(reply.map_err(error::connect_failed)?),
            Err(_) => Err(errors::connect_timeout(self.limit)),
        }
    }
}

/// Connects and logs in. TLS, and what the client wants of its sockets beyond TCP_NODELAY, is left to the driver's connection.
async fn open_channel(client: &Client, subscriptions: &Arc<Subscriptions>) -> RedisResult<CommandChannel> {
    let info = client.get_connection_info();
    match info.addr() {
        ConnectionAddr::Tcp(host, port) if is_plain(info.tcp_settings()) => {
            let stream = connect_any(lookup_host((host.as_str(), *port)).await?.collect()).await?;
            stream.set_nodelay(true)?;
            open_direct(info, stream.into_halves()?, subscriptions).await
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let stream = tokio::net::UnixStream::connect(path).await?;
            open_direct(info, stream.into_halves()?, subscriptions).await
        }
        _ => {
            let pushed = Arc::clone(subscriptions);
            let config = unlimited().set_push_sender(move |info: PushInfo| {
                pushed.deliver(info);
                Ok::<(), ()>(())
            });
            let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            Ok(CommandChannel::Multiplexed(connection))
        }
    }
}

/// Connects to all addresses of a host at once, as the driver does, and keeps the first connection: one address may not answer.
async fn connect_any(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let attempts = addresses.into_iter().map(|address| Box::pin(TcpStream::connect(address)));
    select_ok(attempts).await.map(|(stream, _)| stream)
}

fn is_plain(settings: &TcpSettings) -> bool {
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    if settings.user_timeout().is_some() {
        return false;
    }
    settings.keepalive().is_none()
}

/// Lets the driver log in on this stream, and takes it over afterwards.
async fn open_direct(
    info: &ConnectionInfo,
    (read, write): (ReadHalf, WriteHalf),
    subscriptions: &Arc<Subscriptions>,
) -> RedisResult<CommandChannel> {
    let lent = Arc::new(Mutex::new((read, write)));
    let stream = LentStream(Arc::clone(&lent));
    let login = MultiplexedConnection::new_with_config(info.redis_settings(), stream, unlimited()).await?;
    // The driver has read the reply to its last command, and the server sends nothing unasked before a subscription.
    drop(login);
    let stream = Arc::into_inner(lent).ok_or_else(|| io::Error::other("the driver kept the stream"))?;
    let (read, write) = stream.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(CommandChannel::Direct(DirectConnection::start(read, write, Arc::clone(subscriptions))))
}

/// A stream that is the driver's during the login.
struct LentStream(Arc<Mutex<(ReadHalf, WriteHalf)>>);

impl LentStream {
    fn halves(&self) -> MutexGuard<'_, (ReadHalf, WriteHalf)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for LentStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.halves().0).poll_read(cx, buf)
    }
}

impl AsyncWrite for LentStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.halves().1).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.halves().1).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The stream goes on after the login.
        Poll::Ready(Ok(()))
    }
}

/// The limits of the driver are off: each request has its own.
pub(crate) fn unlimited() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// A client like the user's, with RESP3, which delivers messages over the connection that sends commands, and with
/// TCP_NODELAY.
pub(crate) fn adapt_client(client: &Client) -> Result<(Address, Client)> {
    let info = client.get_connection_info();
    let address = match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Address::Tcp(host.clone(), *port)
        }
        ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
        _ => {
            return Err(Error::new(ErrorKind::Unsupported, "the client has an address of an unknown kind")
                .doing("read the Redis client"));
        }
    };
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let client = Client::open(info.clone().set_redis_settings(settings).set_tcp_settings(tcp))
        .map_err(|error| error::connect_failed(error).on(address.to_string()))?;
    Ok((address, client))
}

/// The reply to TIME in milliseconds.
fn milliseconds(time: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(time).ok()?;
    seconds.checked_mul(1000)?.checked_add(micros / 1000)
}

#[cfg(feature = "tls")]
fn open(info: redis::ConnectionInfo, tls: Option<&Certificates>) -> Result<Client, redis::RedisError> {
    let Some(certificates) = tls else { return Client::open(info) };
    check_crypto_provider()?;
    if certificates.is_empty() {
        return Client::open(info);
    }
    let client_tls = certificates
        .client
        .clone()
        .map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    let root_cert = certificates.authority.clone();
    Client::build_with_tls(info, redis::TlsCertificates { client_tls, root_cert })
}

/// The driver uses the process's default crypto provider of rustls. If there is none, rustls chooses the only one that is
/// compiled in; if there are several, or none, it panics. We install none, because that is the application's decision, and
/// return an error instead of the panic.
#[cfg(feature = "tls")]
fn check_crypto_provider() -> Result<(), redis::RedisError> {
    std::panic::catch_unwind(|| drop(rustls::ClientConfig::builder())).map_err(|_| {
        redis::RedisError::from((
            redis::ErrorKind::InvalidClientConfig,
            "no crypto provider of rustls, or several, are compiled in: enable one of the features tls-ring and tls-aws-lc-rs of \
             distlock, or choose one when the program starts, for example \
             rustls::crypto::ring::default_provider().install_default()",
        ))
    })
}

#[cfg(not(feature = "tls"))]
fn open(info: redis::ConnectionInfo, _: Option<&Certificates>) -> Result<Client, redis::RedisError> {
    Client::open(info)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A listener that accepts nothing drops further connections once its backlog is full.
    #[tokio::test]
    async fn an_address_that_never_answers_does_not_delay_the_other_addresses_of_a_host() {
        let silent = tokio::net::TcpSocket::new_v4().unwrap();
        silent.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let silent = silent.listen(1).unwrap();
        let unanswered = silent.local_addr().unwrap();
        let mut backlog = Vec::new();
        while let Ok(connected) =
            tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(unanswered)).await
        {
            backlog.push(connected.unwrap());
        }
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = vec![unanswered, server.local_addr().unwrap()];
        let connected = tokio::time::timeout(Duration::from_secs(10), connect_any(addresses)).await;
        let connected = connected.expect("the other address").unwrap();
        assert_eq!(connected.peer_addr().unwrap(), server.local_addr().unwrap());
        assert!(connect_any(Vec::new()).await.is_err());
    }
}
