//! `distlock break`: forces the release of a lock.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::{Args, ValueEnum};
use distlock::store::{Capabilities, Holder, Query, Record};
use distlock::{Kind, Locks, Options, Resource};

use super::block_on;
use crate::duration;
use crate::exit::{FREE, Failure};
use crate::output;
use crate::stderr::print;
use crate::store::StoreArgs;
use crate::table::escape;

pub(crate) const EXAMPLES: &str = "\
Where the store can push, a `distlock run` that holds the lock learns of it at once and ends
its command within a second; other holders learn of it at their next renewal. Until then the
old and the next holder may run at the same time: make sure that the old one is dead, or
that the protected resource refuses old tokens. The command prints what holds for each holder.

Exit code: 0 if the lock was broken, 1 if it was free or the answer was no, 69 if the store
failed.

Examples:
  distlock break nightly
  distlock break nightly --kind mutex --yes";

/// The kinds of lock that can be broken.
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

/// The lock to break.
#[derive(Args, Debug)]
pub(crate) struct BreakArgs {
    /// The name of the lock
    name: String,
    /// The kind of lock, if several have this name
    #[arg(long, value_enum)]
    kind: Option<KindArg>,
    /// Do not ask; required without a terminal
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn execute(store: &StoreArgs, args: &BreakArgs) -> Result<u8, Failure> {
    let wanted = args.kind.map(Kind::from);
    Resource::new(wanted.unwrap_or(Kind::Mutex), args.name.as_str())?;
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !can_ask {
        return Err(Failure::usage(format!(
            "cannot ask whether to break {:?}: this is not a terminal; add --yes to break it",
            args.name
        )));
    }
    block_on(async {
        let locks = store.connect(Options::default()).await?;
        let query = Query::named(&args.name).with_kind(wanted).with_also_held();
        let mut held = locks.inspect(&query).await?;
        held.retain(|record| !record.holders.is_empty());
        let record = match held.as_slice() {
            [] => {
                print(&format!("{:?} is not held on {}: nothing to break", args.name, locks.store()));
                return Ok(FREE);
            }
            [record] => record,
            several => return Err(ambiguous(&args.name, &locks, several)),
        };
        if !args.yes && !confirmed(&args.name, record)? {
            return Err(Failure::new(1, "not broken"));
        }
        let broken = locks.break_lock(record.kind, args.name.as_str()).await?;
        // The wake-up of the next waiter may still be in flight.
        let _ = locks.shutdown().await;
        let kind = record.kind;
        if broken.is_empty() {
            print(&format!("{kind} {:?} was released meanwhile", args.name));
            return Ok(FREE);
        }
        output::write(&format!("broke {kind} {:?}, held by {}\n", args.name, holders(&broken)))?;
        for holder in &broken {
            print(&notice(locks.capabilities(), holder));
            if let Some(others) = also_held(holder) {
                let label = escape(holder.lock_id.label());
                print(&format!("{label} has lost all that its session held: also {others}"));
            }
        }
        Ok(0)
    })
}

fn ambiguous(name: &str, locks: &Locks, records: &[Record]) -> Failure {
    let kinds: Vec<&str> = records.iter().map(|record| record.kind.as_str()).collect();
    Failure::usage(format!(
        "cannot break {name:?} on {}: several locks have this name, {}; choose one with --kind",
        locks.store(),
        kinds.join(" and "),
    ))
}

/// When the holder of a broken lock learns of it, and what may happen before.
fn notice(store: &Capabilities, holder: &Holder) -> String {
    let label = escape(holder.lock_id.label());
    let until = "until it has stopped, it and the next holder may run at the same time";
    // On such a store, breaking the lock ended the holder's session.
    if store.frees_on_crash {
        return format!("{label} is told at once: its session was ended; {until}");
    }
    let renewal = match holder.expires_in {
        Some(left) => format!("at its next renewal, within {}", duration::show(left)),
        None => "at its next renewal".to_owned(),
    };
    if store.push {
        format!(
            "{label} is told at once if it listens, as `distlock run` does, and {renewal} otherwise; {until}"
        )
    } else {
        format!("{label} is told {renewal}: this store cannot push; {until}")
    }
}

/// What else the session of a holder holds.
fn also_held(holder: &Holder) -> Option<String> {
    let names: Vec<String> = holder.also_held.iter().map(|other| escape(&other.to_string())).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn holders(holders: &[Holder]) -> String {
    let named = holders.iter().map(|holder| match holder.token {
        Some(token) => format!("{} (token {token})", escape(holder.lock_id.label())),
        None => escape(holder.lock_id.label()),
    });
    named.collect::<Vec<_>>().join(", ")
}

/// Asks the user. Anything but a clear yes is a no.
fn confirmed(name: &str, record: &Record) -> Result<bool, Failure> {
    let mut err = io::stderr().lock();
    let others: String = record
        .holders
        .iter()
        .filter_map(|holder| Some((escape(holder.lock_id.label()), also_held(holder)?)))
        .map(|(label, others)| {
            format!("\nBreaking it ends the session of {label}, which holds {others} too.")
        })
        .collect();
    let asked = write!(
        err,
        "{} {name:?} is held by {}.{others}\nBreak it, although its holder may still be running? [y/N] ",
        record.kind,
        holders(&record.holders)
    )
    .and_then(|()| err.flush());
    let mut answer = String::new();
    asked
        .and_then(|()| io::stdin().lock().read_line(&mut answer))
        .map_err(|error| Failure::usage(format!("cannot ask: {error}; add --yes to break it")))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
