//! The defects of a broken store.

/// The defect of a [`BrokenStore`](super::BrokenStore).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Defect {
    /// A release deletes the record with the token, so the next token is 1 again.
    TokenRestartsAtRelease,
    /// A forced release deletes the record with the token.
    TokenRestartsAtBreak,
    /// Concurrent holders share one token.
    TokenSharedByHolders,
    /// A release frees the lock under any lock id.
    ReleaseWithoutOwnerCheck,
    /// A renewal deletes the record and does not write it again.
    RenewalFrees,
    /// A failed renewal "cleans up" and frees its own held lock.
    FailedRenewalFrees,
    /// A renewal of a lock that is held under another lock id succeeds.
    RenewsForeignLock,
    /// A renewal of an expired lock acquires it again.
    RenewalAcquires,
    /// The lock is granted to another client long before its expiry.
    ExpiresEarly,
    /// Nothing ever expires.
    NeverExpires,
    /// A reader-writer lock admits two writers.
    TwoWriters,
    /// A reader-writer lock admits a reader beside a writer.
    ReaderBesideWriter,
    /// Checks whether the lock is free, and writes the holder in a second step.
    ChecksThenSets,
    /// One lock id for all acquisitions of an engine.
    LockIdPerEngine,
    /// A retry of a granted claim is treated as another client's claim.
    ForgetsLockIds,
    /// Sends every wake-up as a pushed grant.
    WakesClaimAGrant,
    /// Declares wake-ups and never sends one.
    NeverWakes,
    /// A pool without a wait queue: any claim that fits is granted.
    NoQueue,
    /// A single attempt that does not wait enters the wait queue.
    SingleAttemptQueues,
    /// A withdrawn waiter stays in the wait queue.
    WithdrawnWaitersStay,
    /// Each request brings its own capacity, without a mismatch error.
    CapacityPerRequest,
    /// Names that differ in case are one name.
    FoldsCase,
    /// Names are truncated after 255 bytes.
    TruncatesNames,
    /// All kinds of one name are one resource.
    KindsShareNames,
    /// A busy answer has no `retry_after`.
    NoRetryAfter,
    /// One invalid claim fails all claims of its batch.
    BatchFailsAsAWhole,
}
