//! The one renewal schedule: which hold wants attention when.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::held::{Held, Slot};
use crate::clock::Moment;

/// Renewals are moved forward to a grid of this many points for each cadence, so that many locks taken at many
/// moments are renewed by few requests.
const GRID: u64 = 8;

#[derive(Debug, Default)]
pub(crate) struct Schedule(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    holds: BTreeMap<Slot, Arc<Held>>,
    number: u64,
    /// Until when the engine's task sleeps. It may be sooner than what is due first, since what is taken out does not
    /// move it: the task then wakes once for nothing, where it would otherwise be woken for every lock.
    alarm: Moment,
}

impl Default for Inner {
    fn default() -> Self {
        Inner { holds: BTreeMap::new(), number: 0, alarm: Moment::NEVER }
    }
}

/// When a hold that was extended (or granted) at `now` wants to be extended again.
pub(crate) fn renewal_due(now: Moment, cadence: Duration) -> Moment {
    let step = (u64::try_from(cadence.as_nanos()).unwrap_or(u64::MAX) / GRID).max(1);
    let due = now.after(cadence).as_nanos();
    Moment::from_nanos(due - due % step).max(now)
}

impl Schedule {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a hold where it wants attention. True if the engine's task would sleep beyond that.
    pub(crate) fn insert(&self, due: Moment, held: &Arc<Held>) -> bool {
        let mut inner = self.lock();
        inner.number += 1;
        let key = (due, NonZeroU64::new(inner.number).unwrap_or(NonZeroU64::MIN));
        let sooner = due < inner.alarm;
        if sooner {
            inner.alarm = due;
        }
        *held.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
        inner.holds.insert(key, Arc::clone(held));
        sooner
    }

    /// Takes a hold out, if it is there.
    pub(crate) fn remove(&self, held: &Held) {
        let mut inner = self.lock();
        if let Some(key) = held.slot.lock().unwrap_or_else(PoisonError::into_inner).take() {
            inner.holds.remove(&key);
        }
    }

    /// Takes out whatever is due.
    pub(crate) fn take_due(&self, now: Moment) -> Vec<Arc<Held>> {
        let mut inner = self.lock();
        let later = inner.holds.split_off(&(now, NonZeroU64::MAX));
        let due = std::mem::replace(&mut inner.holds, later);
        due.into_values().inspect(forget_slot).collect()
    }

    /// Takes out everything.
    pub(crate) fn take_all(&self) -> Vec<Arc<Held>> {
        std::mem::take(&mut self.lock().holds).into_values().inspect(forget_slot).collect()
    }

    /// When the next hold is due: the engine's task asks before it sleeps until then.
    pub(crate) fn set_alarm(&self) -> Moment {
        let mut inner = self.lock();
        inner.alarm = inner.holds.first_key_value().map_or(Moment::NEVER, |((due, _), _)| *due);
        inner.alarm
    }
}

#[allow(clippy::ptr_arg, reason = "the signature that `inspect` wants")]
fn forget_slot(held: &Arc<Held>) {
    *held.slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_taken_at_many_moments_are_due_at_few() {
        let cadence = Duration::from_secs(10);
        let dues: std::collections::BTreeSet<_> =
            (0..10_000_u64).map(|ms| renewal_due(Moment::from_nanos(ms * 1_000_000), cadence)).collect();
        assert!(dues.len() <= 9, "{}", dues.len());
    }

    #[test]
    fn a_renewal_is_never_later_than_its_cadence_nor_in_the_past() {
        for ms in [1_u64, 7, 1000, 123_456] {
            let now = Moment::from_nanos(ms * 1_000_003);
            let due = renewal_due(now, Duration::from_secs(3));
            assert!(due <= now.after(Duration::from_secs(3)) && due >= now);
        }
    }
}
