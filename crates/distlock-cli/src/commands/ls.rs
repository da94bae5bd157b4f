//! `distlock ls`: what is held now.

use clap::Args;
use distlock::Options;
use distlock::store::Query;

use super::block_on;
use crate::exit::Failure;
use crate::notes::Notes;
use crate::store::StoreArgs;
use crate::{output, view};

pub(crate) const EXAMPLES: &str = "\
Examples:
  distlock ls                    everything that is held
  distlock ls orders/            what begins with orders/
  distlock ls --json | jq -r '.[] | select(.expires_in_ms != null) | .name'";

/// What to list.
#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only names that begin like this
    prefix: Option<String>,
    /// An array of JSON objects instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(store: &StoreArgs, args: &LsArgs) -> Result<(), Failure> {
    let (records, place) = block_on(async {
        let locks = store.connect(Options::default()).await?;
        let query = args.prefix.as_deref().map_or_else(Query::default, Query::prefixed);
        Ok((locks.inspect(&query).await?, locks.store().to_owned()))
    })?;
    let entries = view::holders(&records);
    if args.json {
        return output::write_json(&entries);
    }
    if entries.is_empty() {
        Notes::new(false, false).hint(&format!("nothing is held on {place}"));
        return Ok(());
    }
    output::write(&view::table(&entries))
}
