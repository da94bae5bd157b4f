//! Several locks at once: all or nothing, without deadlock.

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::acquire::{Checked, Target, wait_of};
use super::guard::{Guard, ReleaseError};
use super::locks::Locks;
use crate::clock::Moment;
use crate::engine::Wait;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::resource::{FencingToken, Kind, WRITER_WEIGHT};
use crate::store::LossReason;

/// One of the locks that [`Locks::acquire_all`] takes. A plain name is a mutex.
#[derive(Clone, Debug)]
pub struct Request {
    kind: Kind,
    name: Arc<str>,
    weight: u32,
    capacity: u32,
    fair: bool,
}

impl Request {
    fn new(kind: Kind, name: Arc<str>, weight: u32, capacity: u32) -> Self {
        Request { kind, name, weight, capacity, fair: false }
    }

    /// A mutex.
    #[must_use]
    pub fn mutex(name: impl Into<Arc<str>>) -> Self {
        Request::new(Kind::Mutex, name.into(), 1, 1)
    }

    /// A fair mutex.
    #[must_use]
    pub fn fair_mutex(name: impl Into<Arc<str>>) -> Self {
        Request { fair: true, ..Request::mutex(name) }
    }

    /// A reader-writer lock, to read.
    #[must_use]
    pub fn read(name: impl Into<Arc<str>>) -> Self {
        Request::new(Kind::RwLock, name.into(), 1, WRITER_WEIGHT)
    }

    /// A reader-writer lock, to write.
    #[must_use]
    pub fn write(name: impl Into<Arc<str>>) -> Self {
        Request::new(Kind::RwLock, name.into(), WRITER_WEIGHT, WRITER_WEIGHT)
    }

    /// `wanted` of the `permits` of a semaphore.
    #[must_use]
    pub fn permits(name: impl Into<Arc<str>>, permits: u32, wanted: u32) -> Self {
        Request::new(Kind::Semaphore, name.into(), wanted, permits)
    }
}

impl From<&str> for Request {
    fn from(name: &str) -> Self {
        Request::mutex(name)
    }
}

impl From<String> for Request {
    fn from(name: String) -> Self {
        Request::mutex(name)
    }
}

impl From<&String> for Request {
    fn from(name: &String) -> Self {
        Request::mutex(name.as_str())
    }
}

/// Takes several locks: `.await` it. Made by [`Locks::acquire_all`].
///
/// Whatever is wrong with one of them is found before anything is sent. If one is lost while the others are waited for,
/// all are released and taken anew, within the time limit if there is one: the set that is returned is held as a whole.
///
/// # Errors
/// As for [`Acquire`](super::Acquire); [`ErrorKind::InvalidInput`] if one resource is named twice, which would
/// wait for itself; [`ErrorKind::Lost`] if one was lost meanwhile and the time limit does not allow another try. If one
/// fails, those taken before it are released.
///
/// # Cancel safety
/// Dropping the future at any point leaves nothing held.
#[derive(Debug)]
#[must_use = "nothing is acquired before it is awaited"]
pub struct AcquireAll {
    locks: Locks,
    requests: Vec<Request>,
    options: Arc<Options>,
    timeout: Option<Duration>,
}

impl AcquireAll {
    pub(crate) fn new(locks: Locks, requests: Vec<Request>) -> Self {
        let options = Arc::clone(&locks.options);
        AcquireAll { locks, requests, options, timeout: None }
    }

    /// One time limit for all of them together; zero is one attempt for each.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Other options than those of the [`Locks`].
    pub fn options(mut self, options: Options) -> Self {
        self.options = Arc::new(options);
        self
    }

