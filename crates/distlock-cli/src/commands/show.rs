//! `distlock show`: who holds one name, and who waits for it.

use clap::Args;
use distlock::store::Query;
use distlock::{Kind, Options, Resource};

use super::block_on;
use crate::exit::Failure;
use crate::notes::Notes;
use crate::store::StoreArgs;
use crate::{output, view};

pub(crate) const EXAMPLES: &str = "\
Examples:
  distlock show nightly          who holds it, since when, and who waits
  distlock show nightly --json   as `distlock ls --json`, each with its state: held, waiting";

/// What to show.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The name of the lock
    name: String,
    /// An array of JSON objects instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(store: &StoreArgs, args: &ShowArgs) -> Result<(), Failure> {
    // A name that nothing can have is refused before anything is sent.
    Resource::new(Kind::Mutex, args.name.as_str())?;
    let (records, shows_waiters, place) = block_on(async {
        let locks = store.connect(Options::default()).await?;
        let records = locks.inspect(&Query::named(&args.name)).await?;
        Ok((records, locks.capabilities().shows_waiters, locks.store().to_owned()))
    })?;
    let entries = view::holders_and_waiters(&records);
    if args.json {
        return output::write_json(&entries);
    }
    let notes = Notes::new(false, false);
    if entries.is_empty() {
        notes.hint(&format!("nobody holds or waits for {:?} on {place}", args.name));
        return Ok(());
    }
    output::write(&view::table(&entries))?;
    if !shows_waiters {
        notes.hint(&format!("{place} does not know who waits"));
    }
    Ok(())
}
