//! What a lock is about: its kind, its name, who asks for it and the token of a grant.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::store::Inbox;

/// The longest name that every store accepts, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 4096;

/// The weight of a writer, and so the capacity of the pool that is a reader-writer lock: a reader weighs 1,
/// a writer weighs everything.
pub const WRITER_WEIGHT: u32 = 1 << 30;

/// The largest capacity a semaphore may have. Kept below [`WRITER_WEIGHT`] so that every store can keep
/// weights in a signed 32-bit column.
pub const MAX_PERMITS: u32 = WRITER_WEIGHT - 1;

/// Which primitive a resource belongs to. Two resources of one name and of different kinds never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time.
    Mutex,
    /// Many readers or one writer.
    RwLock,
    /// At most *capacity* permits in the whole fleet.
    Semaphore,
    /// The queue in front of a fair mutex: a pool of one. The engine holds it beside the mutex itself, so
    /// that fair users are served in order and still exclude plain users.
    FairQueue,
}

/// Which of the two records of a lease store a resource is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// One holder, and beside it a short list of who waits.
    Lock,
    /// Weighted holders and a first-come queue.
    Pool,
}

impl Kind {
    /// The kinds an operator can see, in the order in which they are listed.
    pub const VISIBLE: [Kind; 3] = [Kind::Mutex, Kind::RwLock, Kind::Semaphore];

    /// The word for this kind in output and in records: `mutex`, `rwlock`, `semaphore`, `turn`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::RwLock => "rwlock",
            Kind::Semaphore => "semaphore",
            Kind::FairQueue => "turn",
        }
    }

    /// The kind that [`as_str`](Kind::as_str) wrote, if it is one.
    #[must_use]
    pub fn parse(word: &str) -> Option<Kind> {
        match word {
            "mutex" => Some(Kind::Mutex),
            "rwlock" => Some(Kind::RwLock),
            "semaphore" => Some(Kind::Semaphore),
            "turn" => Some(Kind::FairQueue),
            _ => None,
        }
    }

    /// The record that keeps resources of this kind.
    #[must_use]
    pub const fn record(self) -> RecordKind {
        match self {
            Kind::Mutex => RecordKind::Lock,
            Kind::RwLock | Kind::Semaphore | Kind::FairQueue => RecordKind::Pool,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A kind and a name: what a claim is about. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    kind: Kind,
    name: Arc<str>,
}

impl Resource {
    /// A resource of this kind and name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the name is empty or longer than [`MAX_NAME_BYTES`].
    pub fn new(kind: Kind, name: impl Into<Arc<str>>) -> Result<Self> {
        let name = name.into();
        if name.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, format!("the name of a {kind} is empty"))
                .advise("give it a name of at least one character"));
        }
        if name.len() > MAX_NAME_BYTES {
            let length = name.len();
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the name of a {kind} has {length} bytes, and at most {MAX_NAME_BYTES} are allowed"),
            )
            .advise("use a shorter name, for instance a hash of the long one"));
        }
        Ok(Resource { kind, name })
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The name, as the user gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name, for one more owner of the same text: a store that keeps many holds need not keep their kind.
    #[must_use]
    pub fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

/// `mutex "orders/42"`: quoted, control characters escaped, long names cut, so that it fits into one line.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        let mut cut = self.name.chars();
        let head: String = cut.by_ref().take(SHOWN).collect();
        let more = if cut.next().is_some() { "…" } else { "" };
        write!(f, "{} {head:?}{more}", self.kind)
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of one acquisition: unique in time and space, never used twice, also not by one lock object.
///
/// It begins with a label such as `host:pid` so that people see who holds; the rest makes it unique.
#[derive(Clone)]
pub struct LockId {
    /// Its text, or those of several ids: a batch of renewals has thousands, each for a moment.
    text: Arc<str>,
    from: u32,
    /// [`TO_THE_END`] for the whole rest.
    to: u32,
}

const TO_THE_END: u32 = u32::MAX;

impl LockId {
    /// A lock id that was read back from a store.
    #[must_use]
    pub fn from_stored(text: impl Into<Arc<str>>) -> Self {
        LockId { text: text.into(), from: 0, to: TO_THE_END }
    }

