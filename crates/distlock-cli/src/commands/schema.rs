//! `distlock schema`: the DDL of a store, for users whose applications may not create tables.

use clap::Args;

use crate::exit::Failure;
use crate::output;
use crate::store::StoreArgs;

pub(crate) const EXAMPLES: &str = "\
Examples:
  distlock --store postgres://db/app schema | psql app
  distlock --store 'postgres://db/app?distlock.schema=ops' schema > locks.sql";

/// No options: everything is in the store's URL.
#[derive(Args, Debug)]
pub(crate) struct SchemaArgs {}

pub(crate) fn execute(store: &StoreArgs, _: &SchemaArgs) -> Result<(), Failure> {
    let mut text = distlock::schema(store.url()?)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    output::write(&text)
}
