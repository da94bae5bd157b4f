//! What `distlock doctor` finds at the server.

use distlock_core::Result;
use distlock_core::store::Finding;

use crate::rows;
use crate::store::StoreState;

const EXAMINE: &str = include_str!("sql/doctor.sql");

pub(crate) async fn examine(state: &StoreState) -> Result<Vec<Finding>> {
    let session = state.sessions.observer().await?;
    let rows = session.query(&state.config.names.statement(EXAMINE).into(), Vec::new()).await?;
    let row = rows.first();
    let version = rows::text(row, "version").unwrap_or_default();
    let mut findings = vec![server(&version)];
    if rows::text(row, "updateability").is_ok_and(|word| word.eq_ignore_ascii_case("READ_ONLY")) {
        findings.push(Finding::warning(
            "the database is read-only: a readable secondary, perhaps. Its locks do not exclude those of the primary",
            "connect to the primary replica, through the listener of the availability group",
        ));
    }
    if state.config.is_plain_text() {
        findings.push(Finding::warning(
            "the connection is not encrypted: the network sees names of locks and can release them",
            "leave encrypt out, or set it to true or strict",
        ));
    }
    if state.config.trust_any {
        findings.push(Finding::warning(
            "any certificate of the server is trusted",
            "name the certificate of its authority: trustservercertificateca=/path/ca.pem",
        ));
    }
    if state.config.tokens {
        findings.push(Finding::ok("the table and the sequence are there, and the login may use them"));
        match rows::optional(row, "may_kill") {
            Ok(Some(1)) => findings.push(Finding::ok("the login may end sessions, so `distlock break` works")),
            Ok(_) => findings.push(Finding::warning(
                "the login may not end sessions, so `distlock break` does not work",
                "grant ALTER ANY CONNECTION (Azure SQL: KILL DATABASE CONNECTION) to those who may break locks",
            )),
            Err(_) => {}
        }
    } else {
        findings.push(Finding::warning(
            "there are no fencing tokens (distlock.tokens=off): a holder that is late can overwrite what its successor wrote",
            "grant the login what `distlock schema` says, and leave the option out",
        ));
    }
    Ok(findings)
}

fn server(version: &str) -> Finding {
    let line = version.lines().next().unwrap_or_default().trim();
    match line.starts_with("Microsoft SQL") {
        true => Finding::ok(line),
        false => Finding::warning(
            format!("not a Microsoft SQL Server: {line}"),
            "a compatible server must have sp_getapplock, APPLOCK_TEST and sequences; test its fail-over before you rely on it",
        ),
    }
}
