//! Opens connections: TLS, options of the transport, the first request.

use std::time::Duration;

use distlock_core::store::support::config::Certificates;
use distlock_core::store::support::errors;
use distlock_core::{Error, ErrorKind, Result};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::client::Client;
use crate::config::{Address, EtcdConfig, invalid};
use crate::store::EtcdStore;
use crate::txn;

/// How often a connection without traffic is probed. etcd closes connections that are probed more often than every five
/// seconds; renewals notice a broken connection sooner.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// The oldest version that has what we need: watches with numbers of the client's choice.
const OLDEST: (u64, u64) = (3, 4);

impl EtcdStore {
    /// Connects and checks that the cluster can be used: version, login, right to read the prefix.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for certificates that cannot be used; [`ErrorKind::Unavailable`] if no endpoint can be
    /// reached; [`ErrorKind::Denied`] if the cluster refuses us; [`ErrorKind::Unsupported`] for etcd before 3.4.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(config: EtcdConfig) -> Result<Self> {
        let endpoints = config
            .endpoints
            .iter()
            .map(|address| Ok((address.to_string(), endpoint(address, &config)?)))
            .collect::<Result<Vec<_>>>()?;
        let client = Client::new(endpoints, config.login.clone(), config.limits());
        EtcdStore::check(client, config).await
    }

    /// Uses a channel that the application made: for other transports, or endpoints that are discovered. The endpoints and
    /// the TLS options of the configuration are ignored; prefix, login and time limits apply.
    ///
    /// # Errors
    /// As for [`connect`](EtcdStore::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn with_client(channel: Channel, config: EtcdConfig) -> Result<Self> {
        let client = Client::of_channel(channel, config.login.clone(), config.limits());
        EtcdStore::check(client, config).await
    }

    async fn check(client: Client, config: EtcdConfig) -> Result<Self> {
        let names = client.addresses().collect::<Vec<_>>().join(",");
        let complete = |error: Error| error.doing("connect").on(format!("etcd {names}"));
        let status = client.find_server().await.map_err(complete)?;
        check_version(&status.version).map_err(complete)?;
        let mut read = txn::get(config.keys.prefix().as_bytes());
        if read.key.is_empty() {
            read.key.push(0);
        }
        client.send(read).await.map_err(|failure| complete(failure.error))?;
        Ok(EtcdStore::new(client, config))
    }
}

fn check_version(version: &str) -> Result<()> {
    let mut numbers = version.split('.').map(|number| number.parse::<u64>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= OLDEST {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, format!("etcd {version} is older than 3.4"))
        .advise("upgrade the cluster to etcd 3.4 or later"))
}

/// The transport to one endpoint.
fn endpoint(address: &Address, config: &EtcdConfig) -> Result<Endpoint> {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let bad = |error: tonic::transport::Error| {
        invalid(format!("the endpoint {address} cannot be used"), "check hosts, ports and certificates")
            .caused_by(error)
    };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(bad)?
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PROBE_INTERVAL)
        .keep_alive_timeout(config.response_timeout.max(Duration::from_secs(1)));
    if let Some(certificates) = &config.tls {
        check_crypto_provider()?;
        endpoint = endpoint.tls_config(tls(certificates)).map_err(bad)?;
    }
    Ok(endpoint)
}

/// The driver uses the process's default crypto provider of rustls if there is one, and otherwise the one of the feature. It
/// installs none, and panics if there is none.
fn check_crypto_provider() -> Result<()> {
    let by_feature = cfg!(any(feature = "tls-ring", feature = "tls-aws-lc-rs"));
    match by_feature || rustls::crypto::CryptoProvider::get_default().is_some() {
        true => Ok(()),
        false => Err(errors::no_crypto_provider()),
    }
}

fn tls(certificates: &Certificates) -> ClientTlsConfig {
    let mut tls = ClientTlsConfig::new();
    tls = match &certificates.authority {
        Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
        None => tls.with_native_roots(),
    };
    if let Some((certificate, key)) = &certificates.client {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    tls
}

/// The limit for requests that an operator waits for.
pub(crate) fn unreachable_everywhere() -> Error {
    errors::unavailable("no endpoint answers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_3_4_are_refused() {
        for good in ["3.4.0", "3.4.23", "3.5.1", "3.10.0", "4.0.0-alpha"] {
            assert!(check_version(good).is_ok(), "{good}");
        }
        for bad in ["3.3.27", "2.3.8", "", "x"] {
            assert_eq!(check_version(bad).unwrap_err().kind(), ErrorKind::Unsupported, "{bad}");
        }
    }

    #[tokio::test]
    async fn certificates_that_cannot_be_used_are_refused_before_anything_is_sent() {
        let config = EtcdConfig::new([("127.0.0.1", 1)]).unwrap().tls_client("no certificate", "no key");
        let error = EtcdStore::connect(config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
