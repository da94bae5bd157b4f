//! Several guards that are held together.

use std::future::Future;
use std::sync::OnceLock;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::guard::{Guard, ReleaseError};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, Kind};
use crate::store::LossReason;

/// The guards of [`Locks::acquire_all`](crate::Locks::acquire_all), held together.
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct GuardSet {
    guards: Vec<Guard>,
    /// Cancelled when the first guard is lost, and what ends watching for that. Made when it is asked for.
    signal: OnceLock<(CancellationToken, DropGuard)>,
}

impl GuardSet {
    pub(crate) fn new(guards: Vec<Guard>) -> Self {
        GuardSet { guards, signal: OnceLock::new() }
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

    /// The guard of this name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the set has none, or has locks of several kinds with this name: then use
    /// [`guard_of`](GuardSet::guard_of).
    pub fn guard(&self, name: &str) -> Result<&Guard> {
        let mut named = self.guards.iter().filter(|guard| guard.resource().name() == name);
        match (named.next(), named.next()) {
            (Some(guard), None) => Ok(guard),
            (None, _) => Err(self.missing(&format!("named {name:?}"))),
            (Some(_), Some(_)) => {
                let what = format!("the set has several locks named {name:?}");
                Err(Error::new(ErrorKind::InvalidInput, what)
                    .advise("name the kind too: use guard_of or token_of"))
            }
        }
    }

    /// The guard of this kind and name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the set has none.
    pub fn guard_of(&self, kind: Kind, name: &str) -> Result<&Guard> {
        let named = |guard: &&Guard| guard.resource().kind() == kind && guard.resource().name() == name;
        self.guards.iter().find(named).ok_or_else(|| self.missing(&format!("{kind} {name:?}")))
    }

    fn missing(&self, which: &str) -> Error {
        let all: Vec<String> = self.guards.iter().map(|guard| guard.resource().to_string()).collect();
        let what = format!("the set has no lock {which}");
        Error::new(ErrorKind::InvalidInput, what).advise(match &all[..] {
            [] => "it is empty".to_owned(),
            all => format!("it has {}", all.join(", ")),
        })
    }

    /// The fencing token of the lock of this name.
    ///
    /// ```
    /// # use distlock_core::{Locks, memory::MemoryStore, store::Backend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> distlock_core::Result<()> {
    /// # let locks = Locks::new(Backend::lease(MemoryStore::new()))?;
    /// let both = locks.acquire_all(["account/1", "account/2"]).await?;
    /// let token = both.token("account/1")?;
    /// # drop((token, both)); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`guard`](GuardSet::guard).
    pub fn token(&self, name: &str) -> Result<FencingToken> {
        self.guard(name).map(Guard::token)
    }

    /// The fencing token of the lock of this kind and name.
    ///
    /// # Errors
    /// As for [`guard_of`](GuardSet::guard_of).
    pub fn token_of(&self, kind: Kind, name: &str) -> Result<FencingToken> {
        self.guard_of(kind, name).map(Guard::token)
    }

    /// Whether any of them is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(Guard::is_lost)
    }

    /// The first that is lost, as an error that names it; `None` if all are held.
    #[must_use]
    pub fn loss(&self) -> Option<Error> {
        self.guards.iter().find_map(|guard| guard.loss().map(|reason| guard.lost_error(&reason)))
    }

    /// Resolves when the first of them is lost.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> LossReason {
        self.first_lost().await.1
    }

    async fn first_lost(&self) -> (&Guard, LossReason) {
        if self.guards.is_empty() {
            return std::future::pending().await;
        }
        let losses = self.guards.iter().map(|guard| Box::pin(guard.lost()));
        let (reason, first, _) = futures_util::future::select_all(losses).await;
        (&self.guards[first], reason)
    }

    /// A token that is cancelled when the first of the guards is lost, for the code that does the work. It is not cancelled any
    /// more after the set was released, dropped or [taken apart](GuardSet::into_guards).
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        let (signal, _) = self.signal.get_or_init(|| {
            let (signal, over) = (CancellationToken::new(), CancellationToken::new());
            if let Some(first) = self.guards.first() {
                first.engine().cancel_on_loss(
                    self.guards.iter().map(Guard::hold),
                    signal.clone(),
                    over.clone(),
                );
            }
            (signal, over.drop_guard())
        });
        if self.is_lost() {
            signal.cancel();
        }
        signal.child_token()
    }

    /// Renews all of them; see [`Guard::renew`].
    ///
    /// # Errors
    /// The first error, which names its lock; the others are renewed nevertheless.
    ///
    /// # Cancel safety
    /// As for [`Guard::renew`].
    pub async fn renew(&self) -> Result<()> {
        let renewals = self.guards.iter().map(Guard::renew);
        futures_util::future::join_all(renewals).await.into_iter().fold(Ok(()), Result::and)
    }

    /// Does the work while all are held: it is cancelled when the first is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if one was lost before the work was done; it names the lock and the store.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work; the guards stay held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        tokio::select! {
            biased;
            (guard, reason) = self.first_lost() => Err(guard.lost_error(&reason)),
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
