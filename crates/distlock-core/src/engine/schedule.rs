//! The one renewal schedule: which hold wants attention when.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Shared;
use super::held::Held;
use crate::clock::Moment;
use crate::store::LossReason;

/// Renewals are moved forward to a grid of this many points for each cadence, so that many locks taken at many
/// moments are renewed by few requests.
const GRID: u64 = 8;
/// When a hold is renewed again whose renewal panicked.
const PUT_BACK_AFTER: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Schedule(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// Few moments, thanks to the grid, and many holds at each.
    dues: BTreeMap<Moment, Crowd>,
    /// Until when the engine's task sleeps. It may be sooner than what is due first, since what is taken out does not
    /// move it: the task then wakes once for nothing, where it would otherwise be woken for every lock.
    alarm: Moment,
}

impl Default for Inner {
    fn default() -> Self {
        Inner { dues: BTreeMap::new(), alarm: Moment::NEVER }
    }
}

/// Who is due at one moment. One alone, such as a lease that is not extended, needs no vector.
#[derive(Debug)]
enum Crowd {
    One(Arc<Held>),
    Many(Vec<Arc<Held>>),
}

/// Where a hold was put last: the moment, and its number in the crowd. Changed only under the schedule's lock. Whether it
/// is still there only the schedule can tell.
#[derive(Debug, Default)]
pub(super) struct Slot {
    due: AtomicU64,
    number: AtomicU32,
}

