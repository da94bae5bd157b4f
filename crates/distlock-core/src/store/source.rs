//! Where locks get their store from: one that is connected, or one that is connected at the first use.

use std::fmt;
use std::sync::Arc;

use futures_core::future::BoxFuture;

use super::Backend;
use crate::error::Result;
use crate::options::Options;

/// A connected store, with the options that its URL names for locks. A [`Backend`] is one without options.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Connected {
    /// The store.
    pub backend: Backend,
    /// What the URL names; code that names an option wins, see [`Options`].
    pub options: Options,
}

impl Connected {
    /// A connected store, and the options that locks on it begin with.
    #[must_use]
    pub fn new(backend: Backend, options: Options) -> Self {
        Connected { backend, options }
    }
}

impl From<Backend> for Connected {
    fn from(backend: Backend) -> Self {
        Connected::new(backend, Options::new())
    }
}

type Connect = dyn Fn() -> BoxFuture<'static, Result<Backend>> + Send + Sync;

/// A store that is connected at the first use of its locks.
#[derive(Clone)]
pub struct Lazy {
    pub(crate) shown: Arc<str>,
    pub(crate) options: Options,
    pub(crate) connect: Arc<Connect>,
}

impl Lazy {
    /// A store that `connect` connects to, once for each attempt. `shown` is what errors call it until then, without secrets.
    pub fn new<F>(shown: impl Into<Arc<str>>, options: Options, connect: F) -> Self
    where
        F: Fn() -> BoxFuture<'static, Result<Backend>> + Send + Sync + 'static,
    {
        Lazy { shown: shown.into(), options, connect: Arc::new(connect) }
    }
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy").field("store", &self.shown).finish_non_exhaustive()
    }
}

/// What [`Locks::builder`](crate::Locks::builder) takes: a [`Backend`], a [`Connected`] store or a [`Lazy`] one.
#[derive(Debug)]
pub struct StoreSource(pub(crate) Source);

#[derive(Debug)]
pub(crate) enum Source {
    Connected(Connected),
    Lazy(Lazy),
}

impl From<Backend> for StoreSource {
    fn from(backend: Backend) -> Self {
        StoreSource(Source::Connected(backend.into()))
    }
}

impl From<Connected> for StoreSource {
    fn from(connected: Connected) -> Self {
        StoreSource(Source::Connected(connected))
    }
}

impl From<Lazy> for StoreSource {
    fn from(lazy: Lazy) -> Self {
        StoreSource(Source::Lazy(lazy))
    }
}
