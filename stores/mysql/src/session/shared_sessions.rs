//! The sessions that take free locks. Many holds share one, up to a number: MariaDB looks through all locks of a session whenever the
//! session takes one more, and whenever it uses a table.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::Result;
use distlock_core::store::support::reconnect::{Connection, Reconnect};

use super::actor::SessionActor;

/// How many locks share a session. `GET_LOCK` and a statement with a table each took MariaDB 10.11 16 µs in a session with few locks,
/// 46 with 3,300, 91 with 7,400, 330 with 32,000 and 10 ms with 100,000. So many fill their hash table.
pub(super) const MOST_LOCKS: usize = 3584;

/// Finds a session with room, or opens one. A session has a reference for each of its locks, and one for each task that uses it: these
/// are what it is filled with.
#[derive(Debug)]
pub(super) struct SharedSessions {
    /// The oldest first: it takes the next lock if it has room, so that the others become empty.
    sessions: Mutex<Vec<Arc<SessionActor>>>,
    opening: Reconnect<Opened>,
    /// How many locks a session may have: more while the server takes no other session.
    most: AtomicUsize,
}

/// The session that was opened last.
#[derive(Debug)]
struct Opened(Arc<SessionActor>);

impl Connection for Opened {
    fn is_usable(&self) -> bool {
        has_room(&self.0, MOST_LOCKS)
    }
}

fn has_room(session: &Arc<SessionActor>, most: usize) -> bool {
    session.is_usable() && Arc::strong_count(session) < most
}

impl SharedSessions {
    pub(super) fn new(limit: Duration) -> Self {
        SharedSessions {
            sessions: Mutex::default(),
            opening: Reconnect::new(limit),
            most: AtomicUsize::new(MOST_LOCKS),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<SessionActor>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session with room for a lock. If there is none and no other can be opened, that with the fewest locks gets more of them.
    pub(super) async fn get<F>(&self, open: impl FnOnce() -> F) -> Result<Arc<SessionActor>>
    where
        F: Future<Output = Result<SessionActor>>,
    {
        let most = self.most.load(Ordering::SeqCst);
        let with_room = self.sessions().iter().find(|session| has_room(session, most)).cloned();
        if let Some(session) = with_room {
            return Ok(session);
        }
        let opened = self.opening.get(|| async { open().await.map(|session| Opened(Arc::new(session))) });
        match opened.await {
            Ok(opened) => {
                self.add(&opened.0);
                Ok(Arc::clone(&opened.0))
            }
            Err(error) => {
                let fewest = self.fewest().ok_or_else(|| error.clone())?;
                self.most.fetch_max(Arc::strong_count(&fewest) + MOST_LOCKS, Ordering::SeqCst);
                tracing::warn!(%error, "no other session for more locks: they become slower on the ones there are");
                Ok(fewest)
            }
        }
    }

    fn add(&self, opened: &Arc<SessionActor>) {
        let mut sessions = self.sessions();
        sessions.retain(|session| session.is_usable());
        if !sessions.iter().any(|session| Arc::ptr_eq(session, opened)) {
            sessions.push(Arc::clone(opened));
            self.most.store(MOST_LOCKS, Ordering::SeqCst);
        }
    }

    fn fewest(&self) -> Option<Arc<SessionActor>> {
        let sessions = self.sessions();
        let usable = sessions.iter().filter(|session| session.is_usable());
        usable.min_by_key(|session| Arc::strong_count(session)).cloned()
    }

    /// To be called when a lock was released. Returns whether its session is one of these. One without locks is closed, unless the
    /// others would be full soon.
    pub(super) fn released(&self, session: &Arc<SessionActor>) -> bool {
        let mut sessions = self.sessions();
        let Some(at) = sessions.iter().position(|other| Arc::ptr_eq(other, session)) else { return false };
        // By the list, the caller and `opening`.
        let is_idle = |least: usize| Arc::strong_count(session) <= least;
        let have_room = || {
            let others = sessions.iter().filter(|other| !Arc::ptr_eq(other, session));
            others.into_iter().any(|other| has_room(other, MOST_LOCKS / 2))
        };
        if is_idle(3) && have_room() {
            if let Some(opened) = self.opening.last().filter(|opened| Arc::ptr_eq(&opened.0, session)) {
                self.opening.discard(&opened);
            }
            // No task finds it any more: without the list it has no references but those that it has now.
            if is_idle(2) {
                sessions.remove(at);
            }
        }
        true
    }
}
