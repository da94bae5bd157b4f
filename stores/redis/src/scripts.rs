//! The Lua scripts: one for each verb and kind of record, how they are called and what they reply.

use std::time::Duration;

use distlock_core::store::support::batch::all_failed;
use distlock_core::store::support::{errors, queue_pause};
use distlock_core::{Error, ErrorKind, RecordKind, Result};
use redis::Value;

use crate::error;

/// What a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptVerb {
    Acquire,
    Renew,
    Release,
    Inspect,
    Break,
}

impl ScriptVerb {
    /// How many values a script replies with for each item.
    pub(crate) const fn reply_width(self) -> usize {
        match self {
            ScriptVerb::Acquire => 2,
            ScriptVerb::Renew | ScriptVerb::Release | ScriptVerb::Inspect | ScriptVerb::Break => 1,
        }
    }
}

/// An argument of a script that is the same for all items of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// The moment of the server's clock after which the script must do nothing, in µs.
    Deadline,
    /// How long a pushed grant lasts, in ms.
    GrantWindow,
}

/// A script as the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) verb: ScriptVerb,
    pub(crate) arguments: &'static [Argument],
    pub(crate) source: String,
    pub(crate) sha: String,
}

/// All scripts of a store.
#[derive(Debug)]
pub(crate) struct Scripts {
    lock: VerbScripts,
    pool: VerbScripts,
}

#[derive(Debug)]
struct VerbScripts {
    acquire: Script,
    renew: Script,
    release: Script,
    inspect: Script,
    break_lock: Script,
}

/// What the scripts of a store know about it. It is the same for every call, so it is written into their source: an argument
/// would be parsed with each call.
#[derive(Clone, Debug)]
pub(crate) struct ScriptSettings {
    /// The prefix of the channel of an inbox.
    pub(crate) channel: String,
    /// How long the last token is kept, in ms.
    pub(crate) retention: u64,
    /// Whether PUBLISH counts all subscribers. In a Cluster it counts those of one node.
    pub(crate) counts_subscribers: bool,
}

/// Files that others include by a line `-- include FILE`.
const INCLUDES: &[(&str, &str)] = &[
    ("clock.lua", include_str!("lua/clock.lua")),
    ("tokens.lua", include_str!("lua/tokens.lua")),
    ("batch.lua", include_str!("lua/batch.lua")),
    ("messages.lua", include_str!("lua/messages.lua")),
    ("lock_record.lua", include_str!("lua/lock_record.lua")),
    ("lock_handoff.lua", include_str!("lua/lock_handoff.lua")),
    ("pool_record.lua", include_str!("lua/pool_record.lua")),
    ("wait_queue.lua", include_str!("lua/wait_queue.lua")),
    ("inspection.lua", include_str!("lua/inspection.lua")),
];

impl Scripts {
    pub(crate) fn new(settings: &ScriptSettings) -> Self {
        use Argument::{Deadline, GrantWindow};
        let script = |verb, arguments, source| Script::new(settings, verb, arguments, source);
        Scripts {
            lock: VerbScripts {
                acquire: script(ScriptVerb::Acquire, &[Deadline], include_str!("lua/lock_acquire.lua")),
                renew: script(ScriptVerb::Renew, &[], include_str!("lua/lock_renew.lua")),
                release: script(ScriptVerb::Release, &[GrantWindow], include_str!("lua/lock_release.lua")),
                inspect: script(ScriptVerb::Inspect, &[], include_str!("lua/lock_inspect.lua")),
                break_lock: script(ScriptVerb::Break, &[GrantWindow], include_str!("lua/lock_break.lua")),
            },
            pool: VerbScripts {
                acquire: script(
                    ScriptVerb::Acquire,
                    &[Deadline, GrantWindow],
                    include_str!("lua/pool_acquire.lua"),
                ),
                renew: script(ScriptVerb::Renew, &[GrantWindow], include_str!("lua/pool_renew.lua")),
                release: script(ScriptVerb::Release, &[GrantWindow], include_str!("lua/pool_release.lua")),
                inspect: script(ScriptVerb::Inspect, &[], include_str!("lua/pool_inspect.lua")),
                break_lock: script(ScriptVerb::Break, &[GrantWindow], include_str!("lua/pool_break.lua")),
            },
        }
    }

    pub(crate) fn get(&self, verb: ScriptVerb, record: RecordKind) -> &Script {
        let scripts = match record {
            RecordKind::Lock => &self.lock,
            RecordKind::Pool => &self.pool,
        };
        match verb {
            ScriptVerb::Acquire => &scripts.acquire,
            ScriptVerb::Renew => &scripts.renew,
            ScriptVerb::Release => &scripts.release,
            ScriptVerb::Inspect => &scripts.inspect,
            ScriptVerb::Break => &scripts.break_lock,
        }
    }
}

