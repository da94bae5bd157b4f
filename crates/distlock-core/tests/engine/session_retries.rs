//! A session that ends under a claim: the claim is made again, under another lock id.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_core::store::support::errors;
use distlock_core::store::{
    Backend, Capabilities, Claim, Finding, Holder, Lease, Query, Record, Session, SessionHold, SessionStore,
    Store,
};
use distlock_core::{
    CancellationToken, ErrorKind, FencingToken, LockId, Locks, Resource, Result, VirtualClock,
};

use crate::common::{MS, SECOND};

/// What the next call of `acquire` does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The session ends after this long.
    Lose(Duration),
    /// No connection.
    Refuse,
    Grant,
}

#[derive(Debug, Default)]
struct Script {
    steps: Mutex<Vec<Step>>,
    ids: Mutex<Vec<LockId>>,
    released: Mutex<HashSet<LockId>>,
}

#[derive(Clone, Debug, Default)]
struct Scripted(Arc<Script>);

#[async_trait]
impl Store for Scripted {
    fn describe(&self) -> String {
        "scripted".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    async fn inspect(&self, _: &Query) -> Result<Vec<Record>> {
        Ok(Vec::new())
    }

    async fn break_lock(&self, _: &Resource) -> Result<Vec<Holder>> {
        Ok(Vec::new())
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl SessionStore for Scripted {
    async fn acquire(&self, claim: &Claim, withdraw: &CancellationToken) -> Result<Option<SessionHold>> {
        self.0.ids.lock().unwrap().push(claim.lock_id.clone());
        let next = self.0.steps.lock().unwrap().pop().unwrap_or(Step::Refuse);
        match next {
            Step::Grant => Ok(Some(SessionHold { token: FencingToken::new(1), session: Session::new() })),
            Step::Refuse => Err(errors::unavailable("connection refused")),
            Step::Lose(after) => tokio::select! {
                () = withdraw.cancelled() => Ok(None),
                () = tokio::time::sleep(after) => Err(errors::connection_lost("terminated")),
            },
        }
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.0.released.lock().unwrap().insert(lease.lock_id.clone());
        Ok(())
    }
}

fn locks(steps: &[Step]) -> (Locks, Arc<Script>) {
    let store = Scripted::default();
    *store.0.steps.lock().unwrap() = steps.iter().rev().copied().collect();
    let clock = Arc::new(VirtualClock::new());
    let locks = Locks::builder(Backend::session(store.clone())).clock(clock).build().unwrap();
    (locks, store.0)
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_session_ends_is_made_again_and_what_came_of_the_first_is_released() {
    let short = Step::Lose(MS);
    let (locks, script) = locks(&[short, short, Step::Lose(600 * SECOND), short, Step::Refuse, Step::Grant]);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let ids = script.ids.lock().unwrap().clone();
    assert_eq!(ids.len(), 6);
    assert_eq!(
        ids.iter().collect::<HashSet<_>>().len(),
        6,
        "a lock id is released and must not be used again"
    );
    assert_eq!(guard.lock_id(), &ids[5]);
    tokio::time::sleep(SECOND).await;
    let released = script.released.lock().unwrap().clone();
    assert!(ids[..4].iter().all(|id| released.contains(id)), "their outcome is unknown");
    assert!(!released.contains(&ids[5]) && !guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_new_claim_fails_soon_if_the_store_cannot_be_reached() {
    let (locks, script) = locks(&[]);
    let begun = tokio::time::Instant::now();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() < 2 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(script.ids.lock().unwrap().len(), 3);
    assert!(locks.mutex("a").try_acquire().await.is_err());
    assert_eq!(script.ids.lock().unwrap().len(), 5, "an attempt is made twice");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_had_waited_outlasts_a_short_outage_and_not_a_long_one() {
    let waited = Step::Lose(60 * SECOND);
    let outage = |attempts: usize, end: Step| {
        let mut steps = vec![waited];
        steps.extend(std::iter::repeat_n(Step::Refuse, attempts));
        steps.push(end);
        steps
    };
    let (short, _) = locks(&outage(100, Step::Grant));
    drop(short.mutex("a").acquire().await.unwrap());
    let (long, script) = locks(&outage(10_000, Step::Grant));
    assert_eq!(long.mutex("a").acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(script.ids.lock().unwrap().len() < 1000);
}

#[tokio::test(start_paused = true)]
async fn retries_end_with_the_time_limit_and_with_shutdown() {
    let (limited, _) = locks(&[Step::Lose(2 * SECOND); 100]);
    let begun = tokio::time::Instant::now();
    assert!(limited.mutex("a").try_acquire().timeout(5 * SECOND).await.unwrap().is_none());
    assert!(begun.elapsed() < 6 * SECOND, "{:?}", begun.elapsed());
    let (stopped, _) = locks(&[Step::Lose(2 * SECOND); 100]);
    let waiting = tokio::spawn(stopped.mutex("a").acquire().into_future());
    tokio::time::sleep(5 * SECOND).await;
    stopped.shutdown().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
}
