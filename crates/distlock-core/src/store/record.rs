//! What a store holds, as `inspect` tells it: records, their holders and their waiters.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::resource::{FencingToken, Kind, LockId, Resource};

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

/// A holder of a resource.
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
    /// What else its session holds, on a store where a forced release ends the session and with it all of that. Set by a forced
    /// release, and by an inspection that asks for it ([`Query::with_also_held`]).
    pub also_held: Vec<Resource>,
}

impl Holder {
    /// A holder of this weight.
    #[must_use]
    pub fn new(lock_id: LockId, weight: u32) -> Self {
        Holder { lock_id, token: None, acquired_at: None, expires_in: None, weight, also_held: Vec::new() }
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

    /// Adds what else its session holds.
    #[must_use]
    pub fn with_also_held(mut self, also_held: Vec<Resource>) -> Self {
        self.also_held = also_held;
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

/// A waiter for a resource.
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
    /// The holders.
    pub holders: Vec<Holder>,
    /// The waiters, in their order.
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
    /// With what else the sessions of holders hold ([`Holder::also_held`]); the store reads all its locks for that.
    pub also_held: bool,
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

    /// With what else the sessions of holders hold.
    #[must_use]
    pub fn with_also_held(mut self) -> Self {
        self.also_held = true;
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
