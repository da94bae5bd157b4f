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
}

impl Script {
    fn new(header: &Header, text: &str, width: usize) -> Self {
        let text = format!("{}{text}", header.prelude());
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Script { text, sha, width }
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

/// One script out of its files: first what does the frequent cases, then everything else.
macro_rules! script {
    ($last:literal, one: [$($one:literal)?], quick: [$($quick:literal)?]) => {
        concat!(
            include_str!("lua/start.lua"),
            $(include_str!($one),)?
            include_str!("lua/common.lua"),
            $(include_str!($quick),)?
            include_str!("lua/each.lua"),
            include_str!("lua/begin.lua"),
            include_str!("lua/queue.lua"),
            include_str!("lua/lock.lua"),
            include_str!("lua/pool.lua"),
            include_str!("lua/end.lua"),
            include_str!($last)
        )
    };
}

const ACQUIRE: &str =
    script!("lua/acquire.lua", one: ["lua/acquire.one.lua"], quick: ["lua/acquire.quick.lua"]);
const RENEW: &str = script!("lua/renew.lua", one: [], quick: ["lua/renew.quick.lua"]);
const RELEASE: &str =
    script!("lua/release.lua", one: ["lua/release.one.lua"], quick: ["lua/release.quick.lua"]);
const INSPECT: &str = script!("lua/inspect.lua", one: [], quick: []);

impl Scripts {
    pub(crate) fn new(header: &Header) -> Self {
        Scripts {
            acquire: Script::new(header, ACQUIRE, 2),
            renew: Script::new(header, RENEW, 1),
            release: Script::new(header, RELEASE, 1),
            inspect: Script::new(header, INSPECT, 1),
        }
    }
}

/// What an item is made of.
#[derive(Clone, Copy, Debug)]
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
    pub(crate) words: [Word<'a>; 7],
    pub(crate) used: usize,
}

impl<'a> Item<'a> {
    fn keys(&self) -> impl Iterator<Item = Key<'a>> {
        let line = self.keys.line().filter(|_| self.scope == Scope::Whole);
        [self.keys.plain(), Some(self.keys.record()), line].into_iter().flatten()
    }
}

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
        let (short, life) = (retention / 4, retention + retention / 4);
        format!(
            "local CHANNEL, RETENTION, WINDOW, COUNTS, SHORT, LIFE = '{quoted}', {retention}, {window}, {counts}, {short}, '{life}'\n"
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
    let mut command = Cmd::with_capacity(4 + keys + words, 256 + 64 * (keys + words));
    match by {
        By::Hash => command.arg("EVALSHA").arg(&script.sha),
        By::Text => command.arg("EVAL").arg(&script.text),
    };
    command.arg(keys);
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
    command
}