    /// The whole text, as stores keep it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self.to {
            TO_THE_END => &self.text,
            to => self.text.get(self.from as usize..to as usize).unwrap_or_default(),
        }
    }

    /// The inbox of the engine that made this id, if one did: its ids are the name of its inbox and a number.
    #[must_use]
    pub fn inbox(&self) -> Option<Inbox> {
        let (prefix, number) = self.as_str().rsplit_once('-')?;
        let (_, entropy) = prefix.rsplit_once('#')?;
        let hexadecimal = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        (entropy.len() == 16 && hexadecimal(entropy) && hexadecimal(number)).then(|| Inbox::new(prefix))
    }

    /// The label in front: who holds, for people. The whole text if it is not one of ours.
    #[must_use]
    pub fn label(&self) -> &str {
        self.as_str().split_once('#').map_or(self.as_str(), |(label, _)| label)
    }

    /// What the holder said of itself behind its label
    /// ([`LocksBuilder::description`](crate::LocksBuilder::description)), if it did and the id is one of ours.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        let (_, rest) = self.as_str().split_once('#')?;
        let (description, _) = rest.rsplit_once('#')?;
        self.inbox().is_some().then_some(description)
    }
}

impl PartialEq for LockId {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for LockId {}

impl Hash for LockId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialOrd for LockId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The most digits of the number of a lock id.
const LONGEST_NUMBER: usize = 16;

/// Makes the lock ids of one process (or of one engine in it).
#[derive(Debug)]
pub struct LockIds {
    label: String,
    prefix: String,
    /// The process that made this. A forked child has the same prefix and counter, so it must not use them.
    process: u32,
    next: std::sync::atomic::AtomicU64,
}

impl LockIds {
    /// Ids that begin with this label and 64 bits of the operating system's entropy.
    #[must_use]
    pub fn new(label: &str) -> Self {
        LockIds {
            label: label.to_owned(),
            prefix: unique_prefix(label),
            process: std::process::id(),
            next: std::sync::atomic::AtomicU64::new(1),
        }
    }

    /// `host:pid` of this process.
    #[must_use]
    pub fn default_label() -> String {
        let host = gethostname::gethostname();
        let host: String = host
            .to_string_lossy()
            .chars()
            .map(|c| if c.is_ascii_graphic() && c != '#' { c } else { '-' })
            .collect();
        format!("{host}:{}", std::process::id())
    }

    /// The next id.
    #[must_use]
    pub fn next(&self) -> LockId {
        let n = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if std::process::id() != self.process {
            return LockId::from_stored(format!("{}-{n:x}", unique_prefix(&self.label)));
        }
        self.with_number(n)
    }

    /// The number of an id of this maker: all that a process with many holds needs to keep of each. `None` if it made another
    /// text, as a forked child does.
    pub(crate) fn number_of(&self, id: &LockId) -> Option<NonZeroU64> {
        number_behind(&self.prefix, id.as_str())
    }

    /// The id of this number.
    pub(crate) fn with_number(&self, n: u64) -> LockId {
        // One allocation of the right size: an id is made for every acquisition.
        let digits = (n.max(1).ilog2() / 4 + 1) as usize;
        let length = self.prefix.len() + 1 + digits;
        let mut text = [0_u8; 256];
        let Some(buffer) = text.get_mut(..length) else {
            return LockId::from_stored(format!("{}-{n:x}", self.prefix));
        };
        let (prefix, number) = buffer.split_at_mut(self.prefix.len());
        prefix.copy_from_slice(self.prefix.as_bytes());
        number[0] = b'-';
        for (place, digit) in number[1..].iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[(n >> (4 * place)) as usize & 0xf];
        }
        match std::str::from_utf8(buffer) {
            Ok(text) => LockId::from_stored(text),
            Err(_) => LockId::from_stored(format!("{}-{n:x}", self.prefix)),
        }
    }

