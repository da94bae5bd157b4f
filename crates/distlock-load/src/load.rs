//! Tasks in a closed loop, for one slice of time.

use std::future::Future;
use std::time::{Duration, Instant};

use distlock_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

use crate::latencies::Latencies;
use crate::usage;

/// What came of one slice, or of several together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// How many operations each task ended.
    pub(crate) counts: Vec<u64>,
    pub(crate) latencies: Latencies,
    pub(crate) elapsed: Duration,
    /// CPU time of the client.
    pub(crate) cpu: Duration,
    /// Requests by the server's count.
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

    /// Most against fewest operations of a task.
    pub(crate) fn fairness(&self) -> Option<f64> {
        let (most, fewest) = (self.counts.iter().max()?, self.counts.iter().min()?);
        Some(*most as f64 / (*fewest).max(1) as f64)
    }
}

/// Something that can be put under load for a while, and again.
pub(crate) trait Load {
    /// Runs for about this long. What is under way then is ended, and counts.
    fn slice(&mut self, length: Duration) -> impl Future<Output = Result<Tally>> + Send;
}

/// One of many that do the same.
pub(crate) trait Step: Send + 'static {
    /// One operation. Answers how long the part took that is measured.
    fn step(&mut self) -> impl Future<Output = Result<Duration>> + Send;
}

/// A load of tasks in this process.
pub(crate) struct Tasks<S>(pub(crate) Vec<S>);

impl<S: Step> Load for Tasks<S> {
    async fn slice(&mut self, length: Duration) -> Result<Tally> {
        let (begun, cpu) = (Instant::now(), usage::cpu_time());
        let mut running = JoinSet::new();
        let count = self.0.len();
        for (number, mut step) in self.0.drain(..).enumerate() {
            running.spawn(async move {
                // Kept as they are until the slice is over: no histogram is touched between two operations.
                let mut took = Vec::with_capacity(1024);
                let mut ended = Ok(());
                while begun.elapsed() < length {
                    match step.step().await {
                        Ok(duration) => took.push(duration),
                        Err(error) => {
                            ended = Err(error);
                            break;
                        }
                    }
                }
                (number, step, took, ended)
            });
        }
        let mut tally = Tally { counts: vec![0; count], ..Tally::default() };
        let mut back = Vec::with_capacity(count);
        let mut failure = None;
        while let Some(joined) = running.join_next().await {
            let (number, step, took, ended) = joined.map_err(broken)?;
            tally.counts[number] = took.len() as u64;
            took.iter().for_each(|duration| tally.latencies.record(*duration));
            back.push((number, step));
            if let Err(error) = ended {
                failure.get_or_insert(error);
            }
        }
        tally.elapsed = begun.elapsed();
        tally.cpu = usage::cpu_time().saturating_sub(cpu);
        back.sort_by_key(|(number, _)| *number);
        self.0 = back.into_iter().map(|(_, step)| step).collect();
        match failure {
            Some(error) => Err(error),
            None => Ok(tally),
        }
    }
}

/// A task of the benchmark itself ended badly.
pub(crate) fn broken(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("a task of the benchmark did not end: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Duration);

    impl Step for Fixed {
        async fn step(&mut self) -> Result<Duration> {
            tokio::task::yield_now().await;
            Ok(self.0)
        }
    }

    #[tokio::test]
    async fn every_task_is_counted_and_comes_back_for_the_next_slice() {
        let mut tasks = Tasks(vec![Fixed(Duration::from_micros(3)), Fixed(Duration::from_micros(5))]);
        let mut sum = Tally::default();
        for _ in 0..3 {
            let slice = tasks.slice(Duration::from_millis(2)).await.unwrap();
            assert!(slice.counts.iter().all(|count| *count > 0));
            sum.add(&slice);
        }
        assert_eq!(sum.operations(), sum.latencies.count());
        assert!(sum.fairness().is_some_and(|fairness| fairness >= 1.0));
        assert!(sum.per_second().is_some());
    }

    #[test]
    fn a_task_that_got_nothing_shows_as_unfair() {
        let tally = Tally { counts: vec![503, 0], ..Tally::default() };
        assert_eq!(tally.fairness(), Some(503.0));
    }
}
