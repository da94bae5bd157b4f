//! How a store joins: one [`Driver`] for each, listed once in the facade.

use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use futures_core::future::BoxFuture;

use super::{Capabilities, LeaseStore, SessionStore, Store, StoreUrl, Wake};
use crate::error::Result;

/// A stream of wake-ups. Its end means that messages may be lost from now on.
pub type WakeStream = Pin<Box<dyn Stream<Item = Wake> + Send>>;

/// A connected store of either sort.
#[derive(Clone, Debug)]
pub enum Backend {
    /// Records that expire.
    Lease(Arc<dyn LeaseStore>),
    /// Holds that live with a session.
    Session(Arc<dyn SessionStore>),
}

impl Backend {
    /// A lease store.
    pub fn lease(store: impl LeaseStore) -> Self {
        Backend::Lease(Arc::new(store))
    }

    /// A session store.
    pub fn session(store: impl SessionStore) -> Self {
        Backend::Session(Arc::new(store))
    }

    /// What both sorts have.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        match self {
            Backend::Lease(store) => &**store,
            Backend::Session(store) => &**store,
        }
    }

    /// What the store can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.store().capabilities()
    }
}

/// A way to reach stores of one family by URL.
#[derive(Debug)]
pub struct Driver {
    /// The URL schemes it answers to.
    pub schemes: &'static [&'static str],
    /// An example for help texts: `redis://host:6379`.
    pub example: &'static str,
    /// Connects. Checks the whole URL first, so that bad input is refused before anything is sent.
    pub connect: fn(StoreUrl) -> BoxFuture<'static, Result<Backend>>,
    /// The DDL or index commands of the store, for people who may not create tables from an application.
    pub schema: Option<fn(&StoreUrl) -> Result<String>>,
}