    /// The ids of these numbers, for a short time: they share one allocation, which lives as long as any of them.
    pub(crate) fn with_numbers(&self, numbers: &[u64]) -> impl Iterator<Item = LockId> + use<> {
        let count = numbers.len();
        let mut texts = String::with_capacity(count * (self.prefix.len() + 1 + LONGEST_NUMBER));
        let mut ends = Vec::with_capacity(count);
        for n in numbers.iter().copied() {
            texts.push_str(&self.prefix);
            texts.push('-');
            let digits = n.max(1).ilog2() / 4 + 1;
            texts.extend(
                (0..digits)
                    .rev()
                    .map(|place| char::from(b"0123456789abcdef"[(n >> (4 * place)) as usize & 0xf])),
            );
            ends.push(texts.len());
        }
        let texts: Arc<str> = texts.into();
        let mut from = 0;
        ends.into_iter().map(move |end| {
            let start = std::mem::replace(&mut from, end);
            match (u32::try_from(start), u32::try_from(end)) {
                (Ok(from), Ok(to)) if to != TO_THE_END => LockId { text: Arc::clone(&texts), from, to },
                // More than four thousand million bytes of them.
                _ => LockId::from_stored(texts.get(start..end).unwrap_or_default()),
            }
        })
    }

    /// What all ids of this maker share: the address of this process for wake-ups.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// The number of an id that has this prefix. `None` if it has another form than [`LockIds`] gives it, so that no two texts have one
/// number.
pub(crate) fn number_behind(prefix: &str, id: &str) -> Option<NonZeroU64> {
    let digits = id.strip_prefix(prefix)?.strip_prefix('-')?;
    if digits.len() > LONGEST_NUMBER || digits.starts_with('0') {
        return None;
    }
    let number = digits.bytes().try_fold(0_u64, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(digit))
    });
    number.and_then(NonZeroU64::new)
}

/// A label with 64 bits that no seed and no forked child repeats.
fn unique_prefix(label: &str) -> String {
    let entropy = getrandom::u64().unwrap_or_else(|_| {
        // Without the operating system's entropy, the standard library's hash keys are the best there is.
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        hasher.write_u128(std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos()));
        hasher.finish()
    });
    format!("{label}#{entropy:016x}")
}

