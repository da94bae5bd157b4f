//! How long an acquisition waits.

use crate::clock::Moment;

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// One attempt.
    Once,
    /// Until this moment.
    Until(Moment),
    /// For ever.
    Forever,
}

impl Wait {
    pub(crate) fn over(self, now: Moment) -> bool {
        matches!(self, Wait::Until(limit) if now >= limit)
    }

    pub(super) fn limit(self) -> Moment {
        match self {
            Wait::Until(limit) => limit,
            Wait::Once | Wait::Forever => Moment::NEVER,
        }
    }
}
