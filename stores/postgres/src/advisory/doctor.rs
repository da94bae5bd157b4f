//! What `doctor` reports about advisory locks.

use distlock_core::Result;
use distlock_core::store::Finding;
use tokio_postgres::types::{ToSql, Type};

use super::store::StoreState;
use crate::error;

pub(super) async fn examine(state: &StoreState) -> Result<Vec<Finding>> {
    let shared = state.shared().await?;
    let tables = state.schema.tables();
    let names = [tables.named("_session"), tables.named("_session_pool")];
    let client = shared.session.connection.client();
    let mut findings = crate::doctor::examine(client, &names).await?;
    findings.push(Finding::ok("the connection leads to the server itself, so sessions are ours"));
    if !shared.session.ends_when_silent {
        findings.push(Finding::warning(
            "this server does not end sessions of silent clients: a machine that is cut off keeps its locks until TCP \
             notices",
            "use PostgreSQL 14 or later",
        ));
    }
    let sequence = tables.named("_token");
    let typed: &[(&(dyn ToSql + Sync), Type)] = &[(&sequence, Type::TEXT)];
    let rows = client
        .query_typed("SELECT s.seqcache FROM pg_catalog.pg_sequence s WHERE s.seqrelid = pg_catalog.to_regclass($1)::oid", typed)
        .await
        .map_err(error::from_statement)?;
    if rows.first().is_some_and(|row| row.try_get::<_, i64>(0).unwrap_or(1) != 1) {
        findings.push(Finding::warning(
            format!("the sequence {sequence} caches numbers: a later grant may have a lower token"),
            format!("ALTER SEQUENCE {sequence} CACHE 1"),
        ));
    }
    Ok(findings)
}
