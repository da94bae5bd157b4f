//! The baseline of benchmarks: the bare driver with the creation and the deletion of an ephemeral node.

use std::time::Instant;

use async_trait::async_trait;
use distlock_core::bench::{BareNotification, Baseline};
use distlock_core::store::StoreUrl;
use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::BoxFuture;
use zookeeper_client::{Client, CreateMode, Error as DriverError};

use crate::config::ZookeeperConfig;
use crate::connect::open_client;
use crate::contender::acls;
use crate::doctor::four_letter;
use crate::error::driver_error;
use crate::names::{KINDS, escape, kind_path, original};
use crate::sessions::DEFAULT_TIMEOUT;

struct BaselineDriver {
    config: ZookeeperConfig,
    client: Client,
    parent: String,
}

/// Opens the baseline.
///
/// # Errors
/// If no server can be reached.
pub(crate) async fn open(url: StoreUrl) -> Result<Option<Box<dyn Baseline>>> {
    let config = ZookeeperConfig::from_url(&url)?;
    let client = open_client(&config, DEFAULT_TIMEOUT, true).await?;
    let parent = format!("{}/baseline", config.chroot);
    let options = CreateMode::Container.with_acls(acls(config.nodes_access()));
    client.mkdir(&parent, &options).await.map_err(|error| driver_error(&error))?;
    Ok(Some(Box::new(BaselineDriver { config, client, parent })))
}

/// A node whose data change, and a watch of another session on it.
struct WatchNotification {
    sender: Client,
    receiver: Client,
    path: String,
}

#[async_trait]
impl BareNotification for WatchNotification {
    async fn receive(&mut self) -> Result<BoxFuture<'static, Result<Instant>>> {
        let watching = self.receiver.get_and_watch_data(&self.path).await;
        let (_, _, watcher) = watching.map_err(|error| driver_error(&error))?;
        Ok(Box::pin(async move {
            watcher.changed().await;
            Ok(Instant::now())
        }))
    }

    async fn send(&mut self) -> Result<()> {
        let sent = self.sender.set_data(&self.path, b"changed", None).await;
        sent.map(drop).map_err(|error| driver_error(&error))
    }
}

#[async_trait]
impl Baseline for BaselineDriver {
    async fn cycle(&self, name: &str) -> Result<()> {
        let path = format!("{}/{}", self.parent, escape(name));
        let options = CreateMode::Ephemeral.with_acls(acls(self.config.nodes_access()));
        match self.client.create(&path, b"", &options).await {
            Ok(_) | Err(DriverError::NodeExists) => {}
            Err(error) => return Err(driver_error(&error)),
        }
        match self.client.delete(&path, None).await {
            Ok(()) | Err(DriverError::NoNode) => Ok(()),
            Err(error) => Err(driver_error(&error)),
        }
    }

    async fn server_requests(&self) -> Result<Option<u64>> {
        let mut sum = 0;
        for server in &self.config.servers {
            let text = four_letter(server, "mntr").await?;
            let mut pairs = text.lines().filter_map(|line| line.split_once('\t'));
            let Some((_, count)) = pairs.find(|(key, _)| *key == "zk_packets_received") else {
                return Ok(None);
            };
            sum += count.trim().parse::<u64>().unwrap_or(0);
        }
        Ok(Some(sum))
    }

    async fn notifications(&self, name: &str) -> Result<Option<Box<dyn BareNotification>>> {
        let receiver = open_client(&self.config, DEFAULT_TIMEOUT, true).await?;
        let path = format!("{}/{}", self.parent, escape(name));
        let options = CreateMode::Ephemeral.with_acls(acls(self.config.nodes_access()));
        self.client.create(&path, b"", &options).await.map_err(|error| driver_error(&error))?;
        Ok(Some(Box::new(WatchNotification { sender: self.client.clone(), receiver, path })))
    }

    async fn clean_up(&self, prefix: &str) -> Result<()> {
        if prefix.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty prefix would remove every lock"));
        }
        for kind in KINDS {
            let folder = kind_path(&self.config.chroot, kind);
            let children = match self.client.list_children(&folder).await {
                Err(DriverError::NoNode) => continue,
                children => children.map_err(|error| driver_error(&error))?,
            };
            let ours =
                children.iter().filter(|child| original(child).is_some_and(|name| name.starts_with(prefix)));
            for child in ours {
                match self.client.delete(&format!("{folder}/{child}"), None).await {
                    // A node that is still in use goes with its last child.
                    Ok(()) | Err(DriverError::NoNode | DriverError::NotEmpty) => {}
                    Err(error) => return Err(driver_error(&error)),
                }
            }
        }
        Ok(())
    }
}
