//! How a store joins: one [`Driver`] for each, listed once in the facade.

use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use futures_core::future::BoxFuture;

use super::{Capabilities, Connected, Lazy, LeaseStore, SessionStore, Store, StoreUrl, Wake};
use crate::error::Result;
use crate::options::Options;

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

/// A `distlock.` parameter of a store's URL, as the documentation and the errors show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlOption {
    /// The name without `distlock.`: `retention`.
    pub name: &'static str,
    /// What its values look like: `duration`, `on|off`, `text`.
    pub value: &'static str,
    /// The default, as it would be written; empty if there is none.
    pub default: &'static str,
    /// What it does, in one line.
    pub meaning: &'static str,
}

type Connect = fn(StoreUrl) -> BoxFuture<'static, Result<Backend>>;
type Check = fn(&StoreUrl) -> Result<()>;
type Schema = fn(&StoreUrl) -> Result<String>;
#[cfg(feature = "bench")]
type OpenBaseline = fn(StoreUrl) -> BoxFuture<'static, Result<Option<Box<dyn crate::bench::Baseline>>>>;

/// How stores of one family are reached by URL.
///
/// ```
/// use distlock_core::memory::MemoryStore;
/// use distlock_core::store::{Backend, Driver, UrlOption};
///
/// const OPTIONS: &[UrlOption] = &[UrlOption {
///     name: "retention",
///     value: "duration",
///     default: "1h",
///     meaning: "how long the token of an unused name is remembered",
/// }];
/// static DRIVER: Driver = Driver::new(&["mine"], "mine://host", |mut url| {
///     Box::pin(async move {
///         let _retention = url.take_duration("retention")?;
///         url.refuse_other_options(OPTIONS)?;
///         Ok(Backend::lease(MemoryStore::new()))
///     })
/// })
/// .with_options(OPTIONS);
/// assert_eq!(DRIVER.schemes(), ["mine"]);
/// ```
#[derive(Debug)]
pub struct Driver {
    schemes: &'static [&'static str],
    example: &'static str,
    connect: Connect,
    schema: Option<Schema>,
    check: Option<Check>,
    options: &'static [UrlOption],
    #[cfg(feature = "bench")]
    baseline: Option<OpenBaseline>,
}

