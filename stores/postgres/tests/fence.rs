//! The resource's side of fencing: writes of stale holders are refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::str::FromStr;

use common::{TestSchema, config, locks, server, within};
use distlock_core::{ErrorKind, FencingToken};
use distlock_postgres::Fence;
use tokio_postgres::{Client, NoTls};

async fn client() -> Client {
    let server = tokio_postgres::Config::from_str(&server().url()).unwrap();
    let (client, connection) = server.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn fence(test_schema: &TestSchema) -> Fence {
    let url = test_schema.url("postgres", &server().url());
    drop(locks(&url).await);
    let fence = Fence::new(&config(&url));
    client().await.batch_execute(&fence.commands()).await.unwrap();
    fence
}

#[tokio::test]
async fn a_stale_token_writes_nothing() {
    let test_schema = TestSchema::new();
    let fence = fence(&test_schema).await;
    let ledger = format!("{}.ledger", test_schema.name);
    server().sql(&format!("CREATE TABLE {ledger} (entry text)"));
    let mut client = client().await;
    for (token, passes) in [(10, true), (10, true), (12, true), (11, false), (1, false), (13, true)] {
        let transaction = client.transaction().await.unwrap();
        let admitted = fence.admit(&transaction, "ledger/7", FencingToken::new(token)).await;
        match admitted {
            Ok(()) => {
                assert!(passes, "{token} passed");
                transaction.batch_execute(&format!("INSERT INTO {ledger} VALUES ('{token}')")).await.unwrap();
                transaction.commit().await.unwrap();
            }
            Err(error) => {
                assert!(!passes, "{token}: {error}");
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                assert!(error.to_string().contains("12 was seen"), "{error}");
                transaction.rollback().await.unwrap();
            }
        }
    }
    assert_eq!(server().value(&format!("SELECT string_agg(entry, ' ') FROM {ledger}")), "10 10 12 13");
    // A token that was rolled back does not count.
    let transaction = client.transaction().await.unwrap();
    fence.admit(&transaction, "ledger/7", FencingToken::new(99)).await.unwrap();
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    fence.admit(&transaction, "ledger/7", FencingToken::new(14)).await.unwrap();
    fence.admit(&transaction, "another", FencingToken::new(1)).await.unwrap();
    let error = fence.admit(&transaction, "", FencingToken::new(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// The first writer pauses between its check and its commit. The second one waits for that commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admitted_writer_is_not_overtaken_before_it_commits() {
    let test_schema = TestSchema::new();
    let fence = fence(&test_schema).await;
    let (mut one, mut other) = (client().await, client().await);
    let first = one.transaction().await.unwrap();
    fence.admit(&first, "r", FencingToken::new(1)).await.unwrap();
    let second = tokio::spawn(async move {
        let transaction = other.transaction().await.unwrap();
        fence.admit(&transaction, "r", FencingToken::new(2)).await.unwrap();
        transaction.commit().await.unwrap();
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!second.is_finished(), "two writers at once");
    first.commit().await.unwrap();
    within("the second writer", std::time::Duration::from_secs(10), second).await.unwrap();
}

/// The example prints what it claims.
#[tokio::test]
async fn the_example_runs() {
    let program = std::env::current_exe().unwrap();
    let example = program.parent().and_then(|folder| folder.parent()).unwrap().join("examples/fenced_ledger");
    assert!(example.exists(), "build it first: cargo build -p distlock-postgres --examples");
    let run = tokio::process::Command::new(example).arg(server().url()).output();
    let output = within("the example", std::time::Duration::from_secs(30), run).await.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("was refused") && printed.contains("is stale"), "{printed}");
}
