//! Latency distributions of distlock and the baseline, one panel per outcome.

use super::svg::{Anchor, COLOURS, FAINT, INK, MUTED, Svg};
use super::text::range;
use super::{micros, number};
use crate::outcome::Outcome;

const PANEL: (f64, f64) = (420.0, 190.0);
const MARGIN: f64 = 24.0;
const HEADER: f64 = 60.0;
const COLUMNS: usize = 2;
const BINS: usize = 60;

/// Draws all outcomes as SVG: latencies on a logarithmic scale, with the main figures.
#[must_use]
pub fn distributions(outcomes: &[Outcome]) -> String {
    let rows = outcomes.len().div_ceil(COLUMNS).max(1);
    let width = MARGIN + (PANEL.0 + MARGIN) * COLUMNS as f64;
    let height = HEADER + (PANEL.1 + MARGIN) * rows as f64;
    let mut svg = Svg::new(width, height);
    let title = outcomes.first().map_or_else(String::new, |first| format!("distlock bench: {}", first.store));
    svg.text((MARGIN, 28.0), 17.0, INK, Anchor::Start, &title);
    legend(&mut svg, width);
    for (number, outcome) in outcomes.iter().enumerate() {
        let column = (number % COLUMNS) as f64;
        let row = (number / COLUMNS) as f64;
        let corner = (MARGIN + column * (PANEL.0 + MARGIN), HEADER + row * (PANEL.1 + MARGIN));
        panel(&mut svg, corner, outcome);
    }
    svg.finish(&title)
}

fn legend(svg: &mut Svg, width: f64) {
    for (number, word) in ["distlock", "baseline"].into_iter().enumerate() {
        let x = width - MARGIN - 190.0 + 75.0 * number as f64;
        svg.rect((x, 18.0), (12.0, 12.0), COLOURS[number], 0.7);
        svg.text((x + 17.0, 28.0), 12.0, INK, Anchor::Start, word);
    }
}

fn panel(svg: &mut Svg, (x, y): (f64, f64), outcome: &Outcome) {
    let (top, bottom) = (y + 42.0, y + PANEL.1 - 22.0);
    let heading = format!("{}, {} {}", outcome.scenario, outcome.tasks, unit(outcome));
    svg.text((x, y + 12.0), 13.0, INK, Anchor::Start, &heading);
    svg.text((x, y + 29.0), 11.0, MUTED, Anchor::Start, &figures(outcome));
    svg.line((x, bottom), (x + PANEL.0, bottom), MUTED, 1.0);
    let baseline = outcome.baseline_latencies.as_ref();
    let Some((low, high)) = range(&outcome.latencies, baseline) else {
        svg.text((x + PANEL.0 / 2.0, (top + bottom) / 2.0), 12.0, MUTED, Anchor::Middle, "no latencies");
        return;
    };
    let place = |value: f64| x + (value.ln() - low.ln()) / (high.ln() - low.ln()) * PANEL.0;
    for tick in ticks(low, high) {
        svg.line((place(tick), top), (place(tick), bottom), FAINT, 1.0);
        svg.text((place(tick), bottom + 14.0), 10.0, MUTED, Anchor::Middle, &micros(tick));
    }
    let both = [Some(&outcome.latencies), baseline];
    let bins: Vec<_> =
        both.iter().map(|some| some.map(|latencies| latencies.log_bins(low, high, BINS))).collect();
    let tallest = bins.iter().flatten().flatten().copied().fold(1e-9, f64::max);
    let run_once = PANEL.0 / BINS as f64;
    for (number, bins) in bins.iter().enumerate() {
        for (at, share) in bins.iter().flatten().enumerate().filter(|(_, share)| **share > 0.0) {
            let tall = share / tallest * (bottom - top);
            svg.rect((x + at as f64 * run_once, bottom - tall), (run_once, tall), COLOURS[number], 0.55);
        }
    }
}

fn unit(outcome: &Outcome) -> &'static str {
    match (outcome.scenario, outcome.tasks) {
        ("held", _) => "locks (latency of one more beside them)",
        (_, 1) => "task",
        _ => "tasks",
    }
}

fn figures(outcome: &Outcome) -> String {
    let figure = |name: &str, value: Option<f64>, how: fn(f64) -> String| {
        value.map(|value| format!("{name} {}", how(value)))
    };
    let all = [
        figure("median", outcome.p50_us, micros),
        figure("p99", outcome.p99_us, micros),
        figure("ops/s", outcome.ops_per_s, number),
        figure("× baseline", outcome.ratio, number),
        figure("requests/op", outcome.requests_per_op, number),
        figure("fairness", outcome.fairness, number),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// Ticks of each decade within the range, fewer where they would collide.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = -3..=9;
    let of = |steps: &[f64]| -> Vec<f64> {
        let all =
            decades.clone().flat_map(|power| steps.iter().map(move |run_once| run_once * 10_f64.powi(power)));
        all.filter(|tick| *tick >= low && *tick <= high).collect()
    };
    let fine = of(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]);
    let middle = of(&[1.0, 2.0, 5.0]);
    if fine.len() <= 6 {
        fine
    } else if middle.len() <= 7 {
        middle
    } else {
        of(&[1.0])
    }
}
