//! The Lua scripts: one for each verb and kind of record.

use distlock_core::RecordKind;

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
    /// The moment of the server's clock after which the script must do nothing, in ms.
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
    /// How long the token of an unused name is kept, in ms.
    pub(crate) retention: u64,
    /// Whether PUBLISH counts all subscribers. In a Cluster it counts those of one node.
    pub(crate) counts_subscribers: bool,
}

/// How many bytes at the end of a lock id identify it in a lock record. With 12 the record of an unused name is one small
/// allocation of the server: 48 bytes, for a string of 28.
const MARK: usize = 12;

/// Files that others include by a line `-- include FILE`.
const INCLUDES: &[(&str, &str)] = &[
    ("clock.lua", include_str!("lua/clock.lua")),
    ("batch.lua", include_str!("lua/batch.lua")),
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
    /// The first line of every script.
    fn constants(&self) -> String {
        let ScriptSettings { channel, retention, counts_subscribers } = self;
        // Each byte as its number, so that none has a meaning in Lua.
        let channel: String = channel.bytes().map(|byte| format!("\\{byte:03}")).collect();
        format!(
            "local CHANNEL, RETENTION, COUNTS, MARK = '{channel}', {retention}, {counts_subscribers}, {MARK}\n"
        )
    }
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
                    script.source.starts_with(r"local CHANNEL, RETENTION, COUNTS, MARK = '\097\039\098'")
                );
            }
        }
    }
}
