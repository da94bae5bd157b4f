//! Several guards that are held together.

use std::future::Future;

use super::guard::{Guard, ReleaseError};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, Kind};
use crate::store::LossReason;

/// The guards of [`Locks::acquire_all`](crate::Locks::acquire_all), held together.
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct GuardSet {
    guards: Vec<Guard>,
}

impl GuardSet {
    pub(crate) fn new(guards: Vec<Guard>) -> Self {
        GuardSet { guards }
    }

    /// The guards, ordered by kind and name.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The guards, to be held and released one by one.
    #[must_use]
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// The token of one of them.
    #[must_use]
    pub fn token(&self, kind: Kind, name: &str) -> Option<FencingToken> {
        let named = |guard: &&Guard| guard.resource().kind() == kind && guard.resource().name() == name;
        self.guards.iter().find(named).map(Guard::token)
    }

    /// Whether any of them is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(Guard::is_lost)
    }

    /// Resolves when the first of them is lost.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> LossReason {
        if self.guards.is_empty() {
            return std::future::pending().await;
        }
        let losses = self.guards.iter().map(|guard| Box::pin(guard.lost()));
        futures_util::future::select_all(losses).await.0
    }

    /// Does the work while all are held: it is cancelled when the first is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if one was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work; the guards stay held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(Error::new(ErrorKind::Lost, format!("one of the locks was lost: {reason}"))
                .advise("stop the work, and let the resources refuse the old tokens")),
            output = work => Ok(output),
        }
    }

    /// Releases all of them.
    ///
    /// # Errors
    /// The first [`ReleaseError`]; the others are released nevertheless.
    ///
    /// # Cancel safety
    /// If the future is dropped, the rest is released in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let releases = self.guards.into_iter().rev().map(Guard::release);
        futures_util::future::join_all(releases).await.into_iter().fold(Ok(()), Result::and)
    }
}
