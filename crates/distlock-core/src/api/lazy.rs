//! Connecting at the first use: one attempt at a time, whose outcome all callers share.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use futures_util::future::Shared;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::store::Lazy;

type Attempt = Shared<BoxFuture<'static, Result<Arc<Engine>>>>;

/// An engine that is started at the first use. A failed attempt is an error for its callers; the next use tries again.
pub(crate) struct LazyEngine {
    store: Lazy,
    pub(crate) clock: Arc<dyn Clock>,
    label: String,
    options: Arc<Options>,
    engine: OnceLock<Arc<Engine>>,
    /// The attempt in flight.
    attempt: Mutex<Option<Attempt>>,
}

impl LazyEngine {
    pub(crate) fn new(store: Lazy, clock: Arc<dyn Clock>, label: String, options: Arc<Options>) -> Self {
        let (engine, attempt) = (OnceLock::new(), Mutex::new(None));
        LazyEngine { store, clock, label, options, engine, attempt }
    }

    /// The engine, if it was started.
    pub(crate) fn started(&self) -> Option<&Arc<Engine>> {
        self.engine.get()
    }

    /// What errors call the store until it is connected.
    pub(crate) fn shown(&self) -> &str {
        &self.store.shown
    }

    /// The engine. The first caller connects; others that come meanwhile wait for its outcome.
    ///
    /// # Cancel safety
    /// The attempt is a task of its own: dropping the future does not end it, so that callers with short time limits get
    /// connected too in the end.
    pub(crate) async fn engine(self: &Arc<Self>) -> Result<Arc<Engine>> {
        if let Some(engine) = self.engine.get() {
            return Ok(Arc::clone(engine));
        }
        self.attempt()?.await
    }

    fn attempt(self: &Arc<Self>) -> Result<Attempt> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "there is no Tokio runtime here")
                .doing("connect")
                .advise("use these locks inside a runtime, or use the blocking API")
        })?;
        let mut newest = self.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        // An attempt of a runtime that ended before it ran is still there, and failed.
        if let Some(attempt) = newest.as_ref().filter(|attempt| !matches!(attempt.peek(), Some(Err(_)))) {
            return Ok(attempt.clone());
        }
        let this = Arc::clone(self);
        let connecting = runtime.spawn(async move {
            let ending = EndOfAttempt(this);
            ending.0.connect().await
        });
        let shown = Arc::clone(&self.store.shown);
        let attempt = async move {
            // The task ended without an outcome if it panicked, or its runtime ended.
            connecting.await.unwrap_or_else(|ended| {
                Err(Error::new(ErrorKind::Unavailable, "the attempt to connect ended early")
                    .doing("connect")
                    .on(shown)
                    .caused_by(ended))
            })
        };
        let attempt = attempt.boxed().shared();
        *newest = Some(attempt.clone());
        Ok(attempt)
    }

    async fn connect(&self) -> Result<Arc<Engine>> {
        let backend = (self.store.connect)()
            .await
            .map_err(|error| error.doing("connect").on(Arc::clone(&self.store.shown)))?;
        let engine =
            Engine::start(backend, Arc::clone(&self.clock), &self.label, self.options.get_request_timeout())?;
        Ok(Arc::clone(self.engine.get_or_init(|| engine)))
    }
}

/// Ends the attempt, whatever its outcome: the next use begins another one.
struct EndOfAttempt(Arc<LazyEngine>);

impl Drop for EndOfAttempt {
    fn drop(&mut self) {
        *self.0.attempt.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for LazyEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyEngine").field("store", &self.store.shown).finish_non_exhaustive()
    }
}
