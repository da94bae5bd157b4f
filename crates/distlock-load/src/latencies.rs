//! Latencies with three significant digits at any scale.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Three digits: the relative error of a percentile is below a thousandth.
const DIGITS: u8 = 3;
/// A day, the longest recorded duration.
const LONGEST_NANOS: u64 = 86_400 * 1_000_000_000;

/// A distribution of durations.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Creates an empty distribution.
    #[must_use]
    pub fn new() -> Self {
        // Fails only for an empty range or more than five digits.
        #[allow(clippy::unwrap_used)]
        Latencies(Histogram::new_with_bounds(1, LONGEST_NANOS, DIGITS).unwrap())
    }

    /// Adds the latency of one operation.
    pub fn record(&mut self, took: Duration) {
        self.record_many(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), 1);
    }

    pub(crate) fn record_many(&mut self, nanos: u64, times: u64) {
        self.0.saturating_record_n(nanos.max(1), times);
    }

    /// Adds another distribution.
    pub fn merge(&mut self, other: &Latencies) {
        // Both have the same range, so this cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// The number of operations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The quantile in microseconds; `None` without operations.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.0.value_at_quantile(share) as f64 / 1000.0)
    }

    /// The longest, in microseconds.
    #[must_use]
    pub fn max_us(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.0.max() as f64 / 1000.0)
    }

    /// The mean, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.0.mean() / 1000.0)
    }

    /// The recorded values in nanoseconds, with their counts.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|run_once| (run_once.value_iterated_to(), run_once.count_at_value()))
    }

    /// The share of operations in each of `count` bins that divide the logarithm between two durations evenly.
    /// Values outside fall into the first or the last bin.
    #[must_use]
    pub fn log_bins(&self, from_us: f64, to_us: f64, count: usize) -> Vec<f64> {
        let mut bins = vec![0.0; count.max(1)];
        let (low, high) = (from_us.max(1e-3).ln(), to_us.max(2e-3).ln());
        let all = self.count().max(1) as f64;
        for (nanos, times) in self.buckets() {
            let place = ((nanos as f64 / 1000.0).ln() - low) / (high - low).max(1e-9) * bins.len() as f64;
            let place = (place.max(0.0) as usize).min(bins.len() - 1);
            bins[place] += times as f64 / all;
        }
        bins
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_accurate_to_a_thousandth_from_nanoseconds_to_minutes() {
        for unit in [1_000_u64, 1_000_000, 1_000_000_000] {
            let mut latencies = Latencies::new();
            for n in 1..=100 {
                latencies.record(Duration::from_nanos(n * unit));
            }
            let median = latencies.quantile_us(0.5).unwrap() * 1000.0 / unit as f64;
            assert!((median - 50.0).abs() <= 0.06, "{median}");
            let p99 = latencies.quantile_us(0.99).unwrap() * 1000.0 / unit as f64;
            assert!((p99 - 99.0).abs() <= 0.11, "{p99}");
        }
    }

    #[test]
    fn merging_loses_nothing_and_the_bins_sum_to_one() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record(Duration::from_micros(10));
        b.record(Duration::from_micros(1000));
        b.record(Duration::from_secs(400_000));
        a.merge(&b);
        assert_eq!(a.count(), 3);
        let bins = a.log_bins(1.0, 2000.0, 7);
        assert!((bins.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(a.quantile_us(0.5).is_some() && Latencies::new().quantile_us(0.5).is_none());
    }
}
