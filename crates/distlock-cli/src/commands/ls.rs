//! `distlock ls`: the locks that are held.

use clap::Args;
use distlock::Options;
use distlock::store::Query;

use super::block_on;
use crate::exit::Failure;
use crate::stderr::Messages;
use crate::store::StoreArgs;
use crate::{listing, output};

pub(crate) const EXAMPLES: &str = "\
Examples:
  distlock ls                    all locks that are held
  distlock ls orders/            those whose name begins with orders/
  distlock ls --json | jq -r '.[] | select(.expires_in_ms != null) | .name'";

/// The locks to list.
#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only names with this prefix
    prefix: Option<String>,
    /// Print an array of JSON objects instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(store: &StoreArgs, args: &LsArgs) -> Result<(), Failure> {
    let (records, store) = block_on(async {
        let locks = store.connect(Options::default()).await?;
        let query = args.prefix.as_deref().map_or_else(Query::default, Query::prefixed);
        Ok((locks.inspect(&query).await?, locks.store().to_owned()))
    })?;
    let entries = listing::holders(&records);
    if args.json {
        return output::write_json(&entries);
    }
    if entries.is_empty() {
        Messages::new(false, false).hint(&format!("no lock is held on {store}"));
        return Ok(());
    }
    output::write(&listing::table(&entries))
}
