//! What a benchmark compares with: the store's own driver, doing the bare round trips. Unstable, and no part of the
//! public API: `clean_up` removes records without asking who holds them.

use std::time::Instant;

use async_trait::async_trait;
use futures_core::future::BoxFuture;

use crate::error::Result;

/// The driver alone, beside our locks in the same run. It promises nothing but the round trips.
#[async_trait]
pub trait Baseline: Send + Sync {
    /// The two bare round trips of an acquire and a release of this name, as a program without this library would do
    /// them: for Redis `SET NX PX` and a compare-and-delete script. Many tasks may call it at once.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn cycle(&self, name: &str) -> Result<()>;

    /// How many requests the server has executed so far by its own count, ours and others', where it counts. This
    /// request does not count itself, or always counts the same.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn server_requests(&self) -> Result<Option<u64>>;

    /// How many statements the server has executed so far, where a request has several and the server counts them.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn server_statements(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Two connections for bare notifications, where the store's server has them. The name is used by nothing else.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn notifications(&self, _name: &str) -> Result<Option<Box<dyn BareNotification>>> {
        Ok(None)
    }

    /// Removes what `cycle` left, and every record, tokens included, of a lock whose name begins with this prefix. Only
    /// for names that are never used again.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses; if the prefix is empty.
    async fn clean_up(&self, prefix: &str) -> Result<()>;
}

/// A notification between two connections of the driver, without this library: what a handoff from a holder to a waiter costs
/// at least. As durable as a handoff: for Redis `PUBLISH`, for PostgreSQL `NOTIFY` with a committed update.
#[async_trait]
pub trait BareNotification: Send {
    /// Prepares the next notification. The future resolves to the moment at which the receiver has it, and runs as a task of
    /// its own.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn receive(&mut self) -> Result<BoxFuture<'static, Result<Instant>>>;

    /// Sends the notification, and waits until the server has confirmed it.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn send(&mut self) -> Result<()>;
}
