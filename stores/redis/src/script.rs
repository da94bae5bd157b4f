//! The scripts, and a call of one of them.

use std::sync::LazyLock;

use redis::{Cmd, RedisWrite, ToRedisArgs};

use crate::keys::{Key, ResourceKeys};

/// A script as the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    sha: String,
    /// How many values it answers for each item.
    pub(crate) width: usize,
}

impl Script {
    fn new(text: &'static str, width: usize) -> Self {
        Script { text, sha: redis::Script::new(text).get_hash().to_owned(), width }
    }
}

macro_rules! script {
    ($last:literal $(, after $quick:literal)?) => {
        concat!(
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

pub(crate) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(script!("lua/acquire.lua", after "lua/acquire.quick.lua"), 2));
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(script!("lua/renew.lua", after "lua/renew.quick.lua"), 1));
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(script!("lua/release.lua", after "lua/release.quick.lua"), 1));
pub(crate) static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(script!("lua/inspect.lua"), 1));

/// What an item or a header is made of.
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

/// What a script is told about all items.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) channel: String,
    pub(crate) retention: u64,
    pub(crate) window: u64,
    /// Whether PUBLISH counts every subscriber there is.
    pub(crate) counts: bool,
}

/// Whether the server has the script already, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Hash,
    Text,
}

/// The command that calls a script for some items. `deadline`: after this moment of the server's clock an
/// acquisition is refused; zero if never.
pub(crate) fn command(script: &Script, by: By, header: &Header, deadline: u64, items: &[&Item<'_>]) -> Cmd {
    let keys: usize = items.iter().map(|item| item.keys().count()).sum();
    let words: usize = items.iter().map(|item| item.used).sum();
    let mut command = Cmd::with_capacity(8 + keys + words, 256 + 64 * (keys + words));
    match by {
        By::Hash => command.arg("EVALSHA").arg(&script.sha),
        By::Text => command.arg("EVAL").arg(script.text),
    };
    command.arg(keys);
    for item in items {
        for key in item.keys() {
            command.arg(key);
        }
    }
    command.arg(&header.channel).arg(header.retention).arg(header.window);
    command.arg(u8::from(header.counts)).arg(deadline);
    for item in items {
        for word in &item.words[..item.used] {
            command.arg(word);
        }
    }
    command
}
