//! A store for the tests of this crate: `distlock-test:///dir` keeps leases in one JSON file, which a test can read, and
//! fails on command, so that a test can lose a lock.
//!
//! A fault is a file in the folder: `renew.fail` fails every renewal, `renew.hang` never replies to one, likewise for
//! `acquire`, `release` and `inspect`; `doctor.warn` adds a warning to `doctor`. Mutexes only.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use distlock_core::store::{
    Attempt, Backend, Batch, Capabilities, Claim, Fairness, Finding, Holder, Inbox, Lease, LeaseStore, Query,
    Record, Released, Renewal, Store, StoreUrl, Waiter, WakeStream,
};
use distlock_core::{
    BootClock, Clock, Error, ErrorKind, FencingToken, Kind, LockId, Moment, Resource, Result,
};
use serde::{Deserialize, Serialize};

/// The store of the URL, if it is a test store.
pub(crate) fn open(url: &str) -> Option<Result<Backend>> {
    let url = StoreUrl::parse(url).ok().filter(|url| url.scheme() == "distlock-test")?;
    // The authority is ignored; it lets a URL have a password.
    let dir = url.file_path().unwrap_or_default();
    if dir.join("connect.fail").exists() {
        let error =
            Error::new(ErrorKind::Unavailable, "connection refused").doing("connect").on(url.to_string());
        return Some(Err(error.advise("check that the server runs")));
    }
    Some(fs::create_dir_all(&dir).map_err(unreadable).map(|()| Backend::lease(TestStore { dir })))
}

fn unreadable(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the test store cannot be read").caused_by(error)
}

