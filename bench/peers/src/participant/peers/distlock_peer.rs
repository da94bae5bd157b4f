//! distlock and its baseline.

use std::time::Duration;

use distlock::bench::Baseline;
use distlock::{Guard, Locks, Options};

use crate::scenarios::Peer;

pub struct Distlock(Locks);

impl Peer for Distlock {
    type Held = Guard;
    const RENEWS: bool = true;

    async fn connect(url: &str, expiry: Option<Duration>) -> Result<Self, String> {
        let options = match expiry {
            Some(expiry) => Options::new().expiry(expiry).map_err(|error| error.to_string())?,
            None => Options::new(),
        };
        let backend = distlock::open(url).await.map_err(|error| error.to_string())?;
        Locks::builder(backend).options(options).build().map(Distlock).map_err(|error| error.to_string())
    }

    async fn acquire(&self, name: &str) -> Result<Guard, String> {
        self.0.mutex(name).acquire().await.map_err(|error| error.to_string())
    }

    async fn release(&self, held: Guard) -> Result<(), String> {
        held.release().await.map_err(|error| error.to_string())
    }
}

/// The bare round trips: acquire does nothing, and release does both.
pub struct BaselinePeer {
    driver: Box<dyn Baseline>,
}

impl Peer for BaselinePeer {
    type Held = String;
    const RENEWS: bool = false;
    const WAITS: bool = false;

    async fn connect(url: &str, _: Option<Duration>) -> Result<Self, String> {
        let driver = distlock::bench::baseline(url).await.map_err(|error| error.to_string())?;
        driver.map(|driver| BaselinePeer { driver }).ok_or_else(|| "the store has no baseline".to_owned())
    }

    async fn acquire(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn release(&self, held: String) -> Result<(), String> {
        self.driver.cycle(&held).await.map_err(|error| error.to_string())
    }
}
