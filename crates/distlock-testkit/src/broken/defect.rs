//! What may be wrong with a store.

/// One thing that is wrong with a [`BrokenStore`](super::BrokenStore).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Defect {
    /// The record that carries the token is deleted on release, so that the next token is 1 again.
    TokenRestartsAtRelease,
    /// The same when an operator breaks the lock.
    TokenRestartsAtBreak,
    /// Those who hold together have one token.
    TokenSharedByHolders,
    /// Whoever releases frees the lock, whoever holds it.
    ReleaseWithoutOwnerCheck,
    /// Extending deletes the record and means to write it anew, and does not.
    ExtendFrees,
    /// An extension that fails cleans up after itself and frees its own live lock.
    FailedExtendFrees,
    /// Extending what is not ours any more is answered like extending what is.
    ExtendsWhatIsNotOurs,
    /// Extending what has expired takes it again.
    ExtendTakesAgain,
    /// The lock is given away long before its expiry.
    ExpiresEarly,
    /// Nothing ever expires.
    NeverExpires,
    /// A reader-writer lock that has room for two writers.
    TwoWriters,
    /// A reader-writer lock that lets a reader in beside a writer.
    ReaderBesideWriter,
    /// Looks whether the lock is free, and takes it a moment later.
    ChecksThenSets,
    /// One lock id for all acquisitions of an engine.
    LockIdPerEngine,
    /// A claim that was granted and is asked again is taken for somebody else's.
    ForgetsWhoAsked,
    /// A wake-up is sent as if it were a grant.
    WakesPromiseAGrant,
    /// Says that it can wake waiters, and does not.
    NeverWakes,
    /// A pool without a queue: whoever fits comes first.
    NoQueue,
    /// Whoever asks once and does not wait is put into the queue all the same.
    OneAttemptWaits,
    /// A waiter that withdraws stays in the queue.
    WithdrawnWaitersStay,
    /// A semaphore has the capacity of whoever asks.
    CapacityOfWhoeverAsks,
    /// Names that differ in case are one name.
    FoldsCase,
    /// Names are cut after 255 bytes.
    CutsNames,
    /// All kinds of one name are one resource.
    KindsShareNames,
    /// Does not say how long a busy lock stays busy.
    DoesNotSayWhen,
    /// One bad claim fails all claims of its batch.
    BatchFailsAsAWhole,
}