#[derive(Debug)]
struct TestStore {
    dir: PathBuf,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct StoredState(BTreeMap<String, StoredLock>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct StoredLock {
    last_token: u64,
    holder: Option<StoredHolder>,
    waiters: Vec<StoredWaiter>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredHolder {
    lock_id: String,
    token: u64,
    acquired_at_ms: u64,
    /// On the boot clock, which all processes of a machine share.
    expires_at_ns: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredWaiter {
    lock_id: String,
    until_ns: u64,
}

fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl StoredLock {
    fn purge(&mut self, now: Moment) {
        self.holder.take_if(|held| held.expires_at_ns <= now.as_nanos());
        self.waiters.retain(|waiter| waiter.until_ns > now.as_nanos());
    }

    fn try_acquire(&mut self, claim: &Claim, now: Moment) -> Attempt {
        let id = claim.lock_id.as_str();
        self.waiters.retain(|waiter| waiter.lock_id != id);
        let expires_at_ns = now.after(claim.expiry).as_nanos();
        match &mut self.holder {
            Some(held) if held.lock_id == id => {
                held.expires_at_ns = expires_at_ns;
                Attempt::granted(FencingToken::new(held.token))
            }
            Some(held) => {
                let retry_after = Some(Moment::from_nanos(held.expires_at_ns).since(now));
                if let Some(waiting) = &claim.waiting {
                    self.waiters.push(StoredWaiter {
                        lock_id: id.to_owned(),
                        until_ns: now.after(waiting.ttl).as_nanos(),
                    });
                }
                Attempt::busy(retry_after)
            }
            None => {
                let token = FencingToken::after(Some(FencingToken::new(self.last_token)), wall_clock_ms());
                self.last_token = token.get();
                let acquired_at_ms = wall_clock_ms();
                self.holder = Some(StoredHolder {
                    lock_id: id.to_owned(),
                    token: token.get(),
                    acquired_at_ms,
                    expires_at_ns,
                });
                Attempt::granted(token)
            }
        }
    }

    fn renew(&mut self, lease: &Lease, now: Moment) -> Renewal {
        match &mut self.holder {
            Some(held) if held.lock_id == lease.lock_id.as_str() => {
                held.expires_at_ns = now.after(lease.expiry).as_nanos();
                Renewal::Renewed
            }
            _ => Renewal::NotYours,
        }
    }

    fn release(&mut self, lease: &Lease) -> Released {
        let id = lease.lock_id.as_str();
        let waiting = self.waiters.len();
        self.waiters.retain(|waiter| waiter.lock_id != id);
        let held = self.holder.take_if(|held| held.lock_id == id).is_some();
        if held || self.waiters.len() < waiting { Released::Done { woke: false } } else { Released::NotYours }
    }

    fn holder(&self, now: Moment) -> Option<Holder> {
        self.holder.as_ref().map(|held| {
            Holder::new(LockId::from_stored(held.lock_id.as_str()), 1)
                .with_token(FencingToken::new(held.token))
                .with_acquired_at(UNIX_EPOCH + Duration::from_millis(held.acquired_at_ms))
                .with_expires_in(Moment::from_nanos(held.expires_at_ns).since(now))
        })
    }
}

impl TestStore {
    /// One atomic transaction, under a lock of the folder.
    fn transaction<T>(&self, work: impl FnOnce(&mut StoredState, Moment) -> T) -> Result<T> {
        let guard = File::create(self.dir.join("guard")).map_err(unreadable)?;
        guard.lock().map_err(unreadable)?;
        let path = self.dir.join("state.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|_| "{}".to_owned());
        let corrupt = |error| Error::new(ErrorKind::Corrupt, "the test store is not JSON").caused_by(error);
        let mut state: StoredState = serde_json::from_str(&text).map_err(corrupt)?;
        let now = BootClock.now();
        state.0.values_mut().for_each(|entry| entry.purge(now));
        let result = work(&mut state, now);
        let text = serde_json::to_string_pretty(&state).map_err(corrupt)?;
        let fresh = self.dir.join("state.json.new");
        fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &path)).map_err(unreadable)?;
        Ok(result)
    }

    async fn fault(&self, verb: &str) -> Result<()> {
        while self.dir.join(format!("{verb}.hang")).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if self.dir.join(format!("{verb}.fail")).exists() {
            return Err(Error::new(ErrorKind::Unavailable, "a test requested this fault"));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for TestStore {
    fn describe(&self) -> String {
        format!("test store {}", self.dir.display())
    }

    fn capabilities(&self) -> Capabilities {
        let mut all = Capabilities::all();
        all.rw_lock = false;
        all.semaphore = false;
        all.fairness = Fairness::None;
        all.push = false;
        all
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Record>> {
        self.fault("inspect").await?;
        self.transaction(|state, now| {
            let matching = state.0.iter().filter(|(name, _)| query.matches(Kind::Mutex, name));
            matching
                .map(|(name, entry)| {
                    let waiters = entry.waiters.iter();
                    let waiters =
                        waiters.map(|waiter| Waiter::new(LockId::from_stored(waiter.lock_id.as_str()), 1));
                    Record::new(Kind::Mutex, 1)
                        .with_name(name.clone())
                        .with_holders(entry.holder(now).into_iter().collect())
                        .with_waiters(waiters.collect())
                })
                .collect()
        })
    }

    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>> {
        self.transaction(|state, now| {
            let entry = state.0.entry(resource.name().to_owned()).or_default();
            let holder = entry.holder(now);
            entry.holder = None;
            holder.into_iter().collect()
        })
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let mut findings = vec![Finding::ok("the folder can be used")];
        if self.dir.join("doctor.warn").exists() {
            findings.push(Finding::warning("it loses locks on command", "use a real store"));
        }
        Ok(findings)
    }
}

#[async_trait]
impl LeaseStore for TestStore {
    async fn try_acquire(&self, claims: &[Claim]) -> Batch<Attempt> {
        self.fault("acquire").await?;
        self.transaction(|state, now| {
            let mut entry = |claim: &Claim| {
                Ok(state.0.entry(claim.resource.name().to_owned()).or_default().try_acquire(claim, now))
            };
            claims.iter().map(&mut entry).collect()
        })
    }

    async fn renew(&self, leases: &[Lease]) -> Batch<Renewal> {
        self.fault("renew").await?;
        self.transaction(|state, now| {
            let mut entry = |lease: &Lease| {
                Ok(state.0.entry(lease.resource.name().to_owned()).or_default().renew(lease, now))
            };
            leases.iter().map(&mut entry).collect()
        })
    }

    async fn release(&self, leases: &[Lease]) -> Batch<Released> {
        self.fault("release").await?;
        self.transaction(|state, _| {
            let mut entry = |lease: &Lease| {
                Ok(state.0.entry(lease.resource.name().to_owned()).or_default().release(lease))
            };
            leases.iter().map(&mut entry).collect()
        })
    }

    async fn subscribe(&self, _: &Inbox) -> Result<WakeStream> {
        Err(Error::new(ErrorKind::Unsupported, "the test store has no wake-ups"))
    }
}
