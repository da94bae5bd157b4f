//! One table per server: a row per participant, a column per scenario.

use crate::scenario_runner::{Figure, Results};

const SCENARIOS: [(&str, &str); 7] = [
    ("uncontended", "1 TASK (× BASELINE)"),
    ("throughput-64", "64 TASKS/S"),
    ("throughput-256", "256 TASKS/S (× BASELINE)"),
    ("handoff", "HANDOFF"),
    ("contended-64", "64 CONTEND: REQ, FAIRNESS"),
    ("held", "HELD: REQ/S, CORE, B/LOCK"),
    ("takeover", "AFTER KILL -9"),
];

/// The cells of the header and of one line per participant.
pub fn cells(results: &Results) -> Vec<Vec<String>> {
    let mut names: Vec<&str> = Vec::new();
    for row in &results.rows {
        if !names.contains(&row.participant.as_str()) {
            names.push(&row.participant);
        }
    }
    let find = |who: &str, scenario: &str| {
        results
            .rows
            .iter()
            .find(|row| row.participant == who && row.scenario == scenario)
            .map(|row| &row.figure)
    };
    let mut lines = vec![vec!["PARTICIPANT".to_owned()]];
    lines[0].extend(SCENARIOS.iter().map(|(_, title)| (*title).to_owned()));
    for who in names {
        let mut cells = vec![who.to_owned()];
        for (scenario, _) in SCENARIOS {
            cells.push(
                find(who, scenario).map_or_else(
                    || "-".to_owned(),
                    |figure| cell(scenario, figure, find("baseline", scenario)),
                ),
            );
        }
        lines.push(cells);
    }
    lines
}

pub fn render(lines: &[Vec<String>]) -> String {
    let width = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let text = lines.iter().map(|cells| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    text.collect::<Vec<_>>().join("\n") + "\n"
}

fn cell(scenario: &str, figure: &Figure, baseline: Option<&Figure>) -> String {
    if figure.reason.is_some() {
        return "-".to_owned();
    }
    let micros = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), time);
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    match scenario {
        "uncontended" => {
            let ratio = figure
                .p50_us
                .zip(baseline.and_then(|baseline| baseline.p50_us))
                .map(|(ours, baseline)| ours / baseline);
            format!("{} ({})", micros(figure.p50_us), number(ratio))
        }
        "throughput-64" | "throughput-256" => {
            let ratio = figure
                .ops_per_s
                .zip(baseline.and_then(|baseline| baseline.ops_per_s))
                .map(|(ours, baseline)| ours / baseline);
            let rate = figure.ops_per_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
            format!("{rate} ({})", number(ratio))
        }
        "handoff" => micros(figure.p50_us),
        "contended-64" => format!("{}, {}", number(figure.requests_per_op), number(figure.fairness)),
        "held" => format!(
            "{}, {}, {}",
            figure.requests_per_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
            figure.cpu_cores.map_or_else(|| "-".to_owned(), |cores| format!("{cores:.3}")),
            figure.bytes_per_lock.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string())
        ),
        _ => micros(figure.p50_us),
    }
}

fn time(micros: f64) -> String {
    match micros {
        v if v < 1000.0 => format!("{v:.0} µs"),
        v if v < 10_000.0 => format!("{:.2} ms", v / 1e3),
        v => format!("{:.0} ms", v / 1e3),
    }
}
