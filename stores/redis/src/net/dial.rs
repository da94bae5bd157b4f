//! Making a connection to one server.

use std::sync::Arc;
use std::time::Duration;

use distlock_core::Result;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisConnectionInfo, Value,
};

use super::mailbox::Mailbox;
use super::{Live, topology};
use crate::config::{Address, Certificates, Credentials, RedisConfig};
use crate::trouble;

/// How to log in, and how long it may take.
#[derive(Clone)]
pub(super) struct Dialer {
    credentials: Credentials,
    sentinel_credentials: Credentials,
    database: i64,
    tls: Option<Certificates>,
    pub(super) limit: Duration,
}

impl Dialer {
    pub(super) fn new(config: &RedisConfig) -> Self {
        Dialer {
            credentials: config.credentials.clone(),
            sentinel_credentials: config.sentinel_credentials.clone(),
            database: config.database,
            tls: config.tls.clone(),
            limit: config.connect_timeout,
        }
    }

    /// Checks everything that can be checked without a connection.
    pub(super) fn client(&self, address: &Address) -> Result<Client> {
        let settings =
            RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(self.database);
        self.client_with(address, settings, &self.credentials)
    }

    pub(super) fn sentinel_client(&self, address: &Address) -> Result<Client> {
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
                // Off by default in the driver: without it a small request may wait for the answer to the last.
                .set_tcp_settings(TcpSettings::default().set_nodelay(true));
            open(info, self.tls.as_ref())
        };
        build().map_err(|error| trouble::cannot_connect(error).on(address.to_string()))
    }

    /// Connects, logs in, and reads the server's clock. With `master`, refuses a server that is not one.
    pub(super) async fn connect(&self, client: &Client, address: String, master: bool) -> Result<Live> {
        let mailbox = Arc::new(Mailbox::default());
        let inbox = Arc::clone(&mailbox);
        let config = AsyncConnectionConfig::new()
            // Ours are set for each request.
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |info: PushInfo| {
                inbox.deliver(info);
                Ok::<(), ()>(())
            });
        let connected = async {
            let connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(trouble::cannot_connect)?;
            let live = Live::new(connection, mailbox, address.clone(), 0);
            let mut first = redis::pipe();
            first.cmd("TIME");
            if master {
                first.cmd("ROLE");
            }
            let answers = live.send_all(&first, self.limit).await?;
            if let Some(Value::ServerError(error)) = answers.first() {
                return Err(trouble::refused(&trouble::text_of(error)));
            }
            let server_ms = answers.first().and_then(milliseconds);
            live.heard(server_ms.ok_or_else(|| trouble::nonsense(&answers))?);
            if master {
                topology::check_master(answers.get(1))?;
            }
            Ok(live)
        };
        match tokio::time::timeout(self.limit, connected).await {
            Ok(outcome) => outcome.map_err(|error| error.on(address)),
            Err(_) => Err(trouble::connect_timeout(self.limit).on(address)),
        }
    }

    /// One command to a server on a connection of its own: for sentinels.
    pub(super) async fn ask_once(&self, client: &Client, command: &Cmd) -> Result<Value> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let asked = async {
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            connection.send_packed_command(command).await
        };
        match tokio::time::timeout(self.limit, asked).await {
            Ok(Ok(Value::ServerError(error))) => Err(trouble::refused(&trouble::text_of(&error))),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(trouble::cannot_connect(error)),
            Err(_) => Err(trouble::connect_timeout(self.limit)),
        }
    }
}

/// What TIME answers, in milliseconds.
fn milliseconds(time: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(time).ok()?;
    seconds.checked_mul(1000)?.checked_add(micros / 1000)
}

#[cfg(feature = "tls")]
fn open(info: redis::ConnectionInfo, tls: Option<&Certificates>) -> Result<Client, redis::RedisError> {
    let Some(certificates) = tls else { return Client::open(info) };
    // Two libraries that bring a provider each make rustls panic unless somebody chose one. Whoever comes first does.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    if certificates.authority.is_none() && certificates.client.is_none() {
        return Client::open(info);
    }
    let client_tls = certificates
        .client
        .clone()
        .map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    let root_cert = certificates.authority.clone();
    Client::build_with_tls(info, redis::TlsCertificates { client_tls, root_cert })
}

#[cfg(not(feature = "tls"))]
fn open(info: redis::ConnectionInfo, _: Option<&Certificates>) -> Result<Client, redis::RedisError> {
    Client::open(info)
}
