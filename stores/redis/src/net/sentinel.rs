//! Finding the master that sentinels agree on.

use std::collections::HashMap;

use distlock_core::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Client;

use super::dial::Dialer;
use super::{Live, topology};
use crate::config::Address;

pub(super) struct Sentinels {
    clients: Vec<(Address, Client)>,
    master: String,
}

impl Sentinels {
    pub(super) fn new(dialer: &Dialer, sentinels: &[Address], master: &str) -> Result<Self> {
        let clients = sentinels
            .iter()
            .map(|address| Ok((address.clone(), dialer.sentinel_client(address)?)))
            .collect::<Result<_>>()?;
        Ok(Sentinels { clients, master: master.to_owned() })
    }

    /// Connects to the master that most sentinels name, and refuses it if it does not say that it is one: during a
    /// fail-over sentinels disagree, and one that is cut off still names the old master.
    pub(super) async fn connect(&self, dialer: &Dialer) -> Result<Live> {
        let address = self.agreed_master(dialer).await?;
        let client = dialer.client(&address)?;
        dialer.connect(&client, address.to_string(), true).await
    }

    async fn agreed_master(&self, dialer: &Dialer) -> Result<Address> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let question = &question;
        let mut asked: FuturesUnordered<_> = self
            .clients
            .iter()
            .map(|(address, client)| async move { (address, dialer.ask_once(client, question).await) })
            .collect();
        let mut votes: HashMap<Address, usize> = HashMap::new();
        let mut failure = None;
        while let Some((sentinel, answer)) = asked.next().await {
            match answer.map(|answer| topology::master_address(&answer)) {
                Ok(Some(address)) => {
                    let count = votes.entry(address.clone()).or_default();
                    *count += 1;
                    if *count > self.clients.len() / 2 {
                        return Ok(address);
                    }
                }
                Ok(None) => {
                    let what = format!("the sentinel knows no master {:?}", self.master);
                    failure = Some(
                        Error::new(ErrorKind::Unavailable, what)
                            .on(sentinel.to_string())
                            .advise("check the name behind the slash of the URL"),
                    );
                }
                Err(error) => failure = Some(error.on(format!("sentinel {sentinel}"))),
            }
        }
        // Some are down: the most votes of those that answered. A tie is a fail-over under way; any will do, since
        // it must still say that it is a master.
        let most = votes.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address);
        most.ok_or_else(|| {
            failure.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no sentinel answered"))
        })
    }
}