    /// What is to be taken, in order, everything checked.
    fn targets(&self) -> Result<Vec<(Target, Checked)>> {
        let mut requests = self.requests.clone();
        // One order for everybody: whoever waits holds only what comes earlier in it.
        requests.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        if let Some(pair) =
            requests.windows(2).find(|pair| (pair[0].kind, &pair[0].name) == (pair[1].kind, &pair[1].name))
        {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the {} {:?} stands there twice", pair[0].kind, pair[0].name),
            )
            .doing("acquire all")
            .advise("name each resource once: it would wait for itself"));
        }
        let check = |request: Request| {
            let target = Target {
                kind: request.kind,
                name: request.name,
                weight: request.weight,
                capacity: request.capacity,
                fair: request.fair,
                options: Arc::clone(&self.options),
            };
            let checked = target.check(&self.locks)?;
            Ok((target, checked))
        };
        requests.into_iter().map(check).collect()
    }

    /// One try to take all of them.
    async fn take(&self, targets: &[(Target, Checked)], wait: Wait) -> Result<Tried> {
        let clock = &self.locks.engine.shared.clock;
        let mut taken = Taken(Vec::with_capacity(targets.len()));
        for (target, checked) in targets {
            match checked.acquire(&self.locks, wait).await? {
                Some(guard) => taken.0.push(guard),
                None => return Err(target.timed_out(&self.locks, self.timeout.unwrap_or_default())),
            }
            // What is waited for next would be waited for in vain.
            if let Some(lost) = taken.lost(clock.now()) {
                return Ok(Tried::Lost(lost.doing("acquire all").on(self.locks.store().to_owned())));
            }
        }
        Ok(Tried::Held(GuardSet { guards: std::mem::take(&mut taken.0) }))
    }
}

impl IntoFuture for AcquireAll {
    type Output = Result<GuardSet>;
    type IntoFuture = BoxFuture<'static, Result<GuardSet>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let targets = self.targets()?;
            let wait = wait_of(&self.locks, self.timeout);
            loop {
                match self.take(&targets, wait).await? {
                    Tried::Held(set) => return Ok(set),
                    Tried::Lost(lost)
                        if wait == Wait::Once || wait.over(self.locks.engine.shared.clock.now()) =>
                    {
                        return Err(lost);
                    }
                    Tried::Lost(_) => {}
                }
            }
        })
    }
}

/// How a try to take all of them ended.
enum Tried {
    Held(GuardSet),
    /// One was lost meanwhile, and all are released.
    Lost(Error),
}

/// What was taken so far. Dropping it undoes it.
struct Taken(Vec<Guard>);

impl Taken {
    /// The first one that is lost, as an error.
    fn lost(&self, now: Moment) -> Option<Error> {
        self.0.iter().find_map(|guard| {
            let reason = guard.loss_at(now)?;
            let what = format!("it was lost while the others were waited for: {reason}");
            let error = Error::new(ErrorKind::Lost, what).about(guard.resource());
            Some(error.advise("set a longer expiry, or leave automatic extension on"))
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.drain(..).rev().for_each(Guard::undo);
    }
}

/// The guards of [`Locks::acquire_all`], held together.
#[derive(Debug)]
#[must_use = "dropping the guards releases the locks"]
pub struct GuardSet {
    guards: Vec<Guard>,
}

impl GuardSet {
    /// The guards, ordered by kind and name.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The guards, to be held and released one by one.
    #[must_use]
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// The token of one of them.
    #[must_use]
    pub fn token(&self, kind: Kind, name: &str) -> Option<FencingToken> {
        let named = |guard: &&Guard| guard.resource().kind() == kind && guard.resource().name() == name;
        self.guards.iter().find(named).map(Guard::token)
    }

    /// Whether any of them is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(Guard::is_lost)
    }

    /// Resolves when the first of them is lost.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> LossReason {
        if self.guards.is_empty() {
            return std::future::pending().await;
        }
        let (reason, ..) =
            futures_util::future::select_all(self.guards.iter().map(|guard| Box::pin(guard.lost()))).await;
        reason
    }

    /// Does the work while all are held: it is cancelled when the first is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if one was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work; the guards stay held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(Error::new(ErrorKind::Lost, format!("one of the locks was lost: {reason}"))
                .advise("stop the work, and let the resources refuse the old tokens")),
            output = work => Ok(output),
        }
    }

    /// Gives all of them back.
    ///
    /// # Errors
    /// The first [`ReleaseError`]; the others are released all the same.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest to the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let mut ended = Ok(());
        for released in
            futures_util::future::join_all(self.guards.into_iter().rev().map(Guard::release)).await
        {
            ended = ended.and(released);
        }
        ended
    }
}
