//! The table and the sequence: created on first use where the login may, and checked.

use std::sync::Arc;

use distlock_core::{Error, Result};

use crate::identifier::Names;
use crate::rows;
use crate::session::LockSession;
use crate::store::StoreState;

const TOKENS: &str = include_str!("sql/schema_tokens.sql");
const HOLDERS: &str = include_str!("sql/schema_holders.sql");
/// What acquiring a lock needs, on no row.
const PROBE_HOLDERS: &str = include_str!("sql/probe_holders.sql");
const PROBE_TOKENS: &str = include_str!("sql/probe_tokens.sql");

const VERSION: &str = "SELECT CAST(@@VERSION AS NVARCHAR(400)) AS version";
const EXISTS: &str = "SELECT OBJECT_ID(@P1) AS id";

/// The statements that create the table and the sequence.
pub(crate) fn print(names: &Names) -> String {
    format!("{}\n{}", names.fill(TOKENS), names.fill(HOLDERS))
}

/// Connects, creates what is missing, and makes sure that the login may use it.
pub(crate) async fn ensure(state: &Arc<StoreState>) -> Result<()> {
    let session = &state.sessions.observer().await?;
    let rows = session.query(&VERSION.into(), Vec::new()).await?;
    if rows::text(rows.first(), "version").is_ok_and(|version| version.contains("Babelfish")) {
        state.sessions.attention().was_ignored();
    }
    if !state.config.tokens {
        return Ok(());
    }
    let names = &state.config.names;
    for (object, probe, create) in
        [(names.tokens(), PROBE_TOKENS, TOKENS), (names.holders(), PROBE_HOLDERS, HOLDERS)]
    {
        ensure_one(session, names, object, probe, create)
            .await
            .map_err(|error| error.doing("find or create the table and the sequence"))?;
    }
    Ok(())
}

async fn ensure_one(
    session: &LockSession,
    names: &Names,
    object: String,
    probe: &str,
    create: &str,
) -> Result<()> {
    if !exists(session, &object).await?
        && let Err(failure) = session.query(&names.statement(create).into(), Vec::new()).await
    {
        // Another client may have been faster.
        let is_there = !failure.is_broken() && exists(session, &object).await.unwrap_or(false);
        if !is_there {
            return Err(failure.error);
        }
    }
    session.query(&names.statement(probe).into(), Vec::new()).await.map(drop).map_err(Error::from)
}

async fn exists(session: &LockSession, object: &str) -> Result<bool> {
    let rows = session.query(&EXISTS.into(), vec![object.into()]).await?;
    Ok(rows::optional(rows.first(), "id")?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identifier::Identifier;

    #[test]
    fn the_schema_is_complete_and_has_the_names_that_were_asked_for() {
        let names = Names {
            schema: Identifier::new("schema", "locks").unwrap(),
            table: Identifier::new("table", "orders").unwrap(),
        };
        let text = print(&names);
        assert!(text.contains("CREATE SEQUENCE [locks].[orders_token] AS BIGINT"), "{text}");
        assert!(text.contains("CREATE TABLE [locks].[orders_holder] ("), "{text}");
        assert!(!text.contains(['{', '}']), "{text}");
        // A sequence that began again would let tokens go back.
        assert!(!text.contains(" CYCLE") && !text.contains("RESTART") && !text.contains(" CACHE"), "{text}");
    }
}
