//! What every store tells about itself and what operators may ask of it.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{FencingToken, Kind, LockId, Resource};

/// How a store serves waiters of different processes in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    /// Not at all: `fair()` is refused.
    None,
    /// Its pool record has a queue: the engine puts a [`Kind::FairQueue`] in front of a fair mutex.
    Queue,
    /// The server itself queues waiters of a mutex.
    Native,
}

/// What a store can do. Asking for anything else is an [`ErrorKind::Unsupported`] error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// Reader-writer locks.
    pub rw_lock: bool,
    /// Semaphores.
    pub semaphore: bool,
    /// First come, first served across the fleet.
    pub fairness: Fairness,
    /// A waiting writer keeps later readers out.
    pub writer_not_starved: bool,
    /// The store can wake a waiter; otherwise waiters poll.
    pub push: bool,
    /// `break_lock` works.
    pub forced_release: bool,
    /// `inspect` knows who waits.
    pub shows_waiters: bool,
    /// A holder that dies frees the lock at once, not at its expiry.
    pub frees_on_crash: bool,
    /// What was granted and counted survives a restart of the store.
    pub durable: bool,
    /// How many items one request may carry.
    pub max_batch: usize,
    /// How many acquisitions, and how many releases, of a process may be under way at once. As soon as there are more
    /// tasks than that, what comes while a request is under way goes out together as the next one. One where a request
    /// costs about as much as a whole batch; more where the way there and back is most of it. A request that was not
    /// answered within half of the request time-out does not count any more.
    pub max_in_flight: usize,
    /// Why something above is missing, for the error: `("semaphores", "two majorities may …")`.
    pub reasons: &'static [(&'static str, &'static str)],
}

impl Capabilities {
    /// Everything, in batches of a thousand, one at a time; change what differs.
    #[must_use]
    pub const fn all() -> Self {
        Capabilities {
            rw_lock: true,
            semaphore: true,
            fairness: Fairness::Queue,
            writer_not_starved: true,
            push: true,
            forced_release: true,
            shows_waiters: true,
            frees_on_crash: false,
            durable: true,
            max_batch: 1000,
            max_in_flight: 1,
            reasons: &[],
        }
    }

    /// Whether the store has this kind at all.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Mutex => true,
            Kind::RwLock => self.rw_lock,
            Kind::Semaphore => self.semaphore,
            Kind::FairQueue => self.fairness == Fairness::Queue,
        }
    }

    /// The error for something the store does not have, with its reason where one is given.
    #[must_use]
    pub fn unsupported(&self, what: &'static str) -> Error {
        let reason = self.reasons.iter().find(|(name, _)| *name == what).map(|(_, reason)| *reason);
        let detail = match reason {
            Some(reason) => format!("{what} are not supported: {reason}"),
            None => format!("{what} are not supported"),
        };
        Error::new(ErrorKind::Unsupported, detail).advise("use another store for them")
    }
}

/// Exclusive or shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone: a mutex or a writer.
    Exclusive,
    /// With others: a reader or a permit.
    Shared,
}

impl Mode {
    /// `exclusive` or `shared`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }

    /// The mode of a claim of this kind and weight.
    #[must_use]
    pub fn of(kind: Kind, weight: u32) -> Self {
        match kind {
            Kind::Mutex | Kind::FairQueue => Mode::Exclusive,
            Kind::RwLock if weight > 1 => Mode::Exclusive,
            Kind::RwLock | Kind::Semaphore => Mode::Shared,
        }
    }
}

/// One who holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The lock id; its label says who.
    pub lock_id: LockId,
    /// The token of the grant, where the store keeps it.
    pub token: Option<FencingToken>,
    /// When it was granted, by the store's clock, where it knows.
    pub acquired_at: Option<SystemTime>,
    /// The time left, for stores with leases.
    pub expires_in: Option<Duration>,
    /// The weight.
    pub weight: u32,
}

impl Holder {
    /// A holder of this weight.
    #[must_use]
    pub fn new(lock_id: LockId, weight: u32) -> Self {
        Holder { lock_id, token: None, acquired_at: None, expires_in: None, weight }
    }

