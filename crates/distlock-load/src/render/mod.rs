//! Outcomes as text tables, text histograms and SVG pictures.

mod chart;
mod distribution;
mod svg;
mod text;

pub use chart::{Chart, Series};
pub use distribution::distributions;
pub use text::{histogram, table};

/// Formats a duration in microseconds with a suitable unit.
#[must_use]
pub fn micros(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2} µs"),
        v if v < 1000.0 => format!("{v:.0} µs"),
        v if v < 10_000.0 => format!("{:.2} ms", v / 1e3),
        v if v < 1e6 => format!("{:.1} ms", v / 1e3),
        v => format!("{:.2} s", v / 1e6),
    }
}

/// Formats a number with a suitable number of digits.
#[must_use]
pub fn number(value: f64) -> String {
    match value {
        v if v >= 10_000.0 => format!("{:.1}k", v / 1000.0),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{v:.2}"),
        v => format!("{v:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_numbers_read_well() {
        assert_eq!(micros(3.456), "3.46 µs");
        assert_eq!(micros(87_000.0), "87.0 ms");
        assert_eq!(number(51_600.0), "51.6k");
        assert_eq!(number(0.005), "0.0050");
    }
}
