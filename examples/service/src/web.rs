//! The HTTP side: deposits, health and metrics.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use distlock::{ErrorKind, Locks};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use crate::ledger::{self, DepositError};

/// How long a request waits for its account: shorter than the client's patience.
const LOCK_LIMIT: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) locks: Locks,
    pub(crate) database: PgPool,
    pub(crate) metrics: PrometheusHandle,
}

#[derive(Deserialize)]
struct Deposit {
    amount: i64,
}

#[derive(Serialize)]
struct Balance {
    account: String,
    balance: i64,
}

pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/accounts/{account}", get(balance))
        .route("/accounts/{account}/deposit", post(deposit))
        .route("/health", get(health))
        .route("/metrics", get(async |State(app): State<App>| app.metrics.render()))
        .with_state(app)
}

async fn balance(State(app): State<App>, Path(account): Path<String>) -> Result<Json<Balance>, Failure> {
    let balance = ledger::balance(&app.database, &account).await.map_err(DepositError::from)?;
    Ok(Json(Balance { account, balance }))
}

async fn deposit(
    State(app): State<App>,
    Path(account): Path<String>,
    Query(Deposit { amount }): Query<Deposit>,
) -> Result<Json<Balance>, Failure> {
    let guard = app.locks.mutex(format!("account/{account}")).acquire().timeout(LOCK_LIMIT).await?;
    // Ends early if the lock is lost meanwhile.
    let balance = guard.run(ledger::deposit(&app.database, &account, amount, guard.token())).await??;
    // The deposit is made. A lock that cannot be released now is released in the background, or expires.
    if let Err(error) = guard.release().await {
        tracing::warn!(%error, "released late");
    }
    Ok(Json(Balance { account, balance }))
}

/// Ready to serve: the lock store answers.
async fn health(State(app): State<App>) -> Result<&'static str, Failure> {
    app.locks.ping().await?;
    Ok("ok")
}

/// What a client is told. The details are in the log.
struct Failure(StatusCode, String);

impl From<distlock::Error> for Failure {
    fn from(error: distlock::Error) -> Self {
        tracing::warn!(error = %format_args!("{error:#}"), "no lock");
        let status = match error.kind() {
            // Another request has the account: the client may try again.
            ErrorKind::Timeout => StatusCode::CONFLICT,
            ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Failure(status, error.to_string())
    }
}

impl From<DepositError> for Failure {
    fn from(error: DepositError) -> Self {
        match error {
            DepositError::Stale => {
                tracing::warn!("a deposit under a lost lock was refused by its fencing token");
                Failure(StatusCode::CONFLICT, "the account was written meanwhile: try again".to_owned())
            }
            DepositError::Database(error) => {
                tracing::error!(%error, "the database");
                Failure(StatusCode::INTERNAL_SERVER_ERROR, "the database failed".to_owned())
            }
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}