impl Script {
    fn new(
        settings: &ScriptSettings,
        verb: ScriptVerb,
        arguments: &'static [Argument],
        source: &'static str,
    ) -> Self {
        let mut source = format!("{}{source}", settings.constants());
        for (file, text) in INCLUDES {
            source = source.replace(&format!("-- include {file}\n"), text);
        }
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Script { verb, arguments, source, sha }
    }
}

impl ScriptSettings {
    /// The first lines of every script.
    fn constants(&self) -> String {
        let ScriptSettings { channel, retention, counts_subscribers } = self;
        // Each byte as its number, so that none has a meaning in Lua.
        let channel: String = channel.bytes().map(|byte| format!("\\{byte:03}")).collect();
        format!(
            "local CHANNEL, RETENTION, KEPT, COUNTS = '{channel}', {retention}, '{retention}', {counts_subscribers}\n\
             local ASKS_EVERY, PAUSE_PER_WAITER, LONGEST_PAUSE = {}, {}, {}\n",
            queue_pause::ASKS_EVERY.as_millis(),
            queue_pause::PER_WAITER.as_millis(),
            queue_pause::LONGEST.as_millis(),
        )
    }
}

/// How a script is called.
#[derive(Debug)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'a Script,
    pub(crate) limit: Duration,
    /// How many replicas must confirm.
    pub(crate) replicas: u32,
}

impl ScriptCall<'_> {
    /// Whether the server must do nothing once the limit has passed.
    pub(crate) fn has_deadline(&self) -> bool {
        self.script.arguments.contains(&Argument::Deadline)
    }

    /// Whether a task of the user waits for the reply.
    pub(crate) fn is_waited_for(&self) -> bool {
        matches!(self.script.verb, ScriptVerb::Acquire | ScriptVerb::Release)
    }
}

/// The reply of a script for one item.
#[derive(Debug)]
pub(crate) struct ItemReply {
    pub(crate) values: [Value; 2],
    /// Whether as many replicas confirmed as were asked for.
    pub(crate) confirmed: bool,
}

/// The reply of a script to one call.
#[derive(Debug)]
pub(crate) enum CallReply {
    /// The values of all items, without the server's clock.
    Values(Vec<Value>),
    /// The same values for every item.
    Same([Value; 2]),
    /// The server refused the call; nothing was applied.
    Refused(String),
    /// The server received the call after its deadline; nothing was applied.
    Late,
}

impl CallReply {
    /// The reply for each of the items of the call.
    pub(crate) fn for_each_item(
        self,
        call: &ScriptCall<'_>,
        confirmed: Option<u64>,
        items: usize,
    ) -> Vec<Result<ItemReply>> {
        let confirmed = confirmed.is_none_or(|count| count >= u64::from(call.replicas));
        let values = match self {
            CallReply::Values(values) => values,
            CallReply::Same(values) => {
                return (0..items).map(|_| Ok(ItemReply { values: values.clone(), confirmed })).collect();
            }
            CallReply::Refused(text) => return all_failed(&error::refused(&text), items),
            CallReply::Late => {
                let detail = "the server received the request after its deadline and did not apply it";
                let error =
                    Error::new(ErrorKind::Unavailable, detail).advise("find out why the server is slow");
                return all_failed(&error, items);
            }
        };
        let width = call.script.verb.reply_width();
        if values.len() != width * items {
            return all_failed(&errors::unexpected_reply(values), items);
        }
        let mut values = values.into_iter();
        let mut next = || values.next().unwrap_or(Value::Nil);
        let mut item = || [next(), if width > 1 { next() } else { Value::Nil }];
        (0..items).map(|_| Ok(ItemReply { values: item(), confirmed })).collect()
    }
}

/// The clock in ms, which is that of the token, and the token.
pub(crate) fn clock_and_token(text: &[u8]) -> Option<(u64, i64)> {
    let token: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some((u64::try_from(token).ok()? / 1000, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_include_is_resolved() {
        let settings = ScriptSettings { channel: "a'b".to_owned(), retention: 1, counts_subscribers: true };
        let scripts = Scripts::new(&settings);
        for verb in [
            ScriptVerb::Acquire,
            ScriptVerb::Renew,
            ScriptVerb::Release,
            ScriptVerb::Inspect,
            ScriptVerb::Break,
        ] {
            for record in [RecordKind::Lock, RecordKind::Pool] {
                let script = scripts.get(verb, record);
                assert_eq!(script.verb, verb);
                assert!(!script.source.contains("-- include"), "{verb:?} {record:?}");
                assert!(
                    script.source.starts_with(r"local CHANNEL, RETENTION, KEPT, COUNTS = '\097\039\098'")
                );
            }
        }
    }
}
