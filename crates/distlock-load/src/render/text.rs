//! Text for a terminal.

use super::{micros, number};
use crate::latencies::Latencies;
use crate::outcome::Outcome;

const HEADER: [&str; 12] = [
    "SCENARIO",
    "TASKS",
    "OPS/S",
    "MEDIAN",
    "P99",
    "BASE OPS/S",
    "BASE MEDIAN",
    "RATIO",
    "REQ/OP",
    "FAIRNESS",
    "CPU/OP",
    "MEMORY",
];

/// All outcomes as aligned columns; `paint` formats the header.
#[must_use]
pub fn table(outcomes: &[Outcome], paint: impl Fn(&str) -> String) -> String {
    let rows: Vec<Vec<String>> = outcomes.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([HEADER.get(column).map_or(0, |title| title.len())]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let aligned = cells.zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        aligned.collect::<Vec<_>>().join("  ")
    };
    let mut text = paint(&line(&mut HEADER.into_iter()));
    text.push('\n');
    for row in &rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
        text.push('\n');
    }
    text
}

fn row(outcome: &Outcome) -> Vec<String> {
    let show = |value: Option<f64>, how: fn(f64) -> String| value.map_or_else(|| "-".to_owned(), how);
    let memory = match (outcome.rss_per_lock_bytes, outcome.rss_bytes) {
        (Some(each), _) => format!("{each} B/lock"),
        (None, Some(all)) => format!("{:.1} MB", all as f64 / 1e6),
        (None, None) => "-".to_owned(),
    };
    vec![
        outcome.scenario.to_owned(),
        outcome.tasks.to_string(),
        show(outcome.ops_per_s, number),
        show(outcome.p50_us, micros),
        show(outcome.p99_us, micros),
        show(outcome.baseline_ops_per_s, number),
        show(outcome.baseline_p50_us, micros),
        show(outcome.ratio, number),
        show(outcome.requests_per_op, number),
        show(outcome.fairness, number),
        show(outcome.cpu_us_per_op, micros),
        memory,
    ]
}

/// A histogram of latencies on a logarithmic scale, beside that of the baseline if there is one.
#[must_use]
pub fn histogram(outcome: &Outcome) -> String {
    const ROWS: usize = 10;
    const WIDTH: usize = 30;
    let baseline = outcome.baseline_latencies.as_ref();
    let Some((low, high)) = range(&outcome.latencies, baseline) else { return String::new() };
    let ours = outcome.latencies.log_bins(low, high, ROWS);
    let beside = baseline.map(|baseline| baseline.log_bins(low, high, ROWS));
    let tallest = ours.iter().chain(beside.iter().flatten()).copied().fold(1e-9, f64::max);
    let bar = |share: f64| "█".repeat((share / tallest * WIDTH as f64).round() as usize);
    let mut text = format!("{}, {} tasks", outcome.scenario, outcome.tasks);
    text.push_str(if beside.is_some() { ": distlock | baseline\n" } else { "\n" });
    for (number, share) in ours.iter().enumerate() {
        let at = (low.ln() + (high.ln() - low.ln()) * (number + 1) as f64 / ROWS as f64).exp();
        let line = match beside.as_ref().and_then(|beside| beside.get(number)) {
            Some(baseline) => format!("  ≤ {:>9}  {:<WIDTH$} | {}", micros(at), bar(*share), bar(*baseline)),
            None => format!("  ≤ {:>9}  {}", micros(at), bar(*share)),
        };
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The range of both, without the fastest and the slowest half per cent.
pub(crate) fn range(ours: &Latencies, baseline: Option<&Latencies>) -> Option<(f64, f64)> {
    let both = [Some(ours), baseline];
    let all = || both.iter().flatten().filter(|latencies| latencies.count() > 0);
    let low = all().filter_map(|latencies| latencies.quantile_us(0.005)).reduce(f64::min)?;
    let high = all().filter_map(|latencies| latencies.quantile_us(0.995)).reduce(f64::max)?;
    Some((low * 0.95, (high * 1.05).max(low * 1.2)))
}
