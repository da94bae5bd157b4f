//! A service with several replicas: accounts in PostgreSQL, one write per account at a time, one replica that migrates, one
//! that runs the cron job, and metrics for Prometheus.
//!
//! ```text
//! DATABASE_URL=postgres://app@db/app STORE=redis://cache:6379 LISTEN=0.0.0.0:8080 distlock-example-service
//! curl -X POST 'http://localhost:8080/accounts/ada/deposit?amount=5'
//! ```

mod cron;
mod ledger;
mod web;

use std::time::Duration;

use distlock::Locks;
use metrics_exporter_prometheus::PrometheusBuilder;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(variable("RUST_LOG", "info"))
        .init();
    let metrics = PrometheusBuilder::new().install_recorder()?;

    let locks = distlock::connect(&variable("STORE", "file:")).await?;
    let database = PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(Duration::from_secs(5))
        .connect(&variable("DATABASE_URL", "postgres://localhost"))
        .await?;
    migrate(&locks, &database).await?;

    // From here on the signal does not kill the process.
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(variable("LISTEN", "127.0.0.1:8080")).await?;
    println!("listening on {}", listener.local_addr()?);
    let job = tokio::spawn(cron::run(locks.clone(), database.clone()));
    let served = axum::serve(listener, web::router(web::App { locks: locks.clone(), database, metrics }))
        .with_graceful_shutdown(async move {
            terminate.recv().await;
        })
        .await;

    // The requests are done. What is still held, such as the cron job's lock, is released, so that no replica waits for an expiry.
    job.abort();
    locks.shutdown().await?;
    Ok(served?)
}

/// All replicas start at once and one of them creates the tables. The others wait, and find them.
async fn migrate(locks: &Locks, database: &PgPool) -> Result<(), BoxError> {
    let guard = locks.mutex("migration").acquire().timeout(Duration::from_secs(60)).await?;
    // If the lock is lost, the migration stops.
    guard.run(ledger::create_tables(database)).await??;
    guard.release().await?;
    Ok(())
}

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
