//! One shared connection that is made when it is needed and made again when it is gone.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::errors;
use crate::error::{Error, Result};

/// A connection that several tasks share.
pub trait Connection: Send + Sync + 'static {
    /// Whether a new request may be sent on it.
    fn is_usable(&self) -> bool;
}

/// Single-flight reconnect: however many tasks need a connection, one of them connects and the others await its
/// result. A failed attempt fails every task that waited for it; a task that asks later starts another attempt, or gets
/// the same error again while the [backoff](Reconnect::with_backoff) lasts.
///
/// ```
/// # use distlock_core::store::support::reconnect::{Connection, Reconnect};
/// # use distlock_core::Result;
/// # struct Socket;
/// # impl Connection for Socket { fn is_usable(&self) -> bool { true } }
/// # async fn dial() -> Result<Socket> { Ok(Socket) }
/// # async fn run(shared: &Reconnect<Socket>) -> Result<()> {
/// let connection = shared.get(|| dial()).await?;
/// # let _ = connection; Ok(()) }
/// ```
pub struct Reconnect<C> {
    state: Mutex<State<C>>,
    /// Held by the task that connects.
    connecting: tokio::sync::Mutex<()>,
    limit: Duration,
    backoff: Option<(Duration, Duration)>,
}

struct State<C> {
    current: Option<Arc<C>>,
    /// Attempts that came to an end, whatever their result.
    attempts: u64,
    failure: Option<Failure>,
}

struct Failure {
    error: Error,
    backoff: Duration,
    retry_at: Instant,
}

