//! The one error type: what failed, where, and what to do.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::resource::Resource;
use crate::store::Holder;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure. Match on this, and treat unknown kinds like [`ErrorKind::Unavailable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input is wrong: a name, a duration, a URL. Nothing was sent.
    InvalidInput,
    /// The lock was held by another client until the time limit passed. The store answered; this is contention.
    Timeout,
    /// The store cannot be reached, or did not reply in time.
    Unavailable,
    /// The store refused us: wrong credentials, missing rights.
    Denied,
    /// The store cannot do this at all; see [`Capabilities`](crate::store::Capabilities).
    Unsupported,
    /// The resource exists with another shape, such as a semaphore of another capacity.
    Mismatch,
    /// The store ended a wait because clients wait for each other.
    Deadlock,
    /// The store is full: disk, memory, open files.
    Exhausted,
    /// What the store holds under our name was not written by us.
    Corrupt,
    /// The lock was lost while it was in use.
    Lost,
    /// The caller cancelled the wait; nothing is held.
    Cancelled,
    /// `shutdown` was called, or the runtime of the engine is gone.
    ShutDown,
    /// The store broke a rule of ours or its driver panicked: a defect worth reporting.
    Internal,
}

impl ErrorKind {
    /// Whether the same call can succeed later without any change by an operator.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Deadlock)
    }
}

/// What failed, on which store and resource, and what to do about it. Cheap to clone.
///
/// `{}` shows this error in one line, without its [source](std::error::Error::source): a reporter that walks the chain
/// shows every fact once. `{:#}` shows the whole chain in one line.
///
/// ```
/// use distlock_core::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::Unavailable, "no connection").caused_by(std::io::Error::other("refused"));
/// assert_eq!(error.to_string(), "no connection");
/// assert_eq!(format!("{error:#}"), "no connection: refused");
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    /// Empty if the error says nothing beyond its action.
    detail: Cow<'static, str>,
    action: Option<Action>,
    store: Option<Arc<str>>,
    resource: Option<Resource>,
    advice: Option<Cow<'static, str>>,
    outcome_unknown: bool,
    in_flight: bool,
    panicked: bool,
    retry: Option<bool>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// What was being done.
#[derive(Clone)]
enum Action {
    /// "cannot …".
    Failed(Cow<'static, str>),
    /// "timed out after … waiting for".
    TimedOut(Duration),
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
            in_flight: false,
            panicked: false,
            retry: None,
            source: None,
        }))
    }

    /// The lock was held by these, where they are known, until the time limit passed.
    #[must_use]
    pub(crate) fn timed_out(after: Duration, holders: &[Holder]) -> Self {
        let detail = match holders {
            [] => String::new(),
            holders => format!("held by {}", Holder::list(holders)),
        };
        Error::new(ErrorKind::Timeout, detail)
            .advise("wait longer, or see `distlock show`")
            .change(|inner| inner.action = Some(Action::TimedOut(after)))
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Adds what was being done, as in "acquire" or "read the lock file", unless an inner call has said so.
    #[must_use]
    pub fn doing(self, action: impl Into<Cow<'static, str>>) -> Self {
        if self.0.action.is_some() {
            return self;
        }
        self.change(|inner| inner.action = Some(Action::Failed(action.into())))
    }

    /// Adds the store, in words without secrets, unless an inner call has said so.
    #[must_use]
    pub fn on(self, store: impl Into<Arc<str>>) -> Self {
        if self.0.store.is_some() {
            return self;
        }
        self.change(|inner| inner.store = Some(store.into()))
    }

    /// Adds the resource, unless an inner call has said so.
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

    /// Says that the outcome is unknown: the store may have applied the request.
    #[must_use]
    pub fn with_unknown_outcome(self) -> Self {
        self.change(|inner| inner.outcome_unknown = true)
    }

    /// Says that the request was given up but is still in flight: it may yet be applied, and answered.
    #[must_use]
    pub(crate) fn with_request_in_flight(self) -> Self {
        self.change(|inner| inner.in_flight = true)
    }

    pub(crate) fn is_request_in_flight(&self) -> bool {
        self.0.in_flight
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

    /// Adds the error below. Its text must hold no secret: `{:#}` and the reporters of applications show it.
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
        match self.0.action.as_ref()? {
            Action::Failed(action) => Some(action),
            Action::TimedOut(_) => Some("acquire"),
        }
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

    /// Whether the store may have applied the request although it failed here. The engine undoes or resolves such
    /// requests itself; a caller need not.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        self.0.outcome_unknown
    }

    /// Whether the same call can succeed later without any change by an operator.
    #[must_use]
    pub fn can_retry(&self) -> bool {
        self.0.retry.unwrap_or(self.0.kind.is_transient())
    }
}

impl Inner {
    /// What failed, on what and where: everything before the detail. Says whether anything was written.
    fn write_subject(&self, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
        let mut written = false;
        match &self.action {
            Some(Action::TimedOut(after)) => {
                match (&self.resource, after.is_zero()) {
                    (None, _) => write!(f, "timed out after {after:?}")?,
                    (Some(resource), false) => write!(f, "timed out after {after:?} waiting for {resource}")?,
                    (Some(resource), true) => write!(f, "cannot acquire {resource} without waiting")?,
                }
                return Ok(true);
            }
            Some(Action::Failed(action)) => {
                write!(f, "cannot {action}")?;
                written = true;
            }
            None => {}
        }
        if let Some(resource) = &self.resource {
            write!(f, "{}{resource}", if written { " " } else { "" })?;
            written = true;
        }
        if let Some(store) = &self.store {
            let preposition = match &self.action {
                Some(Action::Failed(action)) if action == "connect" => " to ",
                _ => " on ",
            };
            write!(f, "{}{store}", if written { preposition } else { "" })?;
            written = true;
        }
        Ok(written)
    }

    /// The errors below, in one line. A driver that repeats its own source in its text is shown once.
    fn write_sources(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.detail.to_string();
        let mut next = self.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static));
        while let Some(source) = next {
            let text = without_os_code(&source.to_string()).replace('\n', " ");
            if !shown.contains(&text) {
                write!(f, ": {text}")?;
                shown.push_str(&text);
            }
            next = source.source();
        }
        Ok(())
    }
}

/// The text without `(os error 111)`: the words before it say the same.
pub(crate) fn without_os_code(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some((before, after)) = rest.split_once(MARK) {
        kept.push_str(before);
        let digits = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-');
        match digits.strip_prefix(')') {
            Some(after) => rest = after,
            None => {
                kept.push_str(MARK);
                rest = after;
            }
        }
    }
    kept.push_str(rest);
    kept
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let written = inner.write_subject(f)?;
        let separator = if written && !inner.detail.is_empty() { ": " } else { "" };
        write!(f, "{separator}{}", inner.detail)?;
        if f.alternate() {
            inner.write_sources(f)?;
        }
        if let (Some(Action::TimedOut(_)), Some(store)) = (&inner.action, &inner.store) {
            write!(f, " ({store})")?;
        }
        if inner.outcome_unknown {
            f.write_str(" (outcome unknown: the request may have been applied)")?;
        }
        if let Some(advice) = &inner.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self:#})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests;
