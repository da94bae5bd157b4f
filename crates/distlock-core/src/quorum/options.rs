//! The options of a quorum.

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

    /// How long a node may take to answer before the quorum proceeds without it. Default 50 ms. It should be far below
    /// the expiry: an acquisition may wait this long three times, for grants, for tokens and to undo. The quorum waits
    /// longer for a node that the majority needs: four seconds, or this time-out if it is longer, but not longer than the
    /// expiry.
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

    /// How much of its expiry a grant must still have when it is returned. A grant that took longer is undone and counts
    /// as busy. Default 10 ms.
    #[must_use]
    pub fn min_validity(mut self, validity: Duration) -> Self {
        self.min_validity = validity;
        self
    }

    /// Whether a lease that a majority renewed is acquired, in the background, on nodes that lack it: they were down or
    /// had voted for another client when it was acquired, or restarted empty. Default on. See
    /// [`Quorum`](super::Quorum) for the effect.
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
