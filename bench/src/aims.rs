//! The aims of the design, and what was reached: one row for each figure, one column for each store.

use distlock_load::render::{micros, number};
use serde_json::{Value, json};

/// How a figure is held against its aim.
#[derive(Clone, Copy, Debug)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    fn is_met(self, value: f64) -> bool {
        // Figures are shown with two or three digits; what is shown as the limit is within it.
        match self {
            Aim::AtMost(limit) => value <= limit * 1.004,
            Aim::AtLeast(limit) => value >= limit * 0.996,
        }
    }
}

/// One row of the table.
struct Figure {
    title: &'static str,
    /// What those had whom users would pick instead, measured before this project began.
    peers: &'static str,
    aim: &'static str,
    /// The aim of each store that has one.
    aims: &'static [(&'static str, Aim)],
    /// Which outcomes it is taken from, and the figure; the worst one counts.
    of: fn(&Value) -> Option<f64>,
    show: fn(f64) -> String,
}

/// What the report of a store says about a figure.
pub(crate) struct Reached {
    pub(crate) text: String,
    /// `None` where there is no aim, or nothing was measured.
    pub(crate) is_met: Option<bool>,
}

/// A row that is filled in.
pub(crate) struct Row {
    pub(crate) title: &'static str,
    pub(crate) peers: &'static str,
    pub(crate) aim: &'static str,
    /// One for each report, in their order.
    pub(crate) reached: Vec<Reached>,
}

const FIGURES: &[Figure] = &[
    Figure {
        title: "one task, acquire + release: median, × raw",
        peers: "rslock 1.04, distributed-lock 1.16, redsync 1.6",
        aim: "Redis ≤ 1.0; PostgreSQL, MongoDB ≤ 1.05",
        aims: &[
            ("redis", Aim::AtMost(1.0)),
            ("postgres", Aim::AtMost(1.05)),
            ("postgres-advisory", Aim::AtMost(1.05)),
            ("mongodb", Aim::AtMost(1.05)),
        ],
        of: |outcome| pick(outcome, "uncontended", "ratio"),
        show: number,
    },
    Figure {
        title: "one task: requests to the server for a cycle",
        peers: "",
        aim: "2",
        aims: &[
            ("redis", Aim::AtMost(2.0)),
            ("postgres", Aim::AtMost(2.0)),
            ("postgres-advisory", Aim::AtMost(2.0)),
            ("mongodb", Aim::AtMost(2.0)),
        ],
        of: |outcome| pick(outcome, "uncontended", "requests_per_op"),
        show: number,
    },
    Figure {
        title: "256 tasks, distinct names: rate, × raw",
        peers: "rslock 0.73, distributed-lock 0.42, redsync 0.06",
        aim: "Redis ≥ 1.5; PostgreSQL ≥ 6 (eight raw connections); MongoDB ≥ 7",
        aims: &[
            ("redis", Aim::AtLeast(1.5)),
            ("postgres", Aim::AtLeast(6.0)),
            ("mongodb", Aim::AtLeast(7.0)),
        ],
        of: |outcome| (outcome["tasks"] == 256).then(|| pick(outcome, "throughput", "ratio")).flatten(),
        show: number,
    },
    Figure {
        title: "hand-over to a waiter: median",
        peers: "redis-py 87 ms, rslock 100, node-redlock 178, mongodb-lock 487; PostgreSQL advisory 0.12",
        aim: "Redis ≤ 0.3 ms; PostgreSQL ≤ 0.5 ms; MongoDB ≤ 1.5 ms",
        aims: &[
            ("redis", Aim::AtMost(300.0)),
            ("postgres", Aim::AtMost(500.0)),
            ("postgres-advisory", Aim::AtMost(500.0)),
            ("mongodb", Aim::AtMost(1500.0)),
        ],
        of: |outcome| pick(outcome, "handover", "p50_us"),
        show: micros,
    },
    Figure {
        title: "64 contenders in one process: requests for an acquisition",
        peers: "5 to 16; broadcast 61 to 66",
        aim: "Redis ≤ 2.5; others ≤ 3",
        aims: REQUESTS_OF_CONTENDERS,
        of: |outcome| contended(outcome, "contended", 64, "requests_per_op"),
        show: number,
    },
    Figure {
        title: "64 contenders in 64 processes: requests for an acquisition",
        peers: "",
        aim: "Redis ≤ 2.5; others ≤ 3",
        aims: REQUESTS_OF_CONTENDERS,
        of: |outcome| contended(outcome, "contended-processes", 64, "requests_per_op"),
        show: number,
    },
    Figure {
        title: "4 contenders in 4 processes: requests for an acquisition",
        peers: "",
        aim: "Redis ≤ 2.5; others ≤ 3",
        aims: REQUESTS_OF_CONTENDERS,
        of: |outcome| contended(outcome, "contended-processes", 4, "requests_per_op"),
        show: number,
    },
    Figure {
        title: "64 contenders in one process: most / fewest acquisitions",
        peers: "",
        aim: "≤ 1.1",
        aims: FAIRNESS,
        of: |outcome| contended(outcome, "contended", 64, "fairness"),
        show: number,
    },
    Figure {
        title: "64 contenders in 64 processes: most / fewest acquisitions",
        peers: "",
        aim: "≤ 1.1",
        aims: FAIRNESS,
        of: |outcome| contended(outcome, "contended-processes", 64, "fairness"),
        show: number,
    },
    Figure {
        title: "held locks, expiry 9 s: locks for each request of a tick",
        peers: "distributed-lock: 1",
        aim: "Redis ≥ 200; others ≥ 1000",
        aims: &[
            ("redis", Aim::AtLeast(200.0)),
            ("postgres", Aim::AtLeast(1000.0)),
            ("mongodb", Aim::AtLeast(1000.0)),
        ],
        of: |outcome| {
            pick(outcome, "held", "requests_per_op")
                .filter(|requests| *requests > 0.0)
                .map(|requests| 1.0 / requests)
        },
        show: number,
    },
    Figure {
        title: "held locks: share of one core",
        peers: "distributed-lock 0.71",
        aim: "≤ 0.02",
        aims: &[
            ("redis", Aim::AtMost(0.02)),
            ("postgres", Aim::AtMost(0.02)),
            ("postgres-advisory", Aim::AtMost(0.02)),
            ("mongodb", Aim::AtMost(0.02)),
            ("file", Aim::AtMost(0.02)),
        ],
        of: |outcome| pick(outcome, "held", "cpu_cores"),
        show: |value| format!("{value:.3}"),
    },
    Figure {
        title: "held locks: memory for each",
        peers: "distributed-lock 1.8 KB",
        aim: "≤ 500 B",
        aims: &[
            ("redis", Aim::AtMost(500.0)),
            ("postgres", Aim::AtMost(500.0)),
            ("postgres-advisory", Aim::AtMost(500.0)),
            ("mongodb", Aim::AtMost(500.0)),
        ],
        of: |outcome| pick(outcome, "held", "rss_per_lock_bytes"),
        show: |value| format!("{value:.0} B"),
    },
    Figure {
        title: "held locks: how many",
        peers: "",
        aim: "100,000",
        aims: &[
            ("redis", Aim::AtLeast(100_000.0)),
            ("postgres", Aim::AtLeast(100_000.0)),
            ("mongodb", Aim::AtLeast(100_000.0)),
        ],
        of: |outcome| pick(outcome, "held", "tasks"),
        show: |value| format!("{value:.0}"),
    },
    Figure {
        title: "after kill -9 of the holder: median past expiry (sessions: past the kill)",
        peers: "6 to 69 ms; mongodb-lock never",
        aim: "≤ 5 ms",
        aims: &[
            ("redis", Aim::AtMost(5000.0)),
            ("postgres", Aim::AtMost(5000.0)),
            ("postgres-advisory", Aim::AtMost(5000.0)),
            ("mongodb", Aim::AtMost(5000.0)),
            ("file", Aim::AtMost(5000.0)),
        ],
        of: |outcome| pick(outcome, "takeover", "p50_us"),
        show: micros,
    },
];

