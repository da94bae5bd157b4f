//! The server's count of requests.

use std::sync::Arc;

use distlock_core::Result;
use distlock_core::bench::Baseline;

/// Reads the server's request counter and subtracts the cost of reading it.
pub(crate) struct RequestCounter {
    baseline: Option<Arc<dyn Baseline>>,
    /// What one reading adds to the count.
    read_cost: u64,
}

impl RequestCounter {
    pub(crate) async fn new(baseline: Option<Arc<dyn Baseline>>) -> Result<Self> {
        let mut counter = RequestCounter { baseline, read_cost: 0 };
        // The first reading may open a connection; the next two show the cost of a reading.
        counter.read().await?;
        if let (Some(first), Some(second)) = (counter.read().await?, counter.read().await?) {
            counter.read_cost = second.saturating_sub(first);
        }
        Ok(counter)
    }

    async fn read(&self) -> Result<Option<u64>> {
        match &self.baseline {
            Some(baseline) => baseline.server_requests().await,
            None => Ok(None),
        }
    }

    /// The number of statements, where the server counts them and a request has several. A reading counts too.
    pub(crate) async fn statements(&self) -> Result<Option<u64>> {
        match &self.baseline {
            Some(baseline) => baseline.server_statements().await,
            None => Ok(None),
        }
    }

    /// The count now, for [`since`](RequestCounter::since).
    pub(crate) async fn mark(&self) -> Result<Option<u64>> {
        self.read().await
    }

    /// The number of requests since the mark, where the server counts them.
    pub(crate) async fn since(&self, mark: Option<u64>) -> Result<Option<u64>> {
        let now = self.read().await?;
        Ok(now.zip(mark).map(|(now, mark)| now.saturating_sub(mark).saturating_sub(self.read_cost)))
    }
}
