//! `distlock show`: the holders and the waiters of one name.

use clap::Args;
use distlock::store::Query;
use distlock::{Kind, Options, Resource};

use super::block_on;
use crate::exit::{FREE, Failure};
use crate::stderr::Messages;
use crate::store::StoreArgs;
use crate::{listing, output};

pub(crate) const EXAMPLES: &str = "\
A holder that is a `distlock run` shows its user and the name of the program that it runs,
without arguments: they may hold passwords.

Exit code: 0 if the lock is held, 1 if it is free, 69 if the store failed.

Examples:
  distlock show nightly          its holders, since when, and its waiters
  distlock show nightly --json   like `distlock ls --json`, each with its state: held, waiting";

/// The lock to show.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The name of the lock
    name: String,
    /// Print an array of JSON objects instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(store: &StoreArgs, args: &ShowArgs) -> Result<u8, Failure> {
    // An invalid name is refused before a request is sent.
    Resource::new(Kind::Mutex, args.name.as_str())?;
    let (records, shows_waiters, store) = block_on(async {
        let locks = store.connect(Options::default()).await?;
        let records = locks.inspect(&Query::named(&args.name)).await?;
        Ok((records, locks.capabilities().shows_waiters, locks.store().to_owned()))
    })?;
    let entries = listing::holders_and_waiters(&records, shows_waiters);
    let is_held = records.iter().any(|record| !record.holders.is_empty());
    let code = if is_held { 0 } else { FREE };
    if args.json {
        output::write_json(&entries)?;
        return Ok(code);
    }
    let messages = Messages::new(false, false);
    if entries.is_empty() {
        messages.hint(&format!("{:?} has no holder and no waiter on {store}", args.name));
        return Ok(code);
    }
    output::write(&listing::table_with_commands(&entries))?;
    if !shows_waiters {
        messages.hint(&format!("{store} does not show waiters"));
    }
    Ok(code)
}
