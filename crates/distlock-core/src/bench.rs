//! What a benchmark compares with: the store's own driver, doing the bare round trips. Unstable, and no part of the
//! public API: `clean_up` removes records without asking who holds them.

use async_trait::async_trait;

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

    /// Removes what `cycle` left, and every record, tokens included, of a lock whose name begins with this prefix. Only
    /// for names that are never used again.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses; if the prefix is empty.
    async fn clean_up(&self, prefix: &str) -> Result<()>;
}
