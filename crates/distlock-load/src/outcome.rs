//! What is reported of a run.

use serde::Serialize;

use crate::bench::Ground;
use crate::interleave::Pair;
use crate::latencies::Latencies;
use crate::load::Tally;
use crate::usage;

/// The outcome of one run of a scenario. What does not apply is `None`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Which; `contended-processes` is `contended` across processes.
    pub scenario: &'static str,
    /// What and where the store is.
    pub store: String,
    /// Tasks, contenders, or locks held.
    pub tasks: usize,
    /// In how many processes the tasks ran.
    pub processes: usize,
    /// Operations a second, all tasks together.
    pub ops_per_s: Option<f64>,
    /// The median.
    pub p50_us: Option<f64>,
    /// What one operation in a hundred exceeded.
    pub p99_us: Option<f64>,
    /// Operations a second of the raw driver in the same run.
    pub raw_ops_per_s: Option<f64>,
    /// The median of the raw driver in the same run.
    pub raw_p50_us: Option<f64>,
    /// Ours against raw: of the medians where time is what counts (below 1: faster than raw), of the rates in
    /// `throughput` and `contended` (above 1: faster than raw).
    pub ratio: Option<f64>,
    /// Requests to the server for each operation, by the server's own count.
    pub requests_per_op: Option<f64>,
    /// Most against fewest operations of a task.
    pub fairness: Option<f64>,
    /// What one held lock costs in this process.
    pub rss_per_lock_bytes: Option<u64>,
    /// CPU time of the client for an operation.
    pub cpu_us_per_op: Option<f64>,
    /// The share of one core that the client used.
    pub cpu_cores: Option<f64>,
    /// Memory of this process at the end of the run.
    pub rss_bytes: Option<u64>,
    /// All latencies.
    pub latencies: Latencies,
    /// All latencies of the raw driver.
    pub raw_latencies: Option<Latencies>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// What other programs get: these fields, and null where one does not apply.
#[derive(Clone, Debug, Serialize)]
pub struct Line<'a> {
    scenario: &'a str,
    store: &'a str,
    tasks: usize,
    ops_per_s: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    raw_ops_per_s: Option<f64>,
    raw_p50_us: Option<f64>,
    ratio: Option<f64>,
    requests_per_op: Option<f64>,
    fairness: Option<f64>,
    rss_per_lock_bytes: Option<u64>,
}

impl Outcome {
    /// An outcome with everything that a pair of tallies gives; the ratio is left to the scenario.
    pub(crate) fn of(ground: &Ground<'_>, scenario: &'static str, tasks: usize, pair: Pair) -> Self {
        let Pair { ours, raw } = pair;
        let operations = ours.operations().max(1) as f64;
        Outcome {
            scenario,
            store: ground.locks.store().to_owned(),
            tasks,
            processes: 1,
            ops_per_s: ours.per_second(),
            p50_us: ours.latencies.quantile_us(0.5),
            p99_us: ours.latencies.quantile_us(0.99),
            raw_ops_per_s: raw.as_ref().and_then(Tally::per_second),
            raw_p50_us: raw.as_ref().and_then(|raw| raw.latencies.quantile_us(0.5)),
            ratio: None,
            requests_per_op: ours.requests.map(|requests| requests as f64 / operations),
            fairness: (ours.counts.len() > 1).then(|| ours.fairness()).flatten(),
            rss_per_lock_bytes: None,
            cpu_us_per_op: Some(ours.cpu.as_secs_f64() * 1e6 / operations),
            cpu_cores: Some(ours.cpu.as_secs_f64() / ours.elapsed.as_secs_f64().max(1e-9)),
            rss_bytes: usage::resident_bytes(),
            latencies: ours.latencies,
            raw_latencies: raw.map(|raw| raw.latencies),
            notes: Vec::new(),
        }
    }

    /// The ratio of the medians.
    pub(crate) fn ratio_of_times(mut self) -> Self {
        self.ratio = self.p50_us.zip(self.raw_p50_us).map(|(ours, raw)| ours / raw);
        self
    }

    /// The ratio of the rates.
    pub(crate) fn ratio_of_rates(mut self) -> Self {
        self.ratio = self.ops_per_s.zip(self.raw_ops_per_s).map(|(ours, raw)| ours / raw);
        self
    }

    /// The line for other programs, rounded to what was measured.
    #[must_use]
    pub fn line(&self) -> Line<'_> {
        Line {
            scenario: self.scenario,
            store: &self.store,
            tasks: self.tasks,
            ops_per_s: round(self.ops_per_s, 10.0),
            p50_us: round(self.p50_us, 100.0),
            p99_us: round(self.p99_us, 100.0),
            raw_ops_per_s: round(self.raw_ops_per_s, 10.0),
            raw_p50_us: round(self.raw_p50_us, 100.0),
            ratio: round(self.ratio, 1000.0),
            requests_per_op: round(self.requests_per_op, 10_000.0),
            fairness: round(self.fairness, 1000.0),
            rss_per_lock_bytes: self.rss_per_lock_bytes,
        }
    }

    /// The line, and what people want to know beyond it.
    #[must_use]
    pub fn detail(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self.line()).unwrap_or_default();
        if let Some(object) = value.as_object_mut() {
            let quantiles = |latencies: &Latencies| {
                let at = |share| round(latencies.quantile_us(share), 100.0);
                serde_json::json!({
                    "count": latencies.count(), "p10": at(0.1), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99),
                    "p999": at(0.999), "max": round(latencies.max_us(), 100.0),
                })
            };
            object.insert("processes".into(), self.processes.into());
            object.insert("cpu_us_per_op".into(), round(self.cpu_us_per_op, 100.0).into());
            object.insert("cpu_cores".into(), round(self.cpu_cores, 10_000.0).into());
            object.insert("rss_bytes".into(), self.rss_bytes.into());
            object.insert("latency_us".into(), quantiles(&self.latencies));
            object.insert("raw_latency_us".into(), self.raw_latencies.as_ref().map(quantiles).into());
            object.insert("notes".into(), self.notes.clone().into());
        }
        value
    }
}

fn round(value: Option<f64>, steps: f64) -> Option<f64> {
    value.map(|value| (value * steps).round() / steps)
}
