//! Ours and the raw driver by turns.

use std::time::Duration;

use distlock_core::Result;

use crate::bench::Ground;
use crate::load::{Load, Tally};

/// How long a slice of each is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rhythm {
    pub(crate) ours: Duration,
    pub(crate) raw: Duration,
}

impl Rhythm {
    /// A quarter of a second each, or less in a short run: there are at least four of each.
    pub(crate) fn even(total: Duration) -> Self {
        let slice = (total / 8).min(Duration::from_millis(250));
        Rhythm { ours: slice, raw: slice }
    }

    /// Long slices for what needs time to settle, and short ones of the raw driver between them.
    pub(crate) fn mostly_ours(total: Duration) -> Self {
        Rhythm {
            ours: (total * 2 / 5).min(Duration::from_secs(5)),
            raw: (total / 20).min(Duration::from_millis(250)),
        }
    }
}

/// What came of both.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    pub(crate) ours: Tally,
    pub(crate) raw: Option<Tally>,
}

/// Runs both by turns until the time is over. The order changes from round to round (ours, raw, raw, ours), so that a
/// drift of the machine falls on both.
pub(crate) async fn interleave(
    ground: &Ground<'_>,
    ours: &mut impl Load,
    raw: Option<&mut impl Load>,
    total: Duration,
    rhythm: Rhythm,
) -> Result<Pair> {
    const WARM_UP: Duration = Duration::from_millis(100);
    let mut raw = raw;
    let warm_up = WARM_UP.min(rhythm.ours);
    ours.slice(warm_up).await?;
    if let Some(raw) = &mut raw {
        raw.slice(warm_up).await?;
    }
    let mut pair = Pair::default();
    let mut spent = Duration::ZERO;
    let mut ours_first = true;
    while spent < total {
        for turn in [ours_first, !ours_first] {
            if turn {
                let mark = ground.counter.mark().await?;
                let mut slice = ours.slice(rhythm.ours).await?;
                slice.requests = ground.counter.since(mark).await?;
                spent += slice.elapsed;
                pair.ours.add(&slice);
            } else if let Some(raw) = &mut raw {
                let slice = raw.slice(rhythm.raw).await?;
                spent += slice.elapsed;
                pair.raw.get_or_insert_default().add(&slice);
            }
            ground.progress(spent, total);
        }
        ours_first = !ours_first;
    }
    Ok(pair)
}