impl Slot {
    fn set(&self, due: Moment, number: usize) {
        self.due.store(due.as_nanos(), Ordering::Relaxed);
        // Nobody holds four thousand million locks; if so, the last ones are found to be over when they are due.
        self.number.store(u32::try_from(number).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> (Moment, usize) {
        let number = self.number.load(Ordering::Relaxed);
        (Moment::from_nanos(self.due.load(Ordering::Relaxed)), usize::try_from(number).unwrap_or(usize::MAX))
    }
}

/// When a hold that was extended (or granted) at `now` wants to be extended again.
pub(crate) fn renewal_due(now: Moment, cadence: Duration) -> Moment {
    on_grid(now, cadence, cadence)
}

/// When a hold that was granted until `deadline` wants to be extended for the first time: after its cadence, or before
/// a third of the time that is left is over. That third is a little less than the cadence for every grant, by as much as
/// the answer took: it must not have a grid of its own, or every lock would be extended by a request of its own.
pub(crate) fn first_renewal_due(now: Moment, cadence: Duration, deadline: Moment) -> Moment {
    let third = deadline.since(now) / 3;
    // A grant for a short window, or an expiry that is not much longer than an answer takes.
    let grid = if third < cadence - cadence / 10 { third } else { cadence };
    on_grid(now, cadence.min(third), grid)
}

fn on_grid(now: Moment, wait: Duration, grid: Duration) -> Moment {
    let step = (u64::try_from(grid.as_nanos()).unwrap_or(u64::MAX) / GRID).max(1);
    let due = now.after(wait).as_nanos();
    Moment::from_nanos(due - due % step).max(now)
}

impl Schedule {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a hold where it wants attention. True if the engine's task would sleep beyond that.
    pub(crate) fn insert(&self, due: Moment, held: &Arc<Held>) -> bool {
        let mut inner = self.lock();
        let sooner = due < inner.alarm;
        if sooner {
            inner.alarm = due;
        }
        let number = match inner.dues.entry(due) {
            Entry::Vacant(none) => {
                none.insert(Crowd::One(Arc::clone(held)));
                0
            }
            Entry::Occupied(mut crowd) => crowd.get_mut().join(Arc::clone(held)),
        };
        held.slot.set(due, number);
        sooner
    }

    /// Takes a hold out. False if it was not there.
    pub(crate) fn remove(&self, held: &Arc<Held>) -> bool {
        let mut inner = self.lock();
        let (due, number) = held.slot.get();
        let Entry::Occupied(mut crowd) = inner.dues.entry(due) else { return false };
        let empty = match crowd.get_mut() {
            Crowd::One(one) if !Arc::ptr_eq(one, held) => return false,
            Crowd::One(_) => true,
            Crowd::Many(many) => {
                if many.get(number).is_none_or(|there| !Arc::ptr_eq(there, held)) {
                    return false;
                }
                many.swap_remove(number);
                if let Some(moved) = many.get(number) {
                    moved.slot.set(due, number);
                }
                many.is_empty()
            }
        };
        if empty {
            crowd.remove();
        }
        true
    }

    /// Takes out whatever is due.
    pub(crate) fn take_due(&self, now: Moment) -> Vec<Arc<Held>> {
        let mut inner = self.lock();
        let mut taken = Vec::new();
        while let Some(first) = inner.dues.first_entry()
            && *first.key() <= now
        {
            first.remove().leave(&mut taken);
        }
        taken
    }

    /// Takes out everything.
    pub(crate) fn take_all(&self) -> Vec<Arc<Held>> {
        self.take_due(Moment::NEVER)
    }

    /// Until when the engine's task sleeps now. An alarm that lies ahead stays where it is although what it was set
    /// for is gone: were it moved back, the next lock would wake the task again, and so would every lock after it.
    pub(crate) fn set_alarm(&self, now: Moment) -> Moment {
        let mut inner = self.lock();
        let first = inner.dues.first_key_value().map_or(Moment::NEVER, |(due, _)| *due);
        if inner.alarm <= now || first < inner.alarm {
            inner.alarm = first;
        }
        inner.alarm
    }
}

/// Holds that are off the schedule while a request renews them. If that request's future is dropped, with the engine's
/// runtime or by a panic, they are lost or go back.
pub(super) struct OffSchedule {
    shared: Arc<Shared>,
    holds: Vec<Arc<Held>>,
}

impl OffSchedule {
    pub(super) fn new(shared: &Arc<Shared>, holds: Vec<Arc<Held>>) -> Self {
        OffSchedule { shared: Arc::clone(shared), holds }
    }

    /// The holds, for the caller to put back.
    pub(super) fn take(mut self) -> Vec<Arc<Held>> {
        std::mem::take(&mut self.holds)
    }
}

impl std::ops::Deref for OffSchedule {
    type Target = [Arc<Held>];

    fn deref(&self) -> &Self::Target {
        &self.holds
    }
}

impl Drop for OffSchedule {
    fn drop(&mut self) {
        for held in self.holds.drain(..).filter(|held| held.is_held()) {
            if self.shared.desk.is_dead() {
                held.lose(LossReason::RuntimeGone);
            } else {
                let soon = self.shared.clock.now().after(PUT_BACK_AFTER);
                self.shared.watch(soon.min(held.deadline()), &held);
            }
        }
    }
}

impl Crowd {
    /// The number of the one who came.
    fn join(&mut self, held: Arc<Held>) -> usize {
        match self {
            Crowd::One(one) => {
                *self = Crowd::Many(vec![Arc::clone(one), held]);
                1
            }
            Crowd::Many(many) => {
                many.push(held);
                many.len() - 1
            }
        }
    }

    fn leave(self, taken: &mut Vec<Arc<Held>>) {
        match self {
            Crowd::One(one) => taken.push(one),
            Crowd::Many(many) if taken.is_empty() => *taken = many,
            Crowd::Many(many) => taken.extend(many),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::held::Grant;
    use crate::resource::{FencingToken, Kind, LockIds, Resource};
    use crate::store::Lease;

    fn hold() -> Arc<Held> {
        let lease = Lease {
            resource: Resource::new(Kind::Mutex, "a").unwrap(),
            lock_id: LockIds::new("test").next(),
            expiry: Duration::from_secs(30),
            token: FencingToken::new(1),
            weight: 1,
            capacity: 1,
        };
        let (deadline, granted_at) = (Moment::NEVER, Moment::from_nanos(0));
        let (options, session, place) = (Arc::default(), None, None);
        Held::share(Grant { lease, deadline, granted_at, options, session, place })
    }

    #[test]
    fn locks_that_are_given_back_at_once_wake_the_task_once_and_not_each_time() {
        let (schedule, second) = (Schedule::default(), |n: u64| Moment::from_nanos(n * 1_000_000_000));
        let mut woken = 0;
        for n in 0..5 {
            let held = hold();
            woken += u32::from(schedule.insert(second(10 + n), &held));
            schedule.remove(&held);
            // The task runs when the lock is gone already.
            assert_eq!(schedule.set_alarm(second(n)), second(10));
        }
        assert_eq!(woken, 1);
        // Once the alarm went off, nothing is left to wait for.
        assert_eq!(schedule.set_alarm(second(10)), Moment::NEVER);
        // And what is due before the alarm moves it.
        assert!(schedule.insert(second(50), &hold()) && schedule.insert(second(40), &hold()));
        assert_eq!(schedule.set_alarm(second(11)), second(40));
    }

    #[test]
    fn a_hold_that_comes_when_the_engine_has_ended_is_lost() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let backend = crate::store::Backend::lease(crate::memory::MemoryStore::new());
        let engine = runtime.block_on(async {
            crate::engine::Engine::start(backend, Arc::new(crate::BootClock), "test", Duration::from_secs(5))
        });
        let shared = Arc::clone(&engine.unwrap().shared);
        drop(runtime);
        let (scheduled, off) = (hold(), hold());
        shared.watch(Moment::NEVER, &scheduled);
        drop(OffSchedule::new(&shared, vec![Arc::clone(&off)]));
        for held in [scheduled, off] {
            assert_eq!(held.loss_at(Moment::from_nanos(0)), Some(&LossReason::RuntimeGone));
        }
    }

    #[test]
    fn what_is_taken_out_leaves_the_others_where_they_are() {
        let (schedule, due) = (Schedule::default(), Moment::from_nanos(7));
        let holds: Vec<_> = (0..5).map(|_| hold()).collect();
        for held in &holds {
            schedule.insert(due, held);
        }
        // The first, whose number the last one then has; the last one; one that is not there any more.
        for at in [0, 4, 0] {
            schedule.remove(&holds[at]);
        }
        // One that was put elsewhere meanwhile.
        schedule.remove(&holds[2]);
        schedule.insert(Moment::from_nanos(9), &holds[2]);
        let numbers = |taken: Vec<Arc<Held>>| -> Vec<usize> {
            let mut found: Vec<_> = taken
                .iter()
                .map(|held| holds.iter().position(|own| Arc::ptr_eq(own, held)).unwrap())
                .collect();
            found.sort_unstable();
            found
        };
        assert_eq!(numbers(schedule.take_due(due)), [1, 3]);
        // Taken out by the task: whoever gives it back now finds it gone, and nobody else in its stead.
        schedule.insert(due, &holds[0]);
        schedule.remove(&holds[1]);
        schedule.remove(&holds[3]);
        assert_eq!(numbers(schedule.take_all()), [0, 2]);
        assert_eq!(schedule.set_alarm(Moment::from_nanos(20)), Moment::NEVER);
    }

    #[test]
    fn locks_taken_at_many_moments_are_due_at_few() {
        let cadence = Duration::from_secs(10);
        let dues: std::collections::BTreeSet<_> =
            (0..10_000_u64).map(|ms| renewal_due(Moment::from_nanos(ms * 1_000_000), cadence)).collect();
        assert!(dues.len() <= 9, "{}", dues.len());
    }

    #[test]
    fn grants_whose_answers_took_different_times_are_due_at_few_moments_all_the_same() {
        let (cadence, expiry) = (Duration::from_secs(3), Duration::from_secs(9));
        let due = |n: u64| {
            let now = Moment::from_nanos(n * 1_000_000);
            let sent = now.before(Duration::from_micros(n % 977));
            first_renewal_due(now, cadence, crate::engine::held::local_deadline(sent, expiry))
        };
        let dues: std::collections::BTreeSet<_> = (0..3000).map(due).collect();
        assert!(dues.len() <= 9, "{}", dues.len());
        // A window of two seconds is extended within its first third, but not at once.
        let now = Moment::from_nanos(123_456_789_000);
        let due = first_renewal_due(now, Duration::from_secs(10), now.after(Duration::from_secs(2)));
        assert!(due > now.after(Duration::from_millis(500)) && due < now.after(Duration::from_millis(667)));
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
