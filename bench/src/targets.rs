//! The performance targets, and whether the measured figures meet them: one row per question, one column per store.

use distlock_load::render::{micros, number};
use serde_json::{Value, json};

/// The order of the targets below.
const STORES: [&str; 9] = [
    "redis",
    "postgres",
    "postgres-advisory",
    "mongodb",
    "file",
    "mysql",
    "mysql-session",
    "etcd",
    "zookeeper",
];

/// A store without a target.
const NONE: f64 = f64::NAN;

/// The targets of one figure, in the order of [`STORES`].
#[derive(Clone, Copy, Debug)]
enum Targets {
    AtMost([f64; STORES.len()]),
    AtLeast([f64; STORES.len()]),
}

impl Targets {
    fn of(self, store: &str) -> Option<Target> {
        let index = STORES.iter().position(|name| *name == store)?;
        let target = match self {
            Targets::AtMost(limits) => Target::AtMost(limits[index]),
            Targets::AtLeast(limits) => Target::AtLeast(limits[index]),
        };
        (!target.limit().is_nan()).then_some(target)
    }
}

/// The target of one figure on one store.
#[derive(Clone, Copy, Debug)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn limit(self) -> f64 {
        match self {
            Target::AtMost(limit) | Target::AtLeast(limit) => limit,
        }
    }

    fn is_met(self, value: f64) -> bool {
        // Figures are shown with two or three digits; one that is shown as the limit meets it.
        match self {
            Target::AtMost(limit) => value <= limit * 1.004,
            Target::AtLeast(limit) => value >= limit * 0.996,
        }
    }

    fn text(self, format: fn(f64) -> String) -> String {
        match self {
            Target::AtMost(limit) => format!("≤ {}", format(limit)),
            Target::AtLeast(limit) => format!("≥ {}", format(limit)),
        }
    }
}

/// A question, and where its answer stands in a report.
struct Figure {
    question: &'static str,
    scenario: &'static str,
    /// Only the run with this number of tasks.
    tasks: Option<u64>,
    field: &'static str,
    /// Shows 1 / value.
    inverse: bool,
    format: fn(f64) -> String,
    targets: Targets,
}

impl Figure {
    const fn new(
        question: &'static str,
        scenario: &'static str,
        field: &'static str,
        targets: Targets,
    ) -> Self {
        Figure { question, scenario, tasks: None, field, inverse: false, format: number, targets }
    }

    const fn tasks(mut self, tasks: u64) -> Self {
        self.tasks = Some(tasks);
        self
    }

    const fn inverse(mut self) -> Self {
        self.inverse = true;
        self
    }

    const fn format(mut self, format: fn(f64) -> String) -> Self {
        self.format = format;
        self
    }

    fn value(&self, outcome: &Value) -> Option<f64> {
        let chosen =
            outcome["scenario"] == self.scenario && self.tasks.is_none_or(|tasks| outcome["tasks"] == tasks);
        let value = chosen.then(|| outcome[self.field].as_f64()).flatten()?;
        if self.inverse { (value > 0.0).then(|| 1.0 / value) } else { Some(value) }
    }
}

/// The targets of the first five stores; the others have none.
const fn of_five([a, b, c, d, e]: [f64; 5]) -> [f64; STORES.len()] {
    [a, b, c, d, e, NONE, NONE, NONE, NONE]
}

const REQUESTS: Targets = Targets::AtMost(of_five([2.5, 3.0, 3.0, 3.0, NONE]));
const FAIRNESS: Targets = Targets::AtMost(of_five([1.1; 5]));
const UNLIMITED: Targets = Targets::AtMost([NONE; STORES.len()]);

