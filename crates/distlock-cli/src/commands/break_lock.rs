//! `distlock break`: takes a lock from whoever holds it.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::{Args, ValueEnum};
use distlock::store::{Capabilities, Holder, Query, Record};
use distlock::{Kind, Locks, Options, Resource};

use super::block_on;
use crate::duration;
use crate::exit::Failure;
use crate::notes::say;
use crate::output;
use crate::store::StoreArgs;
use crate::table::escape;

pub(crate) const EXAMPLES: &str = "\
`distlock run` is told at once where the store can push, and ends its command within a
second; other holders notice at their next renewal. Until then the broken holder works
beside the next one: make sure that it is dead, or that what the lock protects refuses old
tokens. What cannot be guaranteed is printed for each holder.

Examples:
  distlock break nightly
  distlock break nightly --kind mutex --yes";

/// The kinds that have a name of their own.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindArg {
    Mutex,
    Rwlock,
    Semaphore,
}

impl From<KindArg> for Kind {
    fn from(kind: KindArg) -> Self {
        match kind {
            KindArg::Mutex => Kind::Mutex,
            KindArg::Rwlock => Kind::RwLock,
            KindArg::Semaphore => Kind::Semaphore,
        }
    }
}

/// What to break.
#[derive(Args, Debug)]
pub(crate) struct BreakArgs {
    /// The name of the lock
    name: String,
    /// Which lock of that name, where there are several
    #[arg(long, value_enum)]
    kind: Option<KindArg>,
    /// Do not ask; needed where there is no terminal
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn execute(store: &StoreArgs, args: &BreakArgs) -> Result<(), Failure> {
    let wanted = args.kind.map(Kind::from);
    Resource::new(wanted.unwrap_or(Kind::Mutex), args.name.as_str())?;
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !can_ask {
        return Err(Failure::usage(format!(
            "cannot ask whether to break {:?}: this is no terminal; add --yes if it is to be broken",
            args.name
        )));
    }
    block_on(async {
        let locks = store.connect(Options::default()).await?;
        let query = Query::named(&args.name).with_kind(wanted);
        let mut held = locks.inspect(&query).await?;
        held.retain(|record| !record.holders.is_empty());
        let record = match held.as_slice() {
            [] => {
                say(&format!("nobody holds {:?} on {}: there is nothing to break", args.name, locks.store()));
                return Ok(());
            }
            [record] => record,
            several => return Err(which(&args.name, &locks, several)),
        };
        if !args.yes && !confirmed(&args.name, record)? {
            return Err(Failure::new(1, "left alone"));
        }
        let broken = locks.break_lock(record.kind, args.name.as_str()).await?;
        // The release of the broken record may go on in the background, as a wake-up of who is next.
        let _ = locks.shutdown().await;
        let kind = record.kind;
        if broken.is_empty() {
            say(&format!("{kind} {:?} was given back meanwhile", args.name));
            return Ok(());
        }
        output::write(&format!("broke {kind} {:?}, held by {}\n", args.name, holders(&broken)))?;
        for holder in &broken {
            say(&when_told(locks.capabilities(), holder));
        }
        Ok(())
    })
}

fn which(name: &str, locks: &Locks, records: &[Record]) -> Failure {
    let kinds: Vec<&str> = records.iter().map(|record| record.kind.as_str()).collect();
    Failure::usage(format!(
        "cannot break {name:?} on {}: it is the name of several locks, {}; say which with --kind",
        locks.store(),
        kinds.join(" and "),
    ))
}

/// When the holder of a broken lock learns of it, and what may happen before that.
fn when_told(store: &Capabilities, holder: &Holder) -> String {
    let who = escape(holder.lock_id.label());
    let until = "until it has stopped, it and the next holder may run side by side";
    // Where a holder that dies frees the lock, breaking it ended the holder's session.
    if store.frees_on_crash {
        return format!("{who} is told at once: its session was ended; {until}");
    }
    let renewal = match holder.expires_in {
        Some(left) => format!("at its next renewal, within {}", duration::show(left)),
        None => "at its next renewal".to_owned(),
    };
    if store.push {
        format!(
            "{who} is told at once if it listens, as `distlock run` does, and notices {renewal} otherwise; {until}"
        )
    } else {
        format!("{who} notices {renewal}: the store cannot tell it; {until}")
    }
}

fn holders(holders: &[Holder]) -> String {
    let named = holders.iter().map(|holder| match holder.token {
        Some(token) => format!("{} (token {token})", escape(holder.lock_id.label())),
        None => escape(holder.lock_id.label()),
    });
    named.collect::<Vec<_>>().join(", ")
}

/// Asks. Anything but a clear yes is a no.
fn confirmed(name: &str, record: &Record) -> Result<bool, Failure> {
    let mut err = io::stderr().lock();
    let asked = write!(
        err,
        "{} {name:?} is held by {}.\nBreak it, though its holder may still be at work? [y/N] ",
        record.kind,
        holders(&record.holders)
    )
    .and_then(|()| err.flush());
    let mut answer = String::new();
    asked
        .and_then(|()| io::stdin().lock().read_line(&mut answer))
        .map_err(|error| Failure::usage(format!("cannot ask: {error}; add --yes if it is to be broken")))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
