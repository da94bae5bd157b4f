//! The server's own count of requests.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::bench::Baseline;

/// Reads the server's counter, less what reading it costs.
pub(crate) struct Counter {
    raw: Option<Arc<dyn Baseline>>,
    /// What one look adds to the count.
    own: u64,
}

impl Counter {
    pub(crate) async fn new(raw: Option<Arc<dyn Baseline>>) -> Result<Self> {
        let mut counter = Counter { raw, own: 0 };
        // The first look may make a connection; the two after it show what a look costs.
        counter.read().await?;
        if let (Some(first), Some(second)) = (counter.read().await?, counter.read().await?) {
            counter.own = second.saturating_sub(first);
        }
        Ok(counter)
    }

    async fn read(&self) -> Result<Option<u64>> {
        match &self.raw {
            Some(raw) => raw.server_requests().await,
            None => Ok(None),
        }
    }

    /// The count now; give it to [`since`](Counter::since).
    pub(crate) async fn mark(&self) -> Result<Option<u64>> {
        self.read().await
    }

    /// How many requests the server carried out since the mark, where it counts.
    pub(crate) async fn since(&self, mark: Option<u64>) -> Result<Option<u64>> {
        let now = self.read().await?;
        Ok(now.zip(mark).map(|(now, mark)| now.saturating_sub(mark).saturating_sub(self.own)))
    }
}
