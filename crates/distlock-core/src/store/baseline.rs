//! What a benchmark compares with: the store's own driver, doing the bare round trips.

use async_trait::async_trait;

use crate::error::Result;

/// The driver alone, beside our locks in the same run. It promises nothing but the round trips.
#[async_trait]
pub trait Baseline: Send + Sync {
    /// The two bare round trips of an acquire and a release of this name, as somebody without this library would
    /// write them: for Redis `SET NX PX` and a compare-and-delete script. May be called by many tasks at once.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn cycle(&self, name: &str) -> Result<()>;

    /// How many requests the server has carried out until now by its own count, ours and others', where it counts.
    /// Asking must not count itself, or always count the same.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn server_requests(&self) -> Result<Option<u64>>;

    /// Removes what `cycle` left behind, and every record of a lock whose name begins with this: of a benchmark, whose
    /// names nobody uses again, not even the tokens need to be remembered.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn clean_up(&self, prefix: &str) -> Result<()>;
}
