//! How a quorum asks its nodes.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{BootClock, Clock};
use crate::error::{Error, ErrorKind, Result};

/// The options of a [`Quorum`](super::Quorum).
///
/// ```
/// use std::time::Duration;
/// use distlock_core::quorum::QuorumOptions;
///
/// # fn main() -> distlock_core::Result<()> {
/// let options = QuorumOptions::new().node_timeout(Duration::from_millis(200))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct QuorumOptions {
    pub(super) node_timeout: Duration,
    pub(super) min_validity: Duration,
    pub(super) repair: bool,
    pub(super) clock: Arc<dyn Clock>,
}

impl Default for QuorumOptions {
    fn default() -> Self {
        QuorumOptions {
            node_timeout: Duration::from_millis(50),
            min_validity: Duration::from_millis(10),
            repair: true,
            clock: Arc::new(BootClock),
        }
    }
}

impl QuorumOptions {
    /// The defaults: 50 ms for a node to answer, a grant of at least 10 ms, repair on.
    #[must_use]
    pub fn new() -> Self {
        QuorumOptions::default()
    }

    /// How long a node may take to answer before it is done without. Default 50 ms. It should be far below the
    /// expiry: an acquisition may wait this long three times, for grants, for tokens and to undo. A node without which
    /// there is no majority is waited for longer: four seconds, or this if it is longer, but not beyond the expiry.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] below 1 ms or above a minute.
    pub fn node_timeout(mut self, timeout: Duration) -> Result<Self> {
        if timeout < Duration::from_millis(1) || timeout > Duration::from_secs(60) {
            let what = format!("a node time-out of {timeout:?} is not between 1 ms and a minute");
            return Err(Error::new(ErrorKind::InvalidInput, what)
                .advise("take a few times the slowest round trip, and far less than the expiry"));
        }
        self.node_timeout = timeout;
        Ok(self)
    }

    /// How much of its expiry a grant must still have when it is returned. A lock that took longer to get is
    /// undone and counts as busy. Default 10 ms.
    #[must_use]
    pub fn min_validity(mut self, validity: Duration) -> Self {
        self.min_validity = validity;
        self
    }

    /// Whether a lease that a majority extended is taken again, in the background, on nodes that do not have
    /// it: they were down or were lost to a rival when it was acquired, or came back with empty hands. Default
    /// on. See [`Quorum`](super::Quorum) for what it buys.
    #[must_use]
    pub fn repair(mut self, on: bool) -> Self {
        self.repair = on;
        self
    }

    /// The clock that measures how long an acquisition took. Default [`BootClock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }
}