const REQUESTS_OF_CONTENDERS: &[(&str, Aim)] = &[
    ("redis", Aim::AtMost(2.5)),
    ("postgres", Aim::AtMost(3.0)),
    ("postgres-advisory", Aim::AtMost(3.0)),
    ("mongodb", Aim::AtMost(3.0)),
];

const FAIRNESS: &[(&str, Aim)] = &[
    ("redis", Aim::AtMost(1.1)),
    ("postgres", Aim::AtMost(1.1)),
    ("postgres-advisory", Aim::AtMost(1.1)),
    ("mongodb", Aim::AtMost(1.1)),
    ("file", Aim::AtMost(1.1)),
];

fn pick(outcome: &Value, scenario: &str, field: &str) -> Option<f64> {
    (outcome["scenario"] == scenario).then(|| outcome[field].as_f64()).flatten()
}

fn contended(outcome: &Value, scenario: &str, tasks: u64, field: &str) -> Option<f64> {
    (outcome["tasks"] == tasks).then(|| pick(outcome, scenario, field)).flatten()
}

/// Holds the reports of the stores, as `stores` writes them, against the aims.
pub(crate) fn judge(reports: &[Value]) -> Vec<Row> {
    let rows = FIGURES.iter().map(|figure| Row {
        title: figure.title,
        peers: figure.peers,
        aim: figure.aim,
        reached: reports.iter().map(|report| reached(figure, report)).collect(),
    });
    rows.collect()
}

fn reached(figure: &Figure, report: &Value) -> Reached {
    let outcomes = report["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
    let store = report["store"].as_str().unwrap_or_default();
    let aim = figure.aims.iter().find(|(name, _)| *name == store).map(|(_, aim)| *aim);
    match outcomes.iter().find_map(figure.of) {
        None => Reached { text: "–".to_owned(), is_met: None },
        Some(value) => Reached { text: (figure.show)(value), is_met: aim.map(|aim| aim.is_met(value)) },
    }
}

/// The rows for other programs.
pub(crate) fn as_json(reports: &[Value], rows: &[Row]) -> Value {
    let of_row = |row: &Row| {
        let stores = reports.iter().zip(&row.reached).map(|(report, reached)| {
            json!({ "store": report["store"], "reached": reached.text, "met": reached.is_met })
        });
        json!({ "figure": row.title, "aim": row.aim, "peers": row.peers, "stores": stores.collect::<Vec<_>>() })
    };
    rows.iter().map(of_row).collect()
}
