//! The worker's side of the protocol.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use distlock_core::{BootClock, Clock, Error, ErrorKind, Locks, Options, Result};

use super::{SliceRequest, WorkerConfig, WorkerJob, WorkerReply};
use crate::bench::Open;
use crate::handoffs::HoldLog;
use crate::scenarios::contended::Contender;
use crate::workload::{Tasks, Workload};

/// Runs a worker until its input ends.
#[must_use]
pub fn worker(open: Open) -> ExitCode {
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| internal(&error))
        .and_then(|runtime| runtime.block_on(execute(open)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = send_reply(&WorkerReply::Failed(format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

async fn execute(open: Open) -> Result<()> {
    let Some(config) = next_line::<WorkerConfig>().await? else { return Ok(()) };
    match config.job {
        WorkerJob::Hold { expiry_ms } => {
            let locks =
                connect(open, &config, Options::new().expiry(Duration::from_millis(expiry_ms))?).await?;
            // A cycle first warms up the connection, so that the request is sent close to the store's decision.
            locks.mutex(format!("{}/warm", config.name)).acquire().await?.release().await?;
            let requested = BootClock.now();
            let guard = locks.mutex(config.name).acquire().await?;
            send_reply(&WorkerReply::Holds { requested: requested.as_nanos() })?;
            next_line::<SliceRequest>().await?;
            guard.release().await?;
            locks.shutdown().await
        }
        WorkerJob::Contend { tasks } => {
            let locks = connect(open, &config, Options::default()).await?;
            let log = HoldLog::default();
            let contender = || Contender { mutex: locks.mutex(config.name.as_str()), log: log.clone() };
            let mut contenders = Tasks((0..tasks).map(|_| contender()).collect());
            send_reply(&WorkerReply::Ready)?;
            while let Some(request) = next_line::<SliceRequest>().await? {
                let slice = contenders.slice(Duration::from_millis(request.slice_ms)).await?;
                send_reply(&WorkerReply::Slice {
                    latencies: slice.latencies.buckets().collect(),
                    counts: slice.counts,
                    cpu_ns: u64::try_from(slice.cpu.as_nanos()).unwrap_or(u64::MAX),
                    holds: log.take(),
                })?;
            }
            locks.shutdown().await
        }
    }
}

async fn connect(open: Open, config: &WorkerConfig, options: Options) -> Result<Locks> {
    Locks::builder(open(&config.url).await?).options(options).build()
}

/// The next line, or `None` at the end of the input. Reads on a blocking thread, so that held locks are renewed meanwhile.
async fn next_line<T: serde::de::DeserializeOwned>() -> Result<Option<T>> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = line.await.map_err(|error| internal(&error))?.map_err(|error| internal(&error))?;
    if line.trim().is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).map_err(|error| internal(&error))
}

fn send_reply(reply: &WorkerReply) -> Result<()> {
    let mut line = serde_json::to_string(reply).map_err(|error| internal(&error))?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| internal(&error))
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("a worker process of the benchmark failed: {error}"))
}
