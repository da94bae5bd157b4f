//! The benchmark's side.

use std::process::Stdio;
use std::time::{Duration, Instant};

use distlock_core::{Error, ErrorKind, Moment, Result};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{Answer, Go, Job, Order};
use crate::bench::Ground;
use crate::load::{Load, Tally};

/// How long a worker may take to connect, and beyond its slice.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running worker. It is killed when this is dropped.
struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    async fn start(ground: &Ground<'_>, name: &str, job: Job) -> Result<Self> {
        let (program, args) = ground.target.worker.as_ref().ok_or_else(|| failed("no program was given"))?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (Some(orders), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no standard input or output"));
        };
        let mut worker = Worker { child, orders, answers: BufReader::new(out).lines() };
        worker.send(&Order { url: ground.target.url.clone(), name: name.to_owned(), job }).await?;
        Ok(worker)
    }

    async fn send(&mut self, order: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(order).map_err(failed)?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).await.map_err(failed)
    }

    async fn answer(&mut self, within: Duration) -> Result<Answer> {
        let line = tokio::time::timeout(within, self.answers.next_line())
            .await
            .map_err(|_| failed(format!("no answer within {within:?}")))?
            .map_err(failed)?
            .ok_or_else(|| failed("it ended without an answer"))?;
        match serde_json::from_str(&line).map_err(failed)? {
            Answer::Failed(why) => Err(failed(why)),
            answer => Ok(answer),
        }
    }

    /// Ends it in order: it gives back what it holds.
    async fn stop(mut self) -> Result<()> {
        drop(self.orders);
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(failed(status)),
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(failed("it does not end")),
        }
    }
}

/// A process that holds a lock until it is killed.
pub(crate) struct HolderProcess {
    worker: Worker,
    /// When it sent the request that was granted.
    pub(crate) asked: Moment,
}

impl HolderProcess {
    pub(crate) async fn start(ground: &Ground<'_>, name: &str, expiry: Duration) -> Result<Self> {
        let expiry_ms = u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX);
        let mut worker = Worker::start(ground, name, Job::Hold { expiry_ms }).await?;
        match worker.answer(PATIENCE).await? {
            Answer::Holds { asked } => Ok(HolderProcess { worker, asked: Moment::from_nanos(asked) }),
            other => Err(failed(format!("an answer that nobody asked for: {other:?}"))),
        }
    }

    /// SIGKILL.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.worker.child.kill().await.map_err(failed)
    }
}

/// Processes whose tasks all want one lock.
pub(crate) struct Contenders {
    workers: Vec<Worker>,
    each: usize,
}

impl Contenders {
    pub(crate) async fn start(
        ground: &Ground<'_>,
        processes: usize,
        each: usize,
        name: &str,
    ) -> Result<Self> {
        let mut workers = Vec::new();
        for _ in 0..processes {
            workers.push(Worker::start(ground, name, Job::Contend { tasks: each }).await?);
        }
        for worker in &mut workers {
            worker.answer(PATIENCE).await?;
        }
        Ok(Contenders { workers, each })
    }

    pub(crate) async fn stop(self) -> Result<()> {
        for worker in self.workers {
            worker.stop().await?;
        }
        Ok(())
    }
}

impl Load for Contenders {
    async fn slice(&mut self, length: Duration) -> Result<Tally> {
        let begun = Instant::now();
        let slice_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        for worker in &mut self.workers {
            worker.send(&Go { slice_ms }).await?;
        }
        let mut tally = Tally::default();
        for worker in &mut self.workers {
            match worker.answer(length + PATIENCE).await? {
                Answer::Slice { counts, latencies, cpu_ns } if counts.len() == self.each => {
                    tally.counts.extend(counts);
                    latencies.iter().for_each(|(nanos, times)| tally.latencies.record_many(*nanos, *times));
                    tally.cpu += Duration::from_nanos(cpu_ns);
                }
                other => return Err(failed(format!("an answer that nobody asked for: {other:?}"))),
            }
        }
        tally.elapsed = begun.elapsed();
        Ok(tally)
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("a process of the benchmark: {why}"))
}
