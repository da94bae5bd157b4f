//! The scripts, and a call of one of them.

use redis::{Cmd, RedisWrite, ToRedisArgs};

use crate::keys::{Key, ResourceKeys};

/// A script as the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
    /// How many values it answers for each item.
    pub(crate) width: usize,
    /// Whether it takes many locks by columns.
    columns: bool,
}

impl Script {
    fn new(header: &Header, text: &str, width: usize, columns: bool) -> Self {
        let text = format!("{}{text}", header.prelude());
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Script { text, sha, width, columns }
    }
}

/// All scripts of a store, with what it says of itself in front of them.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) inspect: Script,
}

/// One script out of its files: first what does the frequent cases, then everything else. `width`: how many keys a
/// lock has.
macro_rules! script {
    ($last:literal, width: $width:literal, one: [$($one:literal)?], quick: [$($quick:literal)?]) => {
        concat!(
            "local WIDTH = ", $width, "\n",
            include_str!("lua/start.lua"),
            $(include_str!($one),)?
            include_str!("lua/common.lua"),
            $(include_str!("lua/columns.lua"), include_str!($quick),)?
            include_str!("lua/each.lua"),
            include_str!("lua/lock.begin.lua"),
            include_str!("lua/queue.lua"),
            include_str!("lua/lock.lua"),
            include_str!("lua/lock.end.lua"),
            include_str!("lua/queue.lua"),
            include_str!("lua/pool.lua"),
            include_str!("lua/pool.end.lua"),
            include_str!($last)
        )
    };
}

const ACQUIRE: &str =
    script!("lua/acquire.lua", width: 3, one: ["lua/acquire.one.lua"], quick: ["lua/acquire.quick.lua"]);
const RENEW: &str =
    script!("lua/renew.lua", width: 2, one: ["lua/renew.one.lua"], quick: ["lua/renew.quick.lua"]);
const RELEASE: &str =
    script!("lua/release.lua", width: 3, one: ["lua/release.one.lua"], quick: ["lua/release.quick.lua"]);
const INSPECT: &str = script!("lua/inspect.lua", width: 3, one: [], quick: []);

impl Scripts {
    pub(crate) fn new(header: &Header) -> Self {
        Scripts {
            acquire: Script::new(header, ACQUIRE, 2, true),
            renew: Script::new(header, RENEW, 1, true),
            release: Script::new(header, RELEASE, 1, true),
            inspect: Script::new(header, INSPECT, 1, false),
        }
    }
}

/// What an item is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word<'a> {
    Text(&'a str),
    Number(u64),
}

impl ToRedisArgs for Word<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        match self {
            Word::Text(text) => out.write_arg(text.as_bytes()),
            Word::Number(number) => number.write_redis_args(out),
        }
    }
}

/// Which keys of a resource a script wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of them.
    Whole,
    /// Not the queue of a mutex.
    Holder,
}

/// One item of a call: its keys, all in one slot, and what the script is told about it.
#[derive(Clone, Debug)]
pub(crate) struct Item<'a> {
    pub(crate) keys: ResourceKeys<'a>,
    pub(crate) scope: Scope,
    /// Behind those that are used stand the ones that mean the same as none.
    pub(crate) words: [Word<'a>; MOST_WORDS],
    pub(crate) used: usize,
}

/// How many words an item has at most.
pub(crate) const MOST_WORDS: usize = 8;

impl<'a> Item<'a> {
    fn keys(&self) -> impl Iterator<Item = Key<'a>> {
        [self.keys.plain(), Some(self.keys.record()), self.line()].into_iter().flatten()
    }

    fn line(&self) -> Option<Key<'a>> {
        self.keys.line().filter(|_| self.scope == Scope::Whole)
    }
}

/// How many bytes at the end of a lock id tell it from what another program wrote. With so many the record of an unused
/// name is one small allocation (48 bytes, a string of 28 included).
const MARK: usize = 12;

/// What the scripts of a store know about it.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) channel: String,
    pub(crate) retention: u64,
    pub(crate) window: u64,
    /// Whether PUBLISH counts every subscriber there is.
    pub(crate) counts: bool,
}

impl Header {
    /// The first line of every script.
    fn prelude(&self) -> String {
        let Header { channel, retention, window, counts } = self;
        // Any byte that could mean something to Lua as its number.
        let quoted: String = channel.bytes().map(|byte| format!("\\{byte:03}")).collect();
        let (short, life) = (retention / 8, retention + retention / 8);
        format!(
            "local CHANNEL, RETENTION, WINDOW, COUNTS, SHORT, LIFE, MARK = \
             '{quoted}', {retention}, {window}, {counts}, {short}, '{life}', {MARK}\n"
        )
    }
}

/// Whether the server has the script already, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Hash,
    Text,
}