    /// For how long it has held, by the clock of this machine; zero if that is behind the store's. `None` where the store
    /// does not know.
    #[must_use]
    pub fn held_for(&self) -> Option<Duration> {
        self.acquired_at.map(|since| SystemTime::now().duration_since(since).unwrap_or_default())
    }

    /// Several holders in one line: `web-3:812 for 4m 10s, web-4:77 and 2 others`.
    #[must_use]
    pub fn list(holders: &[Holder]) -> String {
        const NAMED: usize = 3;
        let mut named: Vec<String> = holders.iter().take(NAMED).map(ToString::to_string).collect();
        let others = match holders.len().saturating_sub(NAMED) {
            0 => named.pop().unwrap_or_default(),
            1 => "1 other".to_owned(),
            others => format!("{others} others"),
        };
        if named.is_empty() { others } else { format!("{} and {others}", named.join(", ")) }
    }

    /// Adds the token.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<Option<FencingToken>>) -> Self {
        self.token = token.into();
        self
    }

    /// Adds the moment of the grant.
    #[must_use]
    pub fn with_acquired_at(mut self, acquired_at: impl Into<Option<SystemTime>>) -> Self {
        self.acquired_at = acquired_at.into();
        self
    }

    /// Adds the time left.
    #[must_use]
    pub fn with_expires_in(mut self, expires_in: impl Into<Option<Duration>>) -> Self {
        self.expires_in = expires_in.into();
        self
    }
}

/// The label of its lock id and the time held: `web-3:812 for 4m 10s`. What another program wrote is escaped.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.lock_id.label().escape_debug())?;
        match self.held_for() {
            Some(held) => write!(f, " for {}", Rounded(held)),
            None => Ok(()),
        }
    }
}

/// A duration for people: `420ms`, `3.2s`, `42s`, `4m 10s`, `2h 5m`, `3d 4h`.
struct Rounded(Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0 => write!(f, "{}ms", self.0.as_millis()),
            1..=9 => write!(f, "{seconds}.{}s", self.0.subsec_millis() / 100),
            10..=59 => write!(f, "{seconds}s"),
            60..=3599 => write!(f, "{}m {}s", seconds / 60, seconds % 60),
            3600..=86_399 => write!(f, "{}h {}m", seconds / 3600, seconds / 60 % 60),
            _ => write!(f, "{}d {}h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

/// One who waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiter {
    /// The lock id; its label says who.
    pub lock_id: LockId,
    /// The weight asked for.
    pub weight: u32,
}

impl Waiter {
    /// A waiter that asks for this weight.
    #[must_use]
    pub fn new(lock_id: LockId, weight: u32) -> Self {
        Waiter { lock_id, weight }
    }
}

/// A resource that is held or waited for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Record {
    /// The kind.
    pub kind: Kind,
    /// The name, or `None` where the store keeps only a hash of it; then `key` has the hash.
    pub name: Option<String>,
    /// The store's own key where there is no name.
    pub key: Option<String>,
    /// The capacity: 1 for a mutex.
    pub capacity: u32,
    /// Those who hold.
    pub holders: Vec<Holder>,
    /// Those who wait, in their order.
    pub waiters: Vec<Waiter>,
}

impl Record {
    /// A record of this capacity without a name, holders or waiters.
    #[must_use]
    pub fn new(kind: Kind, capacity: u32) -> Self {
        Record { kind, name: None, key: None, capacity, holders: Vec::new(), waiters: Vec::new() }
    }

    /// Adds the name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<Option<String>>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds the store's own key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Option<String>>) -> Self {
        self.key = key.into();
        self
    }

    /// Adds the holders.
    #[must_use]
    pub fn with_holders(mut self, holders: Vec<Holder>) -> Self {
        self.holders = holders;
        self
    }

    /// Adds the waiters, in their order.
    #[must_use]
    pub fn with_waiters(mut self, waiters: Vec<Waiter>) -> Self {
        self.waiters = waiters;
        self
    }
}

/// What to list.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Query {
    /// Only this kind.
    pub kind: Option<Kind>,
    /// Only names that begin like this.
    pub prefix: Option<String>,
    /// Only this name.
    pub name: Option<String>,
}

