//! The benchmark's side of the protocol.

use std::process::Stdio;
use std::time::{Duration, Instant};

use distlock_core::{Error, ErrorKind, Moment, Result};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{SliceRequest, WorkerConfig, WorkerJob, WorkerReply};
use crate::bench::BenchContext;
use crate::handoffs::Hold;
use crate::workload::{Tally, Workload};

/// How long a worker may take to connect, and to reply after its slice.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// How many workers connect at one moment. A server on a small machine that a thousand processes connect to at once needs longer
/// for it than a client may wait.
const GROUP: usize = 50;

/// The pause between the first attempts of two processes.
const STAGGER: Duration = Duration::from_millis(10);

/// A running worker. It is killed when this is dropped.
struct Worker {
    child: Child,
    requests: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    async fn start(context: &BenchContext<'_>, name: &str, job: WorkerJob) -> Result<Self> {
        let (program, args) = context.store.worker.as_ref().ok_or_else(|| failed("no program was given"))?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (Some(requests), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no standard input or output"));
        };
        let mut worker = Worker { child, requests, replies: BufReader::new(out).lines() };
        worker.send(&WorkerConfig { url: context.store.url.clone(), name: name.to_owned(), job }).await?;
        Ok(worker)
    }

    async fn send(&mut self, request: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(request).map_err(failed)?;
        line.push('\n');
        self.requests.write_all(line.as_bytes()).await.map_err(failed)
    }

    async fn reply(&mut self, within: Duration) -> Result<WorkerReply> {
        let line = tokio::time::timeout(within, self.replies.next_line())
            .await
            .map_err(|_| failed(format!("no reply within {within:?}")))?
            .map_err(failed)?
            .ok_or_else(|| failed("it ended without a reply"))?;
        match serde_json::from_str(&line).map_err(failed)? {
            WorkerReply::Failed(why) => Err(failed(why)),
            reply => Ok(reply),
        }
    }

    /// Ends the worker cleanly: it releases its locks.
    async fn stop(mut self) -> Result<()> {
        drop(self.requests);
        let ended = tokio::time::timeout(REPLY_LIMIT, self.child.wait()).await;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => {
                // Its last words say why.
                let line = self.replies.next_line().await.ok().flatten().unwrap_or_default();
                match serde_json::from_str(&line) {
                    Ok(WorkerReply::Failed(why)) => Err(failed(why)),
                    _ => Err(failed(status)),
                }
            }
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(failed("it did not end in time")),
        }
    }
}

/// A process that holds a lock until it is killed.
pub(crate) struct HolderProcess {
    worker: Worker,
    /// When it sent the granted request.
    pub(crate) requested: Moment,
}

impl HolderProcess {
    pub(crate) async fn start(context: &BenchContext<'_>, name: &str, expiry: Duration) -> Result<Self> {
        let expiry_ms = u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX);
        let mut worker = Worker::start(context, name, WorkerJob::Hold { expiry_ms }).await?;
        match worker.reply(REPLY_LIMIT).await? {
            WorkerReply::Holds { requested } => {
                Ok(HolderProcess { worker, requested: Moment::from_nanos(requested) })
            }
            other => Err(failed(format!("unexpected reply: {other:?}"))),
        }
    }

    /// Sends SIGKILL.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.worker.child.kill().await.map_err(failed)
    }
}

/// Processes whose tasks contend for one lock.
pub(crate) struct Contenders {
    workers: Vec<Worker>,
    each: usize,
    /// What they recorded.
    holds: Vec<Hold>,
}

impl Contenders {
    pub(crate) async fn start(
        context: &BenchContext<'_>,
        processes: usize,
        each: usize,
        name: &str,
    ) -> Result<Self> {
        let mut workers: Vec<Worker> = Vec::with_capacity(processes);
        while workers.len() < processes {
            let connected = workers.len();
            for _ in connected..processes.min(connected + GROUP) {
                workers.push(Worker::start(context, name, WorkerJob::Contend { tasks: each }).await?);
            }
            for worker in &mut workers[connected..] {
                worker.reply(REPLY_LIMIT).await?;
            }
        }
        let mut contenders = Contenders { workers, each, holds: Vec::new() };
        contenders.warm_up().await?;
        Ok(contenders)
    }

    /// How the processes were started, if not all at once.
    pub(crate) fn start_note(&self) -> Option<String> {
        let processes = self.workers.len();
        (processes > GROUP)
            .then(|| format!("{processes} processes connected in groups of {GROUP}; measured once all had"))
    }

    /// Lets one process after the other begin to contend. The first waiter of a process opens its subscription, and a server
    /// that is to open a thousand connections at once answers nothing else for seconds.
    async fn warm_up(&mut self) -> Result<()> {
        let total = STAGGER * u32::try_from(self.workers.len()).unwrap_or(u32::MAX);
        let begun = Instant::now();
        for worker in &mut self.workers {
            let left = total.saturating_sub(begun.elapsed());
            worker
                .send(&SliceRequest { slice_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX) })
                .await?;
            tokio::time::sleep(STAGGER).await;
        }
        for worker in &mut self.workers {
            worker.reply(total + REPLY_LIMIT).await?;
        }
        Ok(())
    }

    /// The holds since the last call.
    pub(crate) fn take_holds(&mut self) -> Vec<Hold> {
        std::mem::take(&mut self.holds)
    }

    /// Ends all of them. Returns how many did not end cleanly, and why the first of them did not.
    pub(crate) async fn stop(self) -> Option<(usize, Error)> {
        let mut failures = None;
        for worker in self.workers {
            if let Err(error) = worker.stop().await {
                failures.get_or_insert((0, error)).0 += 1;
            }
        }
        failures
    }
}

impl Workload for Contenders {
    async fn slice(&mut self, length: Duration) -> Result<Tally> {
        let begun = Instant::now();
        let slice_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        for worker in &mut self.workers {
            worker.send(&SliceRequest { slice_ms }).await?;
        }
        let mut tally = Tally::default();
        for worker in &mut self.workers {
            match worker.reply(length + REPLY_LIMIT).await? {
                WorkerReply::Slice { counts, latencies, cpu_ns, holds } if counts.len() == self.each => {
                    tally.counts.extend(counts);
                    self.holds.extend(holds);
                    latencies.iter().for_each(|(nanos, times)| tally.latencies.record_many(*nanos, *times));
                    tally.cpu += Duration::from_nanos(cpu_ns);
                }
                other => return Err(failed(format!("unexpected reply: {other:?}"))),
            }
        }
        tally.elapsed = begun.elapsed();
        Ok(tally)
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("a worker process of the benchmark failed: {why}"))
}