/// The command that calls a script for some items. `deadline`: after this moment of the server's clock an
/// acquisition is refused; zero if never.
pub(crate) fn command(script: &Script, by: By, deadline: u64, items: &[&Item<'_>]) -> Cmd {
    let keys: usize = items.iter().map(|item| item.keys().count()).sum();
    let words: usize = items.iter().map(|item| item.used).sum();
    let mut command = Cmd::with_capacity(5 + keys + words, 256 + 64 * (keys + words));
    match by {
        By::Hash => command.arg("EVALSHA").arg(&script.sha),
        By::Text => command.arg("EVAL").arg(&script.text),
    };
    command.arg(keys);
    if script.columns && items.len() > 1 && items.iter().all(|item| item.keys.plain().is_some()) {
        by_columns(&mut command, deadline, items);
    } else {
        by_rows(&mut command, deadline, items);
    }
    command
}

/// The items one after the other.
fn by_rows(command: &mut Cmd, deadline: u64, items: &[&Item<'_>]) {
    for item in items {
        for key in item.keys() {
            command.arg(key);
        }
    }
    command.arg(deadline);
    for item in items {
        for word in &item.words[..item.used] {
            command.arg(word);
        }
    }
}

/// Locks by columns: what is the same for all of them is said once. Each word takes the server time to read.
fn by_columns(command: &mut Cmd, deadline: u64, items: &[&Item<'_>]) {
    for key in items.iter().filter_map(|item| item.keys.plain()) {
        command.arg(key);
    }
    for item in items {
        command.arg(item.keys.record());
    }
    for key in items.iter().filter_map(|item| item.line()) {
        command.arg(key);
    }
    command.arg(deadline);
    let used = items.iter().map(|item| item.used).max().unwrap_or(0);
    let differs = |column: usize| items.iter().any(|item| item.words[column] != items[0].words[column]);
    let mut letters = [b'1'; MOST_WORDS];
    for (column, letter) in letters[..used].iter_mut().enumerate() {
        if differs(column) {
            *letter = b'n';
        }
    }
    command.arg(&letters[..used]);
    for (column, letter) in letters[..used].iter().enumerate() {
        let said = if *letter == b'n' { items } else { &items[..1] };
        for item in said {
            command.arg(item.words[column]);
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::Kind;

    use super::*;
    use crate::keys::Keys;

    fn sent(script: &Script, items: &[Item<'_>]) -> Vec<String> {
        let items: Vec<&Item<'_>> = items.iter().collect();
        let command = command(script, By::Hash, 7, &items);
        let words = command.args_iter().skip(2).map(|arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).replace("distlock:", ""),
            other => panic!("{other:?}"),
        });
        words.collect()
    }

    fn item<'a>(keys: &'a Keys, kind: Kind, name: &'a str, said: &[Word<'a>]) -> Item<'a> {
        let mut words = [Word::Number(0); MOST_WORDS];
        words[..said.len()].copy_from_slice(said);
        Item { keys: keys.of(kind, name), scope: Scope::Whole, words, used: said.len() }
    }

    #[test]
    fn what_all_locks_have_in_common_is_said_once() {
        let keys = Keys::new("{p}").unwrap();
        let header = Header { channel: String::new(), retention: 1, window: 1, counts: true };
        let scripts = Scripts::new(&header);
        let lock = |name, id, ms| {
            item(&keys, Kind::Mutex, name, &[Word::Text("o"), Word::Text(id), Word::Number(ms)])
        };
        let (a, b, c) = (lock("a", "1", 30), lock("b", "2", 30), lock("c", "3", 40));
        let columns =
            ["6", "{p}a", "{p}b", "{p}\u{fffd}m:a", "{p}\u{fffd}m:b", "{p}\u{fffd}w:a", "{p}\u{fffd}w:b"];
        let expected =
            |words: &[&str]| columns.iter().chain(words).map(ToString::to_string).collect::<Vec<_>>();
        let both = [a.clone(), b.clone()];
        assert_eq!(sent(&scripts.acquire, &both), expected(&["7", "1n1", "o", "1", "2", "30"]));
        let three = sent(&scripts.acquire, &[a.clone(), b, c]);
        assert_eq!(three[10..], ["7", "1nn", "o", "1", "2", "3", "30", "30", "40"]);
        // A lock of its own, and beside a pool, goes as it is.
        let one = sent(&scripts.acquire, std::slice::from_ref(&a));
        assert_eq!(one[4..], ["7", "o", "1", "30"]);
        let pool = item(&keys, Kind::Semaphore, "s", &[Word::Text("pg"), Word::Text("4")]);
        let mixed = sent(&scripts.acquire, &[a, pool]);
        assert_eq!(mixed[5..], ["7", "o", "1", "30", "pg", "4"]);
        assert_eq!(sent(&scripts.inspect, &both)[7], "7");
        assert_eq!(sent(&scripts.inspect, &both)[8], "o");
    }
}