impl<C: Connection> Reconnect<C> {
    /// No connection yet. An attempt that takes longer than `limit` fails.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        let state = State { current: None, attempts: 0, failure: None };
        Reconnect {
            state: Mutex::new(state),
            connecting: tokio::sync::Mutex::default(),
            limit,
            backoff: None,
        }
    }

    /// After a failure the next attempt waits: `first`, then twice as long each time up to `last`, with 50 % jitter.
    /// Until then every caller gets the last error at once.
    #[must_use]
    pub fn with_backoff(mut self, first: Duration, last: Duration) -> Self {
        self.backoff = Some((first, last));
        self
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if there is one that is usable.
    #[must_use]
    pub fn current(&self) -> Option<Arc<C>> {
        self.state().current.as_ref().filter(|connection| connection.is_usable()).cloned()
    }

    /// The last connection that was made, also if it is not usable any more; `None` while another one is being made.
    #[must_use]
    pub fn last(&self) -> Option<Arc<C>> {
        self.state().current.clone()
    }

    /// Sends nothing new on this connection. Requests in flight on it are not touched. Returns whether it was the
    /// current one: of several callers that discard it, exactly one gets `true`.
    pub fn discard(&self, connection: &Arc<C>) -> bool {
        self.state().current.take_if(|current| Arc::ptr_eq(current, connection)).is_some()
    }

    /// The current connection, or a new one.
    ///
    /// # Errors
    /// What `connect` returned, also if another task called it; [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable)
    /// if it did not return within the limit.
    ///
    /// # Cancel safety
    /// If the task that connects is dropped, its attempt ends without a result and the next waiting task connects.
    pub async fn get<F>(&self, connect: impl FnOnce() -> F) -> Result<Arc<C>>
    where
        F: Future<Output = Result<C>>,
    {
        let attempts = {
            let state = self.state();
            if let Some(connection) = state.current.as_ref().filter(|connection| connection.is_usable()) {
                return Ok(Arc::clone(connection));
            }
            state.attempts
        };
        let _connecting = self.connecting.lock().await;
        {
            let mut state = self.state();
            if let Some(connection) = state.current.as_ref().filter(|connection| connection.is_usable()) {
                return Ok(Arc::clone(connection));
            }
            if let Some(failure) = &state.failure
                && (state.attempts != attempts || Instant::now() < failure.retry_at)
            {
                return Err(failure.error.clone());
            }
            state.current = None;
        }
        let outcome = match tokio::time::timeout(self.limit, connect()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(errors::connect_timeout(self.limit)),
        };
        self.attempted(outcome)
    }

    fn attempted(&self, outcome: Result<C>) -> Result<Arc<C>> {
        let mut state = self.state();
        state.attempts += 1;
        match outcome {
            Ok(connection) => {
                let connection = Arc::new(connection);
                state.failure = None;
                state.current = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(error) => {
                let backoff = self.next_backoff(state.failure.as_ref());
                let retry_at = Instant::now() + backoff.mul_f64(0.5 + fastrand::f64());
                state.failure = Some(Failure { error: error.clone(), backoff, retry_at });
                Err(error)
            }
        }
    }

    fn next_backoff(&self, failure: Option<&Failure>) -> Duration {
        match (self.backoff, failure) {
            (None, _) => Duration::ZERO,
            (Some((first, _)), None) => first,
            (Some((_, last)), Some(failure)) => failure.backoff.saturating_mul(2).min(last),
        }
    }
}

impl<C: fmt::Debug> fmt::Debug for Reconnect<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Reconnect")
            .field("current", &state.current)
            .field("failure", &state.failure.as_ref().map(|failure| &failure.error))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;
    use crate::error::ErrorKind;

    #[derive(Debug)]
    struct Socket {
        number: usize,
        open: AtomicBool,
    }

    impl Connection for Socket {
        fn is_usable(&self) -> bool {
            self.open.load(Ordering::SeqCst)
        }
    }

    /// A server that counts connects and answers them when told to.
    #[derive(Default)]
    struct Server {
        connects: AtomicUsize,
        down: AtomicBool,
        answer: Notify,
    }

    impl Server {
        async fn connect(&self) -> Result<Socket> {
            let number = self.connects.fetch_add(1, Ordering::SeqCst) + 1;
            self.answer.notified().await;
            match self.down.load(Ordering::SeqCst) {
                true => Err(errors::unavailable("refused")),
                false => Ok(Socket { number, open: AtomicBool::new(true) }),
            }
        }
    }

    type Shared = (Arc<Reconnect<Socket>>, Arc<Server>);

    fn shared() -> Shared {
        (Arc::new(Reconnect::new(Duration::from_secs(10))), Arc::default())
    }

    fn get((shared, server): &Shared) -> tokio::task::JoinHandle<Result<Arc<Socket>>> {
        let (shared, server) = (Arc::clone(shared), Arc::clone(server));
        tokio::spawn(async move { shared.get(|| server.connect()).await })
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_tasks_that_need_a_connection_share_one_attempt() {
        let both = shared();
        let tasks: Vec<_> = (0..10).map(|_| get(&both)).collect();
        settle().await;
        both.1.answer.notify_one();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap().number, 1);
        }
        assert_eq!(both.1.connects.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_attempt_fails_every_task_that_waited_and_no_later_one() {
        let both = shared();
        both.1.down.store(true, Ordering::SeqCst);
        let tasks: Vec<_> = (0..10).map(|_| get(&both)).collect();
        settle().await;
        both.1.answer.notify_one();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(both.1.connects.load(Ordering::SeqCst), 1);
        both.1.down.store(false, Ordering::SeqCst);
        both.1.answer.notify_one();
        assert_eq!(get(&both).await.unwrap().unwrap().number, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_is_dropped_while_it_connects_lets_the_next_one_connect() {
        let both = shared();
        let first = get(&both);
        settle().await;
        let second = get(&both);
        settle().await;
        first.abort();
        settle().await;
        both.1.answer.notify_one();
        assert_eq!(second.await.unwrap().unwrap().number, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connect_that_never_returns_fails_at_the_limit() {
        let both = shared();
        let tasks = [get(&both), get(&both)];
        let begun = Instant::now();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_no_longer_usable_is_replaced_once() {
        let both = shared();
        both.1.answer.notify_one();
        let first = get(&both).await.unwrap().unwrap();
        assert!(both.0.current().is_some());
        first.open.store(false, Ordering::SeqCst);
        assert!(both.0.current().is_none());
        both.1.answer.notify_one();
        let second = get(&both).await.unwrap().unwrap();
        assert_eq!(second.number, 2);
        assert!(!both.0.discard(&first), "an old connection discards the new one");
        assert!(both.0.discard(&second));
        assert!(!both.0.discard(&second));
    }

    #[tokio::test(start_paused = true)]
    async fn during_the_backoff_no_attempt_is_made() {
        let (first, last) = (Duration::from_millis(20), Duration::from_millis(50));
        let (_, server) = shared();
        let both = (Arc::new(Reconnect::new(Duration::from_secs(10)).with_backoff(first, last)), server);
        both.1.down.store(true, Ordering::SeqCst);
        for (failures, longest) in [(1, 30), (2, 60), (3, 75), (4, 75)] {
            both.1.answer.notify_one();
            assert!(get(&both).await.unwrap().is_err());
            assert!(get(&both).await.unwrap().is_err(), "the error is remembered");
            assert_eq!(both.1.connects.load(Ordering::SeqCst), failures);
            tokio::time::sleep(Duration::from_millis(longest)).await;
        }
    }
}
