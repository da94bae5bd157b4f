//! The worker's side.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use distlock_core::{BootClock, Clock, Error, ErrorKind, Locks, Options, Result};

use super::{Answer, Go, Job, Order};
use crate::bench::Open;
use crate::load::{Load, Tasks};
use crate::scenarios::contended::Contender;

/// What a program does that was started as a worker: obeys until its input ends.
#[must_use]
pub fn worker(open: Open) -> ExitCode {
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| internal(&error))
        .and_then(|runtime| runtime.block_on(obey(open)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = tell(&Answer::Failed(format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

async fn obey(open: Open) -> Result<()> {
    let Some(order) = next_line::<Order>().await? else { return Ok(()) };
    match order.job {
        Job::Hold { expiry_ms } => {
            let locks =
                connect(open, &order, Options::new().expiry(Duration::from_millis(expiry_ms))?).await?;
            // One cycle first: the connection is warm, and the moment of asking is close to the store's decision.
            locks.mutex(format!("{}/warm", order.name)).acquire().await?.release().await?;
            let asked = BootClock.now();
            let guard = locks.mutex(order.name).acquire().await?;
            tell(&Answer::Holds { asked: asked.as_nanos() })?;
            next_line::<Go>().await?;
            guard.release().await?;
            locks.shutdown().await
        }
        Job::Contend { tasks } => {
            let locks = connect(open, &order, Options::default()).await?;
            let mut contenders =
                Tasks((0..tasks).map(|_| Contender(locks.mutex(order.name.as_str()))).collect());
            tell(&Answer::Ready)?;
            while let Some(go) = next_line::<Go>().await? {
                let slice = contenders.slice(Duration::from_millis(go.slice_ms)).await?;
                tell(&Answer::Slice {
                    latencies: slice.latencies.buckets().collect(),
                    counts: slice.counts,
                    cpu_ns: u64::try_from(slice.cpu.as_nanos()).unwrap_or(u64::MAX),
                })?;
            }
            locks.shutdown().await
        }
    }
}

async fn connect(open: Open, order: &Order, options: Options) -> Result<Locks> {
    Locks::builder(open(&order.url).await?).options(options).build()
}

/// The next order, `None` at the end of the input. Read on a thread of its own: held locks are extended meanwhile.
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

fn tell(answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_string(answer).map_err(|error| internal(&error))?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| internal(&error))
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("a process of the benchmark failed: {error}"))
}
