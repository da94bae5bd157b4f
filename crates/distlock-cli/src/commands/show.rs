//! `distlock show`: the holders and the waiters of one name.

use clap::Args;
use distlock::store::Query;
use distlock::{Kind, Options, Resource};

use super::block_on;
use crate::exit::Failure;
use crate::stderr::Messages;
use crate::store::StoreArgs;
use crate::{listing, output};

pub(crate) const EXAMPLES: &str = "\
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

pub(crate) fn execute(store: &StoreArgs, args: &ShowArgs) -> Result<(), Failure> {
    // An invalid name is refused before a request is sent.
    Resource::new(Kind::Mutex, args.name.as_str())?;
    let (records, shows_waiters, store) = block_on(async {
        let locks = store.connect(Options::default()).await?;
        let records = locks.inspect(&Query::named(&args.name)).await?;
        Ok((records, locks.capabilities().shows_waiters, locks.store().to_owned()))
    })?;
    let entries = listing::holders_and_waiters(&records);
    if args.json {
        return output::write_json(&entries);
    }
    let messages = Messages::new(false, false);
    if entries.is_empty() {
        messages.hint(&format!("{:?} has no holder and no waiter on {store}", args.name));
        return Ok(());
    }
    output::write(&listing::table(&entries))?;
    if !shows_waiters {
        messages.hint(&format!("{store} does not show waiters"));
    }
    Ok(())
}
