//! Line charts with logarithmic axes.

use super::number;
use super::svg::{Anchor, COLOURS, FAINT, INK, MUTED, Svg};

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points; both coordinates are positive.
    pub points: Vec<(f64, f64)>,
    /// Draws a thin line in the colour of the series before it, for comparison.
    pub thin: bool,
}

/// A chart with logarithmic axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The label of the horizontal axis.
    pub across: String,
    /// The label of the vertical axis.
    pub up: String,
    /// The series.
    pub series: Vec<Series>,
}

const SIZE: (f64, f64) = (720.0, 400.0);
const LEFT: f64 = 70.0;
const RIGHT: f64 = 180.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 52.0;

impl Chart {
    /// Draws the chart as SVG.
    #[must_use]
    pub fn draw(&self) -> String {
        let mut svg = Svg::new(SIZE.0, SIZE.1);
        svg.text((20.0, 26.0), 16.0, INK, Anchor::Start, &self.title);
        svg.text((20.0, 46.0), 11.0, MUTED, Anchor::Start, &self.up);
        let bottom = SIZE.1 - BOTTOM;
        svg.text(((LEFT + SIZE.0 - RIGHT) / 2.0, SIZE.1 - 12.0), 12.0, MUTED, Anchor::Middle, &self.across);
        let all =
            || self.series.iter().flat_map(|series| &series.points).filter(|(x, y)| *x > 0.0 && *y > 0.0);
        let Some(((x0, x1), (y0, y1))) =
            span(all().map(|(x, _)| *x), false).zip(span(all().map(|(_, y)| *y), true))
        else {
            svg.text((SIZE.0 / 2.0, SIZE.1 / 2.0), 13.0, MUTED, Anchor::Middle, "nothing was measured");
            return svg.finish(&self.title);
        };
        let place = |(x, y): (f64, f64)| {
            let across = (x.ln() - x0.ln()) / (x1.ln() - x0.ln()).max(1e-9);
            let up = (y.ln() - y0.ln()) / (y1.ln() - y0.ln()).max(1e-9);
            (LEFT + across * (SIZE.0 - LEFT - RIGHT), bottom - up * (bottom - TOP))
        };
        for tick in ticks(y0, y1) {
            let (_, y) = place((x0, tick));
            svg.line((LEFT, y), (SIZE.0 - RIGHT, y), FAINT, 1.0);
            svg.text((LEFT - 8.0, y + 4.0), 10.5, MUTED, Anchor::End, &number(tick));
        }
        let mut marks: Vec<f64> = all().map(|(x, _)| *x).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        let mut last = f64::MIN;
        for mark in marks {
            let (x, _) = place((mark, y0));
            if x - last > 34.0 {
                svg.text((x, bottom + 16.0), 10.5, MUTED, Anchor::Middle, &whole(mark));
                svg.line((x, bottom), (x, bottom + 4.0), MUTED, 1.0);
                last = x;
            }
        }
        svg.line((LEFT, bottom), (SIZE.0 - RIGHT, bottom), MUTED, 1.0);
        let mut colours = 0_usize;
        for (index, series) in self.series.iter().enumerate() {
            colours += usize::from(!series.thin);
            let colour = COLOURS[colours.saturating_sub(1) % COLOURS.len()];
            let width = if series.thin { 1.0 } else { 2.5 };
            let points: Vec<_> = series
                .points
                .iter()
                .filter(|(x, y)| *x > 0.0 && *y > 0.0)
                .map(|point| place(*point))
                .collect();
            svg.polyline(&points, colour, width);
            points.iter().for_each(|point| svg.dot(*point, colour));
            let y = TOP + 10.0 + 20.0 * index as f64;
            svg.line((SIZE.0 - RIGHT + 16.0, y - 4.0), (SIZE.0 - RIGHT + 36.0, y - 4.0), colour, width);
            svg.text((SIZE.0 - RIGHT + 42.0, y), 12.0, INK, Anchor::Start, &series.name);
        }
        svg.finish(&self.title)
    }
}

/// The minimum and the maximum; with a margin for the vertical axis.
fn span(values: impl Iterator<Item = f64> + Clone, room: bool) -> Option<(f64, f64)> {
    let low = values.clone().reduce(f64::min)?;
    let high = values.reduce(f64::max)?;
    match (room, high > low * 1.001) {
        (true, _) => Some((low / 1.3, high * 1.3)),
        (false, true) => Some((low, high)),
        (false, false) => Some((low / 2.0, high * 2.0)),
    }
}

fn ticks(low: f64, high: f64) -> Vec<f64> {
    let of = |steps: &[f64]| -> Vec<f64> {
        let all = (-6..=12).flat_map(|power| steps.iter().map(move |run_once| run_once * 10_f64.powi(power)));
        all.filter(|tick| *tick >= low && *tick <= high).collect()
    };
    let choices = [of(&[1.0]), of(&[1.0, 3.0]), of(&[1.0, 2.0, 5.0]), of(&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0])];
    choices.iter().find(|ticks| ticks.len() >= 4).or(choices.last()).cloned().unwrap_or_default()
}

fn whole(value: f64) -> String {
    if value >= 1000.0 && value % 1000.0 == 0.0 { format!("{}k", value / 1000.0) } else { format!("{value}") }
}