impl Query {
    /// Everything of one name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Query { name: Some(name.into()), ..Query::default() }
    }

    /// Everything whose name begins like this.
    #[must_use]
    pub fn prefixed(prefix: impl Into<String>) -> Self {
        Query { prefix: Some(prefix.into()), ..Query::default() }
    }

    /// Only this kind.
    #[must_use]
    pub fn with_kind(mut self, kind: impl Into<Option<Kind>>) -> Self {
        self.kind = kind.into();
        self
    }

    /// Whether a resource is asked for. Stores may filter coarsely and leave the rest to this.
    #[must_use]
    pub fn matches(&self, kind: Kind, name: &str) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
            && self.name.as_deref().is_none_or(|wanted| wanted == name)
            && self.prefix.as_deref().is_none_or(|prefix| name.starts_with(prefix))
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// All is well.
    Ok,
    /// Dangerous or slow; `advice` says how to mend it.
    Warning,
}

/// One thing that `doctor` found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// How bad.
    pub level: Level,
    /// What was found, in one line.
    pub what: String,
    /// How to mend it.
    pub advice: Option<String>,
}

impl Finding {
    /// Something that is as it should be.
    #[must_use]
    pub fn ok(what: impl Into<String>) -> Self {
        Finding { level: Level::Ok, what: what.into(), advice: None }
    }

    /// Something dangerous, and how to mend it.
    #[must_use]
    pub fn warning(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { level: Level::Warning, what: what.into(), advice: Some(advice.into()) }
    }
}

/// What every store has, whichever way it keeps its locks.
#[async_trait]
pub trait Store: Send + Sync + Debug + 'static {
    /// What and where, without secrets: `redis 10.0.0.7:6379`.
    fn describe(&self) -> String;

    /// What it can do. The answer must not change during the life of the store.
    fn capabilities(&self) -> Capabilities;

    /// What is held or waited for now. Expired holders are left out.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    async fn inspect(&self, query: &Query) -> Result<Vec<Record>>;

    /// Takes the resource from all its holders, whoever they are, and returns them. The next token is still
    /// higher; the holders' guards turn lost at their next renewal.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], naming the holder and what to do, where the store has no such thing.
    async fn break_lock(&self, resource: &Resource) -> Result<Vec<Holder>>;

    /// Connects, and says what was found and what is dangerous there.
    ///
    /// # Errors
    /// If the store cannot be reached at all.
    async fn doctor(&self) -> Result<Vec<Finding>>;

    /// A copy of the open file that a held lock lives with, where locks are the kernel's: the lock stays held for as long
    /// as any copy is open, also if this process dies, and a release frees it whatever copies there are. `None` for
    /// locks that live elsewhere, and for a lock id that holds nothing.
    #[cfg(unix)]
    fn descriptor(&self, lock_id: &LockId) -> Option<std::os::fd::OwnedFd> {
        let _ = lock_id;
        None
    }

    /// Gives the store the engine's clock, once, before the first request. A store that sets deadlines of its own
    /// ([`Session::until`](super::Session::until)) measures them with it.
    fn use_clock(&self, clock: Arc<dyn Clock>) {
        let _ = clock;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(label: &str, seconds: u64) -> Holder {
        let since = SystemTime::now() - Duration::from_secs(seconds);
        Holder::new(LockId::from_stored(format!("{label}#0123456789abcdef-1")), 1).with_acquired_at(since)
    }

    #[test]
    fn holders_are_shown_in_one_line_however_many_they_are() {
        let all: Vec<Holder> = [("a:1", 250), ("b:2", 42), ("c:3", 7500), ("d:4", 1), ("e:5", 1)]
            .map(|(label, seconds)| holder(label, seconds))
            .into();
        assert_eq!(Holder::list(&all[..1]), "a:1 for 4m 10s");
        assert_eq!(Holder::list(&all[..2]), "a:1 for 4m 10s and b:2 for 42s");
        assert_eq!(Holder::list(&all[..4]), "a:1 for 4m 10s, b:2 for 42s, c:3 for 2h 5m and 1 other");
        assert!(Holder::list(&all).ends_with(" and 2 others"));
        assert_eq!(Holder::list(&[]), "");
    }

    #[test]
    fn a_holder_of_another_program_cannot_break_the_line() {
        let foreign = Holder::new(LockId::from_stored("a\nb\u{7}"), 1);
        assert_eq!(foreign.to_string(), r"a\nb\u{7}");
    }
}
