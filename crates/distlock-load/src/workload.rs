//! Workloads: tasks in a closed loop, run in slices.

use std::future::Future;
use std::time::{Duration, Instant};

use distlock_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

use crate::latencies::Latencies;
use crate::usage;

/// The result of one slice, or the sum of several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// The number of completed operations of each task.
    pub(crate) counts: Vec<u64>,
    pub(crate) latencies: Latencies,
    pub(crate) elapsed: Duration,
    /// CPU time of the client.
    pub(crate) cpu: Duration,
    /// Requests, as counted by the server.
    pub(crate) requests: Option<u64>,
}

impl Tally {
    pub(crate) fn operations(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds a later slice of the same tasks.
    pub(crate) fn add(&mut self, slice: &Tally) {
        if self.counts.len() < slice.counts.len() {
            self.counts.resize(slice.counts.len(), 0);
        }
        for (sum, count) in self.counts.iter_mut().zip(&slice.counts) {
            *sum += count;
        }
        self.latencies.merge(&slice.latencies);
        self.elapsed += slice.elapsed;
        self.cpu += slice.cpu;
        self.requests = match (self.requests, slice.requests) {
            (Some(sum), Some(more)) => Some(sum + more),
            (None, more) => more,
            (sum, None) => sum,
        };
    }

    pub(crate) fn per_second(&self) -> Option<f64> {
        let seconds = self.elapsed.as_secs_f64();
        (seconds > 0.0 && self.operations() > 0).then(|| self.operations() as f64 / seconds)
    }

    /// Most / fewest operations of a task.
    pub(crate) fn fairness(&self) -> Option<f64> {
        let (most, fewest) = (self.counts.iter().max()?, self.counts.iter().min()?);
        Some(*most as f64 / (*fewest).max(1) as f64)
    }
}

/// A load that runs in slices.
pub(crate) trait Workload {
    /// Runs for about this long, each task at least once. Operations in progress at the end are completed and counted.
    fn slice(&mut self, length: Duration) -> impl Future<Output = Result<Tally>> + Send;
}

/// The operation that one task repeats.
pub(crate) trait Operation: Send + 'static {
    /// Runs one operation and returns the duration of its measured part.
    fn run_once(&mut self) -> impl Future<Output = Result<Duration>> + Send;
}

/// A workload of tasks in this process.
pub(crate) struct Tasks<S>(pub(crate) Vec<S>);

impl<S: Operation> Workload for Tasks<S> {
    async fn slice(&mut self, length: Duration) -> Result<Tally> {
        let (begun, cpu) = (Instant::now(), usage::cpu_time());
        let mut running = JoinSet::new();
        let count = self.0.len();
        for (number, mut run_once) in self.0.drain(..).enumerate() {
            running.spawn(async move {
                // Recorded after the slice, so that no histogram is updated between two operations.
                let mut took = Vec::with_capacity(1024);
                let mut ended = Ok(());
                // At least once, also if the slice is over before a busy machine runs this task.
                loop {
                    match run_once.run_once().await {
                        Ok(duration) => took.push(duration),
                        Err(error) => ended = Err(error),
                    }
                    if ended.is_err() || begun.elapsed() >= length {
                        break;
                    }
                }
                (number, run_once, took, ended)
            });
        }
        let mut tally = Tally { counts: vec![0; count], ..Tally::default() };
        let mut finished = Vec::with_capacity(count);
        let mut failure = None;
        while let Some(joined) = running.join_next().await {
            let (number, run_once, took, ended) = joined.map_err(task_failed)?;
            tally.counts[number] = took.len() as u64;
            took.iter().for_each(|duration| tally.latencies.record(*duration));
            finished.push((number, run_once));
            if let Err(error) = ended {
                failure.get_or_insert(error);
            }
        }
        tally.elapsed = begun.elapsed();
        tally.cpu = usage::cpu_time().saturating_sub(cpu);
        finished.sort_by_key(|(number, _)| *number);
        self.0 = finished.into_iter().map(|(_, run_once)| run_once).collect();
        match failure {
            Some(error) => Err(error),
            None => Ok(tally),
        }
    }
}

/// The error of a failed task of the benchmark itself.
pub(crate) fn task_failed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("a task of the benchmark failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Duration);

    impl Operation for Fixed {
        async fn run_once(&mut self) -> Result<Duration> {
            tokio::task::yield_now().await;
            Ok(self.0)
        }
    }

    #[tokio::test]
    async fn every_task_is_counted_and_runs_in_the_next_slice() {
        let mut tasks = Tasks(vec![Fixed(Duration::from_micros(3)), Fixed(Duration::from_micros(5))]);
        let mut sum = Tally::default();
        for _ in 0..3 {
            let slice = tasks.slice(Duration::ZERO).await.unwrap();
            assert!(slice.counts.iter().all(|count| *count > 0));
            sum.add(&slice);
        }
        assert_eq!(sum.operations(), sum.latencies.count());
        assert!(sum.fairness().is_some_and(|fairness| fairness >= 1.0));
        assert!(sum.per_second().is_some());
    }

    #[test]
    fn a_starved_task_shows_as_unfair() {
        let tally = Tally { counts: vec![503, 0], ..Tally::default() };
        assert_eq!(tally.fairness(), Some(503.0));
    }
}
