//! The one error type: what failed, where, and what to do.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::resource::Resource;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What sort of failure it was. Match on this, and treat unknown kinds like [`ErrorKind::Unavailable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input is wrong: a name, a duration, a URL. Nothing was sent.
    InvalidInput,
    /// Somebody else held the lock until the time limit passed. The store answered; this is contention.
    Timeout,
    /// The store cannot be reached, or did not answer in time.
    Unavailable,
    /// The store refused us: wrong credentials, missing rights.
    Denied,
    /// The store cannot do this at all; see [`Capabilities`](crate::store::Capabilities).
    Unsupported,
    /// The resource exists with another shape, such as a semaphore of another capacity.
    Mismatch,
    /// The store is full: disk, memory, open files.
    Exhausted,
    /// What the store holds under our name was not written by us.
    Corrupt,
    /// The lock was lost while work was under way.
    Lost,
    /// `shutdown` was called, or the runtime that the engine lived on is gone.
    ShutDown,
    /// The store broke a rule of ours or its driver panicked: a defect worth reporting.
    Internal,
}

impl ErrorKind {
    /// Whether the same call can succeed later without anybody changing anything.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, ErrorKind::Timeout | ErrorKind::Unavailable)
    }
}

/// What failed, on which store and resource, and what to do about it. Cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    detail: Cow<'static, str>,
    action: Option<Cow<'static, str>>,
    store: Option<Arc<str>>,
    resource: Option<Resource>,
    advice: Option<Cow<'static, str>>,
    outcome_unknown: bool,
    still_under_way: bool,
    panicked: bool,
    retry: Option<bool>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind; `detail` says what is wrong, without a full stop.
    #[must_use]
    pub fn new(kind: ErrorKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Error(Arc::new(Inner {
            kind,
            detail: detail.into(),
            action: None,
            store: None,
            resource: None,
            advice: None,
            outcome_unknown: false,
            still_under_way: false,
            panicked: false,
            retry: None,
            source: None,
        }))
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Adds what was being done, as in "acquire" or "read the lock file". The first one said stays.
    #[must_use]
    pub fn doing(self, action: impl Into<Cow<'static, str>>) -> Self {
        if self.0.action.is_some() {
            return self;
        }
        self.change(|inner| inner.action = Some(action.into()))
    }

    /// Adds the store, in words that hold no secret. The first one said stays.
    #[must_use]
    pub fn on(self, store: impl Into<Arc<str>>) -> Self {
        if self.0.store.is_some() {
            return self;
        }
        self.change(|inner| inner.store = Some(store.into()))
    }

    /// Adds the resource. The first one said stays.
    #[must_use]
    pub fn about(self, resource: &Resource) -> Self {
        if self.0.resource.is_some() {
            return self;
        }
        self.change(|inner| inner.resource = Some(resource.clone()))
    }

    /// Adds what to do, as an order: "start the server", "use a shorter name".
    #[must_use]
    pub fn advise(self, advice: impl Into<Cow<'static, str>>) -> Self {
        self.change(|inner| inner.advice = Some(advice.into()))
    }

    /// Says that the store may have carried the request out although it failed here.
    #[must_use]
    pub fn with_unknown_outcome(self) -> Self {
        self.change(|inner| inner.outcome_unknown = true)
    }

    /// Says that the request was given up on but is still under way: it may yet be carried out, and answered.
    #[must_use]
    pub(crate) fn with_request_in_flight(self) -> Self {
        self.change(|inner| inner.still_under_way = true)
    }

    pub(crate) fn is_request_in_flight(&self) -> bool {
        self.0.still_under_way
    }

    /// Says that the store's code panicked.
    #[must_use]
    pub(crate) fn with_panic(self) -> Self {
        self.change(|inner| inner.panicked = true)
    }

    pub(crate) fn is_panic(&self) -> bool {
        self.0.panicked
    }

    /// Says whether trying again can help, where the kind alone says it wrongly.
    #[must_use]
    pub fn with_retry(self, helps: bool) -> Self {
        self.change(|inner| inner.retry = Some(helps))
    }

    /// Adds the error that lies below. Its text becomes part of ours: it must hold no secret.
    #[must_use]
    pub fn caused_by(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.change(|inner| inner.source = Some(Arc::new(source)))
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What was being done, if it is known.
    #[must_use]
    pub fn action(&self) -> Option<&str> {
        self.0.action.as_deref()
    }

    /// The store, in words without secrets.
    #[must_use]
    pub fn store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }

    /// The resource, where one was concerned.
    #[must_use]
    pub fn resource(&self) -> Option<&Resource> {
        self.0.resource.as_ref()
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }

    /// Whether the store may have carried the request out although it failed here. The engine undoes or
    /// resolves such requests itself; a caller need not.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        self.0.outcome_unknown
    }

    /// Whether the same call can succeed later without anybody changing anything.
    #[must_use]
    pub fn can_retry(&self) -> bool {
        self.0.retry.unwrap_or(self.0.kind.is_transient())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let mut said = false;
        if let Some(action) = &inner.action {
            write!(f, "cannot {action}")?;
            said = true;
        }
        if let Some(resource) = &inner.resource {
            write!(f, "{}{resource}", if said { " " } else { "" })?;
            said = true;
        }
        if let Some(store) = &inner.store {
            write!(f, "{}{store}", if said { " on " } else { "" })?;
            said = true;
        }
        write!(f, "{}{}", if said { ": " } else { "" }, inner.detail)?;
        if let Some(source) = &inner.source {
            let text = source.to_string();
            if !inner.detail.contains(&text) {
                write!(f, ": {}", text.replace('\n', " "))?;
            }
        }
        if inner.outcome_unknown {
            f.write_str(" (it may have been carried out all the same)")?;
        }
        if let Some(advice) = &inner.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Kind;

    #[test]
    fn an_error_says_what_where_and_what_to_do_in_one_line() {
        let resource = Resource::new(Kind::Mutex, "orders/42").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "connection refused")
            .doing("acquire")
            .about(&resource)
            .on("redis 127.0.0.1:6379")
            .with_unknown_outcome()
            .advise("check that the server runs");
        assert_eq!(
            error.to_string(),
            "cannot acquire mutex \"orders/42\" on redis 127.0.0.1:6379: connection refused \
             (it may have been carried out all the same); check that the server runs"
        );
        assert!(error.can_retry() && error.is_outcome_unknown());
    }

    #[test]
    fn the_innermost_word_on_action_and_store_stays() {
        let error =
            Error::new(ErrorKind::Denied, "no").doing("open the lock file").doing("acquire").on("a").on("b");
        assert_eq!(error.to_string(), "cannot open the lock file on a: no");
    }
}