const FIGURES: &[Figure] = &[
    Figure::new(
        "One task: median of acquire + release, × baseline",
        "uncontended",
        "ratio",
        Targets::AtMost(of_five([1.0, 1.05, 1.1, 1.05, 1.5])),
    ),
    Figure::new(
        "One task: requests per acquire + release",
        "uncontended",
        "requests_per_op",
        Targets::AtMost(of_five([2.0, 2.0, 2.0, 2.0, NONE])),
    ),
    Figure::new(
        "64 tasks, distinct names: rate, × baseline",
        "throughput",
        "ratio",
        Targets::AtLeast(of_five([1.0, NONE, NONE, NONE, 0.8])),
    )
    .tasks(64),
    Figure::new(
        "256 tasks, distinct names: rate, × baseline",
        "throughput",
        "ratio",
        Targets::AtLeast(of_five([1.5, 6.0, 1.5, 7.0, NONE])),
    )
    .tasks(256),
    Figure::new("Handoff to a waiter: median", "handoff", "p50_us", UNLIMITED).format(micros),
    Figure::new(
        "Handoff to a waiter: median, × a bare notification between two connections",
        "handoff",
        "ratio",
        Targets::AtMost(of_five([1.3; 5])),
    ),
    Figure::new(
        "64 contenders, one process: requests per acquisition",
        "contended",
        "requests_per_op",
        REQUESTS,
    )
    .tasks(64),
    Figure::new(
        "64 contenders, 64 processes: requests per acquisition",
        "contended-processes",
        "requests_per_op",
        REQUESTS,
    )
    .tasks(64),
    Figure::new(
        "4 contenders, 4 processes: requests per acquisition",
        "contended-processes",
        "requests_per_op",
        REQUESTS,
    )
    .tasks(4),
    Figure::new("64 contenders, one process: most / fewest acquisitions", "contended", "fairness", FAIRNESS)
        .tasks(64),
    Figure::new(
        "64 contenders, 64 processes: most / fewest acquisitions",
        "contended-processes",
        "fairness",
        FAIRNESS,
    )
    .tasks(64),
    Figure::new(
        "4 contenders, 4 processes: handoff to the next waiter, median",
        "contended-processes",
        "handoff_p50_us",
        UNLIMITED,
    )
    .tasks(4)
    .format(micros),
    Figure::new(
        "64 contenders, 64 processes: handoff to the next waiter, median",
        "contended-processes",
        "handoff_p50_us",
        UNLIMITED,
    )
    .tasks(64)
    .format(micros),
    Figure::new(
        "64 waiting processes: requests per second (MySQL: statements)",
        "contended-processes",
        "waiting_per_s",
        UNLIMITED,
    )
    .tasks(64),
    Figure::new(
        "Held locks, expiry 9 s: locks renewed per request",
        "held",
        "requests_per_op",
        Targets::AtLeast(of_five([200.0, 1000.0, NONE, 1000.0, NONE])),
    )
    .inverse(),
    Figure::new("Held locks: share of one core", "held", "cpu_cores", Targets::AtMost([0.02; STORES.len()]))
        .format(share),
    Figure::new(
        "Held locks: client memory per lock",
        "held",
        "rss_per_lock_bytes",
        Targets::AtMost([400.0; STORES.len()]),
    )
    .format(bytes),
    Figure::new("Held locks: number", "held", "tasks", Targets::AtLeast([100_000.0; STORES.len()]))
        .format(whole),
    Figure::new(
        "Kill -9 of the holder: median past expiry (sessions: past the kill)",
        "takeover",
        "p50_us",
        Targets::AtMost(of_five([5000.0; 5])),
    )
    .format(micros),
];

fn share(value: f64) -> String {
    format!("{value:.3}")
}

fn bytes(value: f64) -> String {
    format!("{value:.0} B")
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

/// The answer to one question on one store.
pub(crate) struct Measured {
    /// The figure, or a dash if it was not measured.
    pub(crate) text: String,
    /// The target, empty if there is none.
    pub(crate) target: String,
    /// `None` without a target or a figure.
    pub(crate) is_met: Option<bool>,
}

/// The answers to one question.
pub(crate) struct Row {
    pub(crate) question: &'static str,
    /// One for each report, in their order.
    pub(crate) measured: Vec<Measured>,
}

/// Compares the reports of the stores, as `stores` writes them, with the targets.
pub(crate) fn compare(reports: &[Value]) -> Vec<Row> {
    let row = |figure: &Figure| Row {
        question: figure.question,
        measured: reports.iter().map(|report| measured(figure, report)).collect(),
    };
    FIGURES.iter().map(row).collect()
}

fn measured(figure: &Figure, report: &Value) -> Measured {
    let outcomes = report["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
    let target = figure.targets.of(report["store"].as_str().unwrap_or_default());
    let value = outcomes.iter().find_map(|outcome| figure.value(outcome));
    Measured {
        text: value.map_or_else(|| "–".to_owned(), figure.format),
        target: target.map(|target| target.text(figure.format)).unwrap_or_default(),
        is_met: value.zip(target).map(|(value, target)| target.is_met(value)),
    }
}

/// The rows as JSON.
pub(crate) fn as_json(reports: &[Value], rows: &[Row]) -> Value {
    let of_row = |row: &Row| {
        let stores = reports.iter().zip(&row.measured).map(|(report, measured)| {
            json!({
                "store": report["store"],
                "measured": measured.text,
                "target": measured.target,
                "met": measured.is_met,
            })
        });
        json!({ "question": row.question, "stores": stores.collect::<Vec<_>>() })
    };
    rows.iter().map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_compared_with_the_target_of_its_store() {
        let report = |store: &str, ratio: f64| json!({ "store": store, "outcomes": [{ "scenario": "uncontended", "ratio": ratio }] });
        let rows = compare(&[report("redis", 1.03), report("postgres", 1.03), report("file", 9.0)]);
        let met: Vec<_> = rows[0].measured.iter().map(|measured| measured.is_met).collect();
        assert_eq!(met, [Some(false), Some(true), Some(false)]);
        assert_eq!(rows[0].measured[0].target, "≤ 1.00");
        // A figure that was not measured neither meets nor misses its target.
        assert!(rows[2].measured.iter().all(|measured| measured.is_met.is_none()));
    }
}
