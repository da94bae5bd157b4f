//! Finding the master that sentinels agree on.

use std::collections::HashMap;

use distlock_core::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Client;

use super::connection::ServerConnection;
use super::topology;
use crate::config::Address;
use crate::connect::Connector;

pub(super) struct Sentinels {
    clients: Vec<(Address, Client)>,
    master: String,
}

impl Sentinels {
    pub(super) fn new(connector: &Connector, sentinels: &[Address], master: &str) -> Result<Self> {
        let clients = sentinels
            .iter()
            .map(|address| Ok((address.clone(), connector.sentinel_client(address)?)))
            .collect::<Result<_>>()?;
        Ok(Sentinels { clients, master: master.to_owned() })
    }

    /// Connects to the master that most sentinels name, unless its own ROLE says otherwise: during a fail-over sentinels disagree,
    /// and a partitioned one still names the old master.
    pub(super) async fn connect(&self, connector: &Connector) -> Result<ServerConnection> {
        let address = self.agreed_master(connector).await?;
        let client = connector.client(&address)?;
        connector.connect(&client, address.to_string(), true).await
    }

    async fn agreed_master(&self, connector: &Connector) -> Result<Address> {
        let mut query = redis::cmd("SENTINEL");
        query.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let query = &query;
        let mut replies: FuturesUnordered<_> = self
            .clients
            .iter()
            .map(|(address, client)| async move { (address, connector.send_once(client, query).await) })
            .collect();
        let mut votes: HashMap<Address, usize> = HashMap::new();
        let mut last_error = None;
        while let Some((sentinel, reply)) = replies.next().await {
            match reply.map(|reply| topology::master_address(&reply)) {
                Ok(Some(address)) => {
                    let count = votes.entry(address.clone()).or_default();
                    *count += 1;
                    if *count > self.clients.len() / 2 {
                        return Ok(address);
                    }
                }
                Ok(None) => {
                    let what = format!("the sentinel knows no master {:?}", self.master);
                    last_error = Some(
                        Error::new(ErrorKind::Unavailable, what)
                            .on(sentinel.to_string())
                            .advise("check the master name after the slash in the URL"),
                    );
                }
                Err(error) => last_error = Some(error.on(format!("sentinel {sentinel}"))),
            }
        }
        // No majority: take the address with the most votes. After a tie, as during a fail-over, either will do, because the
        // server's ROLE is checked.
        let most = votes.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address);
        most.ok_or_else(|| {
            last_error.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no sentinel replied"))
        })
    }
}