/// A number that is higher for each later grant of one resource: across release, expiry, crash of the holder,
/// forced release and restart of the store.
///
/// Give it to whatever the lock protects, and let that refuse a token lower than the highest it has seen
/// (see [`TokenGate`](crate::TokenGate)): then a holder that was paused beyond its expiry can do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// A token with this number; for stores, and for resources that read one back.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        FencingToken(number)
    }

    /// The number. It fits into a signed 64-bit integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The rule of every lease store, applied inside its atomic step: one more than the last token of the
    /// resource, or the server's clock in milliseconds if that is higher. The clock term keeps tokens rising
    /// after the record of an unused name was purged.
    #[must_use]
    pub const fn after(previous: Option<FencingToken>, server_clock_ms: u64) -> Self {
        match previous {
            Some(FencingToken(last)) if last >= server_clock_ms => FencingToken(last.saturating_add(1)),
            _ => FencingToken(server_clock_ms),
        }
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_goes_back_when_the_server_clock_does() {
        let first = FencingToken::after(None, 1_000);
        let second = FencingToken::after(Some(first), 400);
        let third = FencingToken::after(Some(second), 5_000);
        assert_eq!((first.get(), second.get(), third.get()), (1_000, 1_001, 5_000));
    }

    #[test]
    fn lock_ids_differ_and_show_who_holds() {
        let ids = LockIds::new("web-3:812");
        let (a, b) = (ids.next(), ids.next());
        assert_ne!(a, b);
        assert_eq!(a.label(), "web-3:812");
        assert_eq!(a.inbox().unwrap().as_str(), ids.prefix());
        for foreign in ["", "-", "x#-1", "a#0123456789abcdef-", "a#0123456789abcdeg-1", "0123456789abcdef-1"]
        {
            assert!(LockId::from_stored(foreign).inbox().is_none(), "{foreign:?}");
        }
        assert_ne!(LockIds::new("x").next(), LockIds::new("x").next());
        let described = LockIds::new("web-3:812#alice:backup.sh").next();
        assert_eq!((described.label(), described.description()), ("web-3:812", Some("alice:backup.sh")));
        assert!(described.inbox().is_some());
        assert_eq!(a.description(), None);
        assert_eq!(LockId::from_stored("a#b#c").description(), None, "not one of ours");
        let expected: Vec<String> = (3..300).map(|n| format!("{}-{n:x}", ids.prefix())).collect();
        assert_eq!((3..300).map(|_| ids.next().as_str().to_owned()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_lock_id_is_rebuilt_from_its_number_or_not_at_all() {
        let ids = LockIds::new("web-3:812");
        for n in [1, 9, 0xa, 0xff, 0x1234_5678, u64::MAX] {
            let id = ids.with_number(n);
            assert_eq!(ids.number_of(&id).map(NonZeroU64::get), Some(n));
        }
        let prefix = ids.prefix();
        for digits in ["", "0", "01", "A", "+1", "1g", "1-1", "10000000000000000"] {
            let other = LockId::from_stored(format!("{prefix}-{digits}"));
            assert_eq!(ids.number_of(&other), None, "{other:?}");
        }
        for other in [LockIds::new("web-3:812").next(), LockId::from_stored("x"), LockId::from_stored(prefix)]
        {
            assert_eq!(ids.number_of(&other), None, "{other:?}");
        }
    }

    #[test]
    fn lock_ids_that_share_an_allocation_are_the_same_as_others() {
        let ids = LockIds::new("wéb-3:812#é");
        let numbers = [1, 0xf, 0x10, 0xff, 0x1234_5678, u64::MAX];
        let shared: Vec<LockId> = ids.with_numbers(&numbers).collect();
        let alone: Vec<LockId> = numbers.iter().map(|n| ids.with_number(*n)).collect();
        assert_eq!(shared, alone);
        let texts =
            |ids: &[LockId]| ids.iter().map(|id| format!("{id} {id:?} {}", id.label())).collect::<Vec<_>>();
        assert_eq!(texts(&shared), texts(&alone));
        for (at, id) in shared.iter().enumerate() {
            assert_eq!(ids.number_of(id).map(NonZeroU64::get), Some(numbers[at]));
            assert_eq!((id.inbox(), id.description()), (alone[at].inbox(), alone[at].description()));
            for (other, lone) in alone.iter().enumerate() {
                assert_eq!(id.cmp(lone), alone[at].cmp(lone));
                assert_eq!(id == lone, at == other);
            }
        }
        let both: std::collections::HashSet<LockId> = shared.into_iter().chain(alone).collect();
        assert_eq!(both.len(), numbers.len(), "equal ids have equal hashes");
        assert_eq!(ids.with_numbers(&[]).count(), 0);
    }

    #[test]
    fn lock_ids_do_not_repeat_when_the_random_generator_is_seeded_alike() {
        let seeded = || {
            fastrand::seed(7);
            LockIds::new("web-3:812").next()
        };
        assert_ne!(seeded(), seeded());
    }

    #[test]
    fn a_forked_child_does_not_repeat_the_lock_ids_of_its_parent() {
        let parent = LockIds::new("web-3:812");
        // What fork leaves the child with: the same prefix and counter, in another process.
        let child = LockIds {
            label: parent.label.clone(),
            prefix: parent.prefix.clone(),
            process: parent.process.wrapping_add(1),
            next: std::sync::atomic::AtomicU64::new(1),
        };
        let ids = [child.next(), parent.next(), child.next(), parent.next()];
        assert_eq!(ids.each_ref().map(|id| parent.number_of(id).is_some()), [false, true, false, true]);
        for (at, id) in ids.iter().enumerate() {
            assert!(!ids[..at].contains(id), "{ids:?}");
            assert_eq!(id.label(), "web-3:812");
        }
        assert_ne!(ids[0].as_str().rsplit_once('-').unwrap().0, parent.prefix());
    }

    #[test]
    fn a_name_is_shown_on_one_line_however_long_or_strange() {
        let shown = Resource::new(Kind::Mutex, "a\nb\u{7}").unwrap().to_string();
        assert_eq!(shown, r#"mutex "a\nb\u{7}""#);
        assert!(Resource::new(Kind::Mutex, "x".repeat(4096)).unwrap().to_string().len() < 120);
    }

    #[test]
    fn empty_and_too_long_names_are_refused_before_anything_is_sent() {
        for bad in [String::new(), "x".repeat(MAX_NAME_BYTES + 1)] {
            let error = Resource::new(Kind::Mutex, bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }
}