impl Driver {
    /// A driver for these URL schemes, with an example for help texts. `connect` checks the whole URL before it sends
    /// anything.
    #[must_use]
    pub const fn new(
        schemes: &'static [&'static str],
        example: &'static str,
        connect: fn(StoreUrl) -> BoxFuture<'static, Result<Backend>>,
    ) -> Self {
        Driver {
            schemes,
            example,
            connect,
            schema: None,
            check: None,
            options: &[],
            #[cfg(feature = "bench")]
            baseline: None,
        }
    }

    /// Adds the check of a URL without connecting, for locks that connect at their first use. Without it a bad URL is an error of
    /// that use.
    #[must_use]
    pub const fn with_check(mut self, check: fn(&StoreUrl) -> Result<()>) -> Self {
        self.check = Some(check);
        self
    }

    /// Adds the DDL or index commands of the store, for users whose application may not create tables.
    #[must_use]
    pub const fn with_schema(mut self, schema: fn(&StoreUrl) -> Result<String>) -> Self {
        self.schema = Some(schema);
        self
    }

    /// Adds the `distlock.` parameters that the store's URLs may have.
    #[must_use]
    pub const fn with_options(mut self, options: &'static [UrlOption]) -> Self {
        self.options = options;
        self
    }

    /// Adds the bare driver that benchmarks compare with.
    #[cfg(feature = "bench")]
    #[doc(hidden)]
    #[must_use]
    pub const fn with_baseline(mut self, open: OpenBaseline) -> Self {
        self.baseline = Some(open);
        self
    }

    /// The URL schemes.
    #[must_use]
    pub const fn schemes(&self) -> &'static [&'static str] {
        self.schemes
    }

    /// An example for help texts: `redis://host:6379`.
    #[must_use]
    pub const fn example(&self) -> &'static str {
        self.example
    }

    /// The `distlock.` parameters that the store's URLs may have.
    #[must_use]
    pub const fn options(&self) -> &'static [UrlOption] {
        self.options
    }

    /// Takes the [options of locks](Options::from_url) out of the URL, and connects.
    ///
    /// # Errors
    /// As for [`connect`](Driver::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn open(&self, mut url: StoreUrl) -> Result<Connected> {
        let options = Options::from_url(&mut url)?;
        Ok(Connected::new(self.connect(url).await?, options))
    }

    /// Checks the URL, and leaves connecting to the first use.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a bad URL.
    pub fn open_lazily(&'static self, mut url: StoreUrl) -> Result<Lazy> {
        let options = Options::from_url(&mut url)?;
        self.check.map_or(Ok(()), |check| check(&url))?;
        Ok(Lazy::new(url.to_string(), options, move || Box::pin(self.connect(url.clone()))))
    }

    /// Connects. A URL with options of locks is refused here: [`open`](Driver::open) takes them out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a bad URL, before anything is sent; otherwise
    /// what the store says.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(&self, url: StoreUrl) -> Result<Backend> {
        (self.connect)(url).await
    }

    /// The DDL or index commands; `None` where there is nothing to create.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a bad URL.
    pub fn schema(&self, url: &StoreUrl) -> Result<Option<String>> {
        self.schema.map(|schema| schema(url)).transpose()
    }

    /// The bare driver, for benchmarks; `None` where there is none to compare with.
    ///
    /// # Errors
    /// If it cannot connect.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    #[cfg(feature = "bench")]
    #[doc(hidden)]
    pub async fn baseline(&self, url: StoreUrl) -> Result<Option<Box<dyn crate::bench::Baseline>>> {
        match self.baseline {
            Some(open) => open(url).await,
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;
    use crate::clock::{Clock, VirtualClock};
    use crate::memory::MemoryStore;
    use crate::resource::Resource;
    use crate::store::{Claim, Finding, Holder, Lease, Query, Record, SessionHold};
    use crate::{ErrorKind, Locks};

    const OPTIONS: &[UrlOption] = &[UrlOption {
        name: "retention",
        value: "duration",
        default: "1h",
        meaning: "how long tokens are kept",
    }];

    static DRIVER: Driver = Driver::new(&["mine"], "mine://host", |mut url| {
        Box::pin(async move {
            url.take_duration("retention")?;
            url.refuse_other_options(OPTIONS)?;
            Ok(Backend::lease(MemoryStore::new()))
        })
    })
    .with_options(OPTIONS)
    .with_schema(|_| Ok("CREATE TABLE mine".to_owned()));

    #[tokio::test]
    async fn an_option_that_is_not_in_the_table_is_refused_and_the_error_names_the_table() {
        let url = |text: &str| StoreUrl::parse(text).unwrap();
        assert!(DRIVER.connect(url("mine://h?distlock.retention=2h")).await.is_ok());
        let error = DRIVER.connect(url("mine://h?distlock.retntion=2h")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("distlock.retention"), "{error}");
        assert_eq!(DRIVER.schema(&url("mine://h")).unwrap().as_deref(), Some("CREATE TABLE mine"));
        assert_eq!((DRIVER.schemes(), DRIVER.options()), (&["mine"][..], OPTIONS));
    }

    /// Remembers the clock that it was given.
    #[derive(Debug, Default)]
    struct Clocked(Mutex<Vec<Arc<dyn Clock>>>);

    #[async_trait]
    impl Store for Clocked {
        fn describe(&self) -> String {
            "clocked".to_owned()
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::all()
        }

        async fn inspect(&self, _: &Query) -> Result<Vec<Record>> {
            Ok(Vec::new())
        }

        async fn break_lock(&self, _: &Resource) -> Result<Vec<Holder>> {
            Ok(Vec::new())
        }

        async fn doctor(&self) -> Result<Vec<Finding>> {
            Ok(Vec::new())
        }

        fn use_clock(&self, clock: Arc<dyn Clock>) {
            self.0.lock().unwrap().push(clock);
        }
    }

    #[async_trait]
    impl SessionStore for Clocked {
        async fn acquire(
            &self,
            _: &Claim,
            _: &tokio_util::sync::CancellationToken,
        ) -> Result<Option<SessionHold>> {
            Ok(None)
        }

        async fn release(&self, _: &Lease) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_store_gets_the_injected_clock_before_its_first_request() {
        let (store, clock) = (Arc::new(Clocked::default()), VirtualClock::new());
        clock.jump(std::time::Duration::from_secs(4711));
        let backend = Backend::Session(Arc::clone(&store) as Arc<dyn SessionStore>);
        let locks = Locks::builder(backend).clock(Arc::new(clock.clone())).build().unwrap();
        let given = std::mem::take(&mut *store.0.lock().unwrap());
        assert_eq!(given.len(), 1);
        assert!(given[0].now().since(clock.now()) < std::time::Duration::from_secs(1));
        drop(locks);
    }
}
