//! The resource's side of fencing.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, ErrorKind};
use crate::resource::FencingToken;

/// Refuses holders that were overtaken: accepts a token if it is at least the highest seen, atomically.
///
/// This is the gate for a resource that lives in one process, such as a service in front of a device. A resource
/// that lives in a database does the same in its own conditional write: see the `fencing` page of the `distlock` crate for SQL, Redis,
/// MongoDB and files.
///
/// ```
/// use distlock_core::{FencingToken, TokenGate};
///
/// let gate = TokenGate::new();
/// let (paused, next) = (FencingToken::new(33), FencingToken::new(34));
/// assert_eq!(gate.run(next, || "written"), Ok("written"));
/// assert!(gate.run(paused, || "never happens").is_err());
/// ```
#[derive(Debug, Default)]
pub struct TokenGate(Mutex<Option<FencingToken>>);

impl TokenGate {
    /// A gate that has seen nothing.
    #[must_use]
    pub const fn new() -> Self {
        TokenGate(Mutex::new(None))
    }

    /// A gate that goes on from the highest token that was stored with the resource.
    #[must_use]
    pub const fn from_last(token: FencingToken) -> Self {
        TokenGate(Mutex::new(Some(token)))
    }

    /// The highest token seen.
    #[must_use]
    pub fn last(&self) -> Option<FencingToken> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a token pass, or refuses it. What is done after this may still be overtaken: prefer
    /// [`run`](TokenGate::run) where the work is short.
    ///
    /// # Errors
    /// [`StaleToken`] if a higher token has passed.
    pub fn admit(&self, token: FencingToken) -> Result<(), StaleToken> {
        self.run(token, || ())
    }

    /// Does the work if the token passes; no other token passes meanwhile.
    ///
    /// # Errors
    /// [`StaleToken`] if a higher token has passed; the work is not done then.
    pub fn run<T>(&self, token: FencingToken, work: impl FnOnce() -> T) -> Result<T, StaleToken> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = last.filter(|seen| *seen > token) {
            return Err(StaleToken { token, seen });
        }
        *last = Some(token);
        Ok(work())
    }
}

/// A token that was overtaken: its holder lost the lock without noticing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleToken {
    /// The token that came.
    pub token: FencingToken,
    /// The higher one that had come before.
    pub seen: FencingToken,
}

impl fmt::Display for StaleToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the fencing token {} is stale: {} was seen before; stop, the lock was lost",
            self.token, self.seen
        )
    }
}

impl std::error::Error for StaleToken {}

impl From<StaleToken> for Error {
    fn from(stale: StaleToken) -> Self {
        Error::new(ErrorKind::Lost, stale.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_was_overtaken_is_refused_and_the_same_holder_may_come_again() {
        let gate = TokenGate::from_last(FencingToken::new(7));
        assert!(gate.admit(FencingToken::new(6)).is_err());
        assert!(gate.admit(FencingToken::new(7)).is_ok());
        assert!(gate.admit(FencingToken::new(9)).is_ok());
        let stale = gate.admit(FencingToken::new(8)).unwrap_err();
        assert_eq!((stale.token.get(), stale.seen.get()), (8, 9));
        assert_eq!(gate.last(), Some(FencingToken::new(9)));
    }

    #[test]
    fn no_two_pieces_of_work_are_in_the_gate_at_once() {
        let gate = TokenGate::new();
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _ = gate.run(FencingToken::new(n), || {
                            use std::sync::atomic::Ordering::SeqCst;
                            assert_eq!(inside.fetch_add(1, SeqCst), 0);
                            inside.fetch_sub(1, SeqCst);
                        });
                    }
                });
            }
        });
    }
}
