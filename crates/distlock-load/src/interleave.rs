//! Alternates slices of distlock and of the baseline.

use std::time::Duration;

use distlock_core::Result;

use crate::bench::BenchContext;
use crate::workload::{Tally, Workload};

/// The lengths of the alternating slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceLengths {
    pub(crate) ours: Duration,
    pub(crate) baseline: Duration,
}

impl SliceLengths {
    /// A quarter of a second each, or less in a short run, so that there are at least four of each.
    pub(crate) fn even(total: Duration) -> Self {
        let slice = (total / 8).min(Duration::from_millis(250));
        SliceLengths { ours: slice, baseline: slice }
    }

    /// Long slices of distlock, for scenarios that need time to settle, and short slices of the baseline between them.
    pub(crate) fn mostly_ours(total: Duration) -> Self {
        SliceLengths {
            ours: (total * 2 / 5).min(Duration::from_secs(5)),
            baseline: (total / 20).min(Duration::from_millis(250)),
        }
    }
}

/// The sums of both sides.
#[derive(Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) ours: Tally,
    pub(crate) baseline: Option<Tally>,
}

/// Alternates slices until `total` has passed. The order changes every round (ours, baseline, baseline, ours), so that drift of
/// the machine affects both sides alike.
pub(crate) async fn interleave(
    context: &BenchContext<'_>,
    ours: &mut impl Workload,
    baseline: Option<&mut impl Workload>,
    total: Duration,
    lengths: SliceLengths,
) -> Result<Measurement> {
    const WARM_UP: Duration = Duration::from_millis(100);
    let mut baseline = baseline;
    let warm_up = WARM_UP.min(lengths.ours);
    ours.slice(warm_up).await?;
    if let Some(baseline) = &mut baseline {
        baseline.slice(warm_up).await?;
    }
    let mut measurement = Measurement::default();
    let mut spent = Duration::ZERO;
    let mut ours_first = true;
    while spent < total {
        for is_ours in [ours_first, !ours_first] {
            if is_ours {
                let mark = context.counter.mark().await?;
                let mut slice = ours.slice(lengths.ours).await?;
                slice.requests = context.counter.since(mark).await?;
                spent += slice.elapsed;
                measurement.ours.add(&slice);
            } else if let Some(baseline) = &mut baseline {
                let slice = baseline.slice(lengths.baseline).await?;
                spent += slice.elapsed;
                measurement.baseline.get_or_insert_default().add(&slice);
            }
            context.progress(spent, total);
        }
        ours_first = !ours_first;
    }
    Ok(measurement)
}
