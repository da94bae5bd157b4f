//! Roles with few rights.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{TestSchema, backend, locks, server};
use distlock_core::ErrorKind;
use distlock_core::store::StoreUrl;
use distlock_postgres::{ADVISORY_DRIVER, DRIVER};

/// Creates a role that may connect and use the schema.
fn role(test_schema: &TestSchema) -> String {
    let schema = &test_schema.name;
    server().sql(&format!(
        "CREATE ROLE {schema} LOGIN; CREATE SCHEMA {schema}; GRANT USAGE ON SCHEMA {schema} TO {schema}"
    ));
    schema.clone()
}

fn as_role(url: &str, role: &str) -> String {
    url.replace("//postgres@", &format!("//{role}@"))
}

#[tokio::test]
async fn a_role_that_may_not_create_tables_is_referred_to_the_schema_command() {
    for (scheme, driver) in [("postgres", &DRIVER), ("postgres+advisory", &ADVISORY_DRIVER)] {
        let test_schema = TestSchema::new();
        let role = role(&test_schema);
        let url = as_role(&test_schema.url(scheme, &server().url()), &role);
        let error = backend(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("`distlock schema`"), "{error}");
        assert!(!error.can_retry());

        let off = backend(&format!("{url}&distlock.create=off")).await.unwrap_err();
        assert!(off.to_string().contains("`distlock schema`"), "{off}");

        // The output of the command is enough, with the rights that it names.
        let commands = driver.schema(&StoreUrl::parse(&url).unwrap()).unwrap().unwrap();
        server().sql(&commands);
        for grant in commands
            .lines()
            .filter_map(|text| text.strip_prefix("-- "))
            .filter(|text| text.starts_with("GRANT"))
        {
            server().sql(&grant.replace("your_role", &role));
        }
        let through = locks(&format!("{url}&distlock.create=off")).await;
        through.mutex("m").acquire().await.unwrap().release().await.unwrap();
        through.mutex("m").fair().acquire().await.unwrap().release().await.unwrap();
        through.semaphore("s", 2).acquire().await.unwrap().release().await.unwrap();
        through.rw_lock("r").write().await.unwrap().release().await.unwrap();
        let findings = through.doctor().await.unwrap();
        assert!(findings.iter().any(|finding| finding.what.contains("may use them")), "{findings:?}");
    }
}

#[tokio::test]
async fn missing_rights_are_an_error_and_named_by_doctor() {
    let test_schema = TestSchema::new();
    let role = role(&test_schema);
    let url = test_schema.url("postgres", &server().url());
    drop(locks(&url).await);
    server().sql(&format!("GRANT SELECT ON ALL TABLES IN SCHEMA {role} TO {role}"));
    let through = locks(&as_role(&url, &role)).await;
    let error = through.mutex("m").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.can_retry());
    let findings = through.doctor().await.unwrap();
    let missing =
        findings.iter().find(|finding| finding.what.contains("rights are missing")).expect("a warning");
    assert!(missing.what.contains("INSERT") && missing.what.contains("UPDATE"), "{missing:?}");
}

#[tokio::test]
async fn a_missing_database_or_role_is_denied() {
    let url = server().url();
    let error =
        backend(&format!("{}no_such_database", url.strip_suffix("postgres").unwrap())).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Denied), "{error}");
    let error = backend(&as_role(&url, "no_such_role")).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Denied), "{error}");
    let error = backend("postgres://postgres@127.0.0.1:1/postgres").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.advice().is_some(), "{error}");
}
