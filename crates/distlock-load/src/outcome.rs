//! The result of a run.

use serde::Serialize;

use crate::bench::BenchContext;
use crate::interleave::Measurement;
use crate::latencies::Latencies;
use crate::usage;
use crate::workload::Tally;

/// The outcome of one run of a scenario. Figures that do not apply are `None`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The scenario; `contended-processes` is `contended` across processes.
    pub scenario: &'static str,
    /// The store, without secrets.
    pub store: String,
    /// The number of tasks, contenders or held locks.
    pub tasks: usize,
    /// The number of processes.
    pub processes: usize,
    /// Operations per second of all tasks.
    pub ops_per_s: Option<f64>,
    /// The median latency.
    pub p50_us: Option<f64>,
    /// The 99th percentile of the latency.
    pub p99_us: Option<f64>,
    /// Operations per second of the baseline in the same run.
    pub baseline_ops_per_s: Option<f64>,
    /// The median latency of the baseline in the same run.
    pub baseline_p50_us: Option<f64>,
    /// distlock / baseline: of the rates in `throughput` and `contended` (above 1: faster than the baseline), of the median
    /// latencies elsewhere (below 1: faster).
    pub ratio: Option<f64>,
    /// Requests to the server per operation, as counted by the server.
    pub requests_per_op: Option<f64>,
    /// Most / fewest operations of a task.
    pub fairness: Option<f64>,
    /// Memory of this process per held lock.
    pub rss_per_lock_bytes: Option<u64>,
    /// CPU time of the client per operation.
    pub cpu_us_per_op: Option<f64>,
    /// The share of one core that the client used.
    pub cpu_cores: Option<f64>,
    /// What processes that only wait send together, per second: statements where the server counts those, else requests.
    pub waiting_per_s: Option<f64>,
    /// Between contenders of several processes: the median time from the call of `release` until the next waiter has the lock.
    pub handoff_p50_us: Option<f64>,
    /// Memory of this process at the end of the run.
    pub rss_bytes: Option<u64>,
    /// All latencies.
    pub latencies: Latencies,
    /// All latencies of the baseline.
    pub baseline_latencies: Option<Latencies>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// The record of `distlock bench --json`; null where a figure does not apply.
///
/// Scripts use these field names, so the baseline keeps its first name `raw` here.
#[derive(Clone, Debug, Serialize)]
pub struct JsonRecord<'a> {
    scenario: &'a str,
    store: &'a str,
    tasks: usize,
    ops_per_s: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    #[serde(rename = "raw_ops_per_s")]
    baseline_ops_per_s: Option<f64>,
    #[serde(rename = "raw_p50_us")]
    baseline_p50_us: Option<f64>,
    ratio: Option<f64>,
    requests_per_op: Option<f64>,
    fairness: Option<f64>,
    rss_per_lock_bytes: Option<u64>,
}

impl JsonRecord<'_> {
    /// The names of the fields, sorted.
    pub const FIELDS: [&'static str; 12] = [
        "fairness",
        "ops_per_s",
        "p50_us",
        "p99_us",
        "ratio",
        "raw_ops_per_s",
        "raw_p50_us",
        "requests_per_op",
        "rss_per_lock_bytes",
        "scenario",
        "store",
        "tasks",
    ];
}

impl Outcome {
    /// The outcome of a measurement, without the ratio, which depends on the scenario.
    pub(crate) fn of(
        context: &BenchContext<'_>,
        scenario: &'static str,
        tasks: usize,
        measurement: Measurement,
    ) -> Self {
        let Measurement { ours, baseline } = measurement;
        let operations = ours.operations().max(1) as f64;
        Outcome {
            scenario,
            store: context.locks.store().to_owned(),
            tasks,
            processes: 1,
            ops_per_s: ours.per_second(),
            p50_us: ours.latencies.quantile_us(0.5),
            p99_us: ours.latencies.quantile_us(0.99),
            baseline_ops_per_s: baseline.as_ref().and_then(Tally::per_second),
            baseline_p50_us: baseline.as_ref().and_then(|baseline| baseline.latencies.quantile_us(0.5)),
            ratio: None,
            requests_per_op: ours.requests.map(|requests| requests as f64 / operations),
            fairness: (ours.counts.len() > 1).then(|| ours.fairness()).flatten(),
            rss_per_lock_bytes: None,
            cpu_us_per_op: Some(ours.cpu.as_secs_f64() * 1e6 / operations),
            cpu_cores: Some(ours.cpu.as_secs_f64() / ours.elapsed.as_secs_f64().max(1e-9)),
            waiting_per_s: None,
            handoff_p50_us: None,
            rss_bytes: usage::resident_bytes(),
            latencies: ours.latencies,
            baseline_latencies: baseline.map(|baseline| baseline.latencies),
            notes: Vec::new(),
        }
    }

    /// Sets the ratio of the median latencies.
    pub(crate) fn with_latency_ratio(mut self) -> Self {
        self.ratio = self.p50_us.zip(self.baseline_p50_us).map(|(ours, baseline)| ours / baseline);
        self
    }

    /// Sets the ratio of the rates.
    pub(crate) fn with_rate_ratio(mut self) -> Self {
        self.ratio = self.ops_per_s.zip(self.baseline_ops_per_s).map(|(ours, baseline)| ours / baseline);
        self
    }

    /// The record for `--json`, rounded to significant digits.
    #[must_use]
    pub fn json_record(&self) -> JsonRecord<'_> {
        JsonRecord {
            scenario: self.scenario,
            store: &self.store,
            tasks: self.tasks,
            ops_per_s: round(self.ops_per_s, 10.0),
            p50_us: round(self.p50_us, 100.0),
            p99_us: round(self.p99_us, 100.0),
            baseline_ops_per_s: round(self.baseline_ops_per_s, 10.0),
            baseline_p50_us: round(self.baseline_p50_us, 100.0),
            ratio: round(self.ratio, 1000.0),
            requests_per_op: round(self.requests_per_op, 10_000.0),
            fairness: round(self.fairness, 1000.0),
            rss_per_lock_bytes: self.rss_per_lock_bytes,
        }
    }

    /// All figures of the outcome, for the reports of `bench/run`.
    #[must_use]
    pub fn detail(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self.json_record()).unwrap_or_default();
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
            object.insert("waiting_per_s".into(), round(self.waiting_per_s, 10.0).into());
            object.insert("handoff_p50_us".into(), round(self.handoff_p50_us, 10.0).into());
            object.insert("rss_bytes".into(), self.rss_bytes.into());
            object.insert("latency_us".into(), quantiles(&self.latencies));
            for (short, long) in [("raw_ops_per_s", "baseline_ops_per_s"), ("raw_p50_us", "baseline_p50_us")]
            {
                if let Some(figure) = object.remove(short) {
                    object.insert(long.into(), figure);
                }
            }
            object
                .insert("baseline_latency_us".into(), self.baseline_latencies.as_ref().map(quantiles).into());
            object.insert("notes".into(), self.notes.clone().into());
        }
        value
    }
}

fn round(value: Option<f64>, steps: f64) -> Option<f64> {
    value.map(|value| (value * steps).round() / steps)
}
