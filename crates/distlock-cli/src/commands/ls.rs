//! `distlock ls`: the locks that are held.

use std::time::Duration;

use clap::Args;
use distlock::Options;
use distlock::store::Query;

use super::{block_on, watch};
use crate::duration;
use crate::exit::Failure;
use crate::stderr::Messages;
use crate::store::StoreArgs;
use crate::{listing, output};

pub(crate) const EXAMPLES: &str = "\
Examples:
  distlock ls                    all locks that are held
  distlock ls orders/            those whose name begins with orders/
  distlock ls --watch            the list every second; in a pipe, one block per change
  distlock ls --json | jq -r '.[] | select(.expires_in_ms != null) | .name'";

/// The shortest interval of `--watch`.
const SHORTEST_WATCH: Duration = Duration::from_millis(100);

/// The locks to list.
#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only names with this prefix
    prefix: Option<String>,
    /// Print an array of JSON objects instead of a table
    #[arg(long)]
    json: bool,
    /// Print the list again and again, every second or every DUR: in place on a terminal, elsewhere one block per change
    #[arg(
        long,
        value_name = "DUR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1s",
        value_parser = watch_interval
    )]
    watch: Option<Duration>,
}

/// An interval that no store takes for an attack.
fn watch_interval(text: &str) -> Result<Duration, String> {
    let every = duration::parse(text)?;
    if every < SHORTEST_WATCH {
        return Err(format!("it is shorter than {}", duration::show(SHORTEST_WATCH)));
    }
    Ok(every)
}

pub(crate) fn execute(store: &StoreArgs, args: &LsArgs) -> Result<(), Failure> {
    let query = args.prefix.as_deref().map_or_else(Query::default, Query::prefixed);
    if let Some(every) = args.watch {
        return block_on(async {
            let locks = store.connect(Options::default()).await?;
            watch::watch(&locks, &query, args.json, every).await
        });
    }
    let (entries, store) = block_on(async {
        let locks = store.connect(Options::default()).await?;
        let records = locks.inspect(&query).await?;
        Ok((listing::holders(&records, locks.capabilities().shows_waiters), locks.store().to_owned()))
    })?;
    if args.json {
        return output::write_json(&entries);
    }
    if entries.is_empty() {
        Messages::new(false, false).hint(&format!("no lock is held on {store}"));
        return Ok(());
    }
    output::write(&listing::table(&entries))
}
