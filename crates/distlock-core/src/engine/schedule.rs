//! The renewal schedule: which hold is due when.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Shared;
use super::held::Held;
use crate::clock::Moment;
use crate::store::LossReason;

/// Renewals are moved forward to a grid of this many points per cadence, so that locks acquired at many moments are
/// renewed by few requests.
const GRID: u64 = 8;
/// How soon a hold whose renewal panicked is renewed again.
const PUT_BACK_AFTER: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Schedule(Mutex<ScheduleState>);

#[derive(Debug)]
struct ScheduleState {
    /// Few moments, because of the grid, and many holds at each.
    dues: BTreeMap<Moment, DueHolds>,
    /// Until when the background task sleeps. It may be earlier than the first due moment, since removing a hold does not
    /// move it: one needless wake-up of the task costs less than one for every lock.
    alarm: Moment,
}

impl Default for ScheduleState {
    fn default() -> Self {
        ScheduleState { dues: BTreeMap::new(), alarm: Moment::NEVER }
    }
}

/// The holds that are due at one moment. A single one, such as a lease that is not renewed, needs no vector.
#[derive(Debug)]
enum DueHolds {
    One(Arc<Held>),
    Many(Box<Due>),
}

/// Holds that are due, and how long they last at least. The bounds are those of all that were inserted: a hold that was removed may
/// have had them.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) holds: Vec<Arc<Held>>,
    /// No lease ends before this.
    pub(super) deadline: Moment,
    /// No lease is shorter.
    pub(super) expiry: Duration,
}

impl Default for Due {
    fn default() -> Self {
        Due { holds: Vec::new(), deadline: Moment::NEVER, expiry: Duration::MAX }
    }
}

impl Due {
    pub(super) fn of(held: Arc<Held>) -> Self {
        let mut due = Due::default();
        due.push(held);
        due
    }

    fn push(&mut self, held: Arc<Held>) {
        self.include(held.lease_deadline(), held.options.get_expiry());
        self.holds.push(held);
    }

    fn include(&mut self, deadline: Moment, expiry: Duration) {
        self.deadline = self.deadline.min(deadline);
        self.expiry = self.expiry.min(expiry);
    }
}

/// Where a hold was last inserted: the due moment, and its index there. Changed only under the schedule's lock. It may be
/// stale; the schedule checks whether the hold is still there.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// In two halves, so that a hold has no padding. The lock makes them one.
    due: [AtomicU32; 2],
    index: AtomicU32,
}

impl Slot {
    fn set(&self, due: Moment, index: usize) {
        let nanos = due.as_nanos();
        self.due[0].store((nanos >> 32) as u32, Ordering::Relaxed);
        self.due[1].store(nanos as u32, Ordering::Relaxed);
        // Beyond four thousand million holds, the last ones are not found by `remove` and end when they are due.
        self.index.store(u32::try_from(index).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> (Moment, usize) {
        let index = self.index.load(Ordering::Relaxed);
        let [high, low] = self.due.each_ref().map(|half| u64::from(half.load(Ordering::Relaxed)));
        (Moment::from_nanos(high << 32 | low), usize::try_from(index).unwrap_or(usize::MAX))
    }
}

/// When a hold that was renewed or granted at `now` is renewed next.
pub(crate) fn renewal_due(now: Moment, cadence: Duration) -> Moment {
    on_grid(now, cadence, cadence)
}

/// When a hold that was granted until `deadline` is renewed for the first time: after its cadence, or within a third of
/// the time left. For a usual grant that third is less than the cadence by the time that the answer took. It must still
/// use the cadence's grid, or every lock would be renewed by a request of its own.
pub(crate) fn first_renewal_due(now: Moment, cadence: Duration, deadline: Moment) -> Moment {
    let third = deadline.since(now) / 3;
    // Smaller for a pushed grant with a short window, or for an expiry that is not much longer than an answer takes.
    let grid = if third < cadence - cadence / 10 { third } else { cadence };
    on_grid(now, cadence.min(third), grid)
}

fn on_grid(now: Moment, wait: Duration, grid: Duration) -> Moment {
    let step = (u64::try_from(grid.as_nanos()).unwrap_or(u64::MAX) / GRID).max(1);
    let due = now.after(wait).as_nanos();
    Moment::from_nanos(due - due % step).max(now)
}

impl Schedule {
    fn lock(&self) -> MutexGuard<'_, ScheduleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inserts a hold. True if the background task would sleep past `due`.
    pub(crate) fn insert(&self, due: Moment, held: &Arc<Held>) -> bool {
        let mut state = self.lock();
        let index = match state.dues.entry(due) {
            Entry::Vacant(none) => {
                none.insert(DueHolds::One(Arc::clone(held)));
                0
            }
            Entry::Occupied(mut holds) => {
                let many = holds.get_mut().as_many();
                many.push(Arc::clone(held));
                many.holds.len() - 1
            }
        };
        held.slot.set(due, index);
        state.is_sooner(due)
    }

    /// Inserts holds that are off the schedule, and returns whether the background task would sleep past `due`. One that is not held
    /// any more stays off: its release looks here only once, and may have done so before.
    pub(crate) fn insert_held(&self, due: Moment, holds: &mut Vec<Arc<Held>>) -> bool {
        let mut state = self.lock();
        let ended: Vec<_> = holds.extract_if(.., |held| !held.is_held()).collect();
        let mut sooner = false;
        if !holds.is_empty() {
            let many = state.dues.entry(due).or_insert_with(|| DueHolds::Many(Box::default())).as_many();
            for held in holds.drain(..) {
                held.slot.set(due, many.holds.len());
                many.push(held);
            }
            sooner = state.is_sooner(due);
        }
        drop(state);
        // Dropping the last reference of a hold takes other locks.
        drop(ended);
        sooner
    }

    /// Removes a hold. False if it was not there.
    pub(crate) fn remove(&self, held: &Arc<Held>) -> bool {
        let mut state = self.lock();
        let (due, index) = held.slot.get();
        let Entry::Occupied(mut holds) = state.dues.entry(due) else { return false };
        let empty = match holds.get_mut() {
            DueHolds::One(one) if !Arc::ptr_eq(one, held) => return false,
            DueHolds::One(_) => true,
            DueHolds::Many(due_holds) => {
                let many = &mut due_holds.holds;
                if many.get(index).is_none_or(|there| !Arc::ptr_eq(there, held)) {
                    return false;
                }
                many.swap_remove(index);
                if let Some(moved) = many.get(index) {
                    moved.slot.set(due, index);
                }
                many.is_empty()
            }
        };
        if empty {
            holds.remove();
        }
        true
    }

    /// Removes and returns all due holds.
    pub(super) fn take_due(&self, now: Moment) -> Due {
        let mut state = self.lock();
        let mut taken = Due::default();
        while let Some(first) = state.dues.first_entry()
            && *first.key() <= now
        {
            first.remove().move_to(&mut taken);
        }
        taken
    }

    /// Removes and returns all holds.
    pub(crate) fn take_all(&self) -> Vec<Arc<Held>> {
        self.take_due(Moment::NEVER).holds
    }

    /// Until when the background task sleeps now. An alarm in the future stays although its hold may be gone: if it were
    /// moved back, every following lock would wake the task again.
    pub(crate) fn set_alarm(&self, now: Moment) -> Moment {
        let mut state = self.lock();
        let first = state.dues.first_key_value().map_or(Moment::NEVER, |(due, _)| *due);
        if state.alarm <= now || first < state.alarm {
            state.alarm = first;
        }
        state.alarm
    }
}

/// Holds that are off the schedule while a renewal is in flight. If its future is dropped, they are lost if the engine has
/// ended, and go back to the schedule otherwise.
pub(super) struct OffSchedule {
    shared: Arc<Shared>,
    holds: Vec<Arc<Held>>,
}

impl OffSchedule {
    pub(super) fn new(shared: &Arc<Shared>, holds: Vec<Arc<Held>>) -> Self {
        OffSchedule { shared: Arc::clone(shared), holds }
    }

    /// Drops the holds that have ended or are back on the schedule.
    pub(super) fn retain(&mut self, keep: impl FnMut(&Arc<Held>) -> bool) {
        self.holds.retain(keep);
    }

    /// Returns the holds. The caller puts them back.
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
            if self.shared.commands.is_dead() {
                held.lose(LossReason::RuntimeGone);
            } else {
                let soon = self.shared.clock.now().after(PUT_BACK_AFTER);
                self.shared.watch(soon.min(held.deadline()), &held);
            }
        }
    }
}

impl ScheduleState {
    /// Notes that a hold is due, and returns whether the background task would sleep past that.
    fn is_sooner(&mut self, due: Moment) -> bool {
        let sooner = due < self.alarm;
        if sooner {
            self.alarm = due;
        }
        sooner
    }
}

impl DueHolds {
    fn as_many(&mut self) -> &mut Due {
        if let DueHolds::One(one) = self {
            let mut many = Box::<Due>::default();
            many.push(Arc::clone(one));
            *self = DueHolds::Many(many);
        }
        match self {
            DueHolds::Many(many) => many,
            DueHolds::One(_) => unreachable!("it was replaced above"),
        }
    }

    fn move_to(self, taken: &mut Due) {
        match self {
            DueHolds::One(one) => taken.push(one),
            DueHolds::Many(many) => {
                taken.include(many.deadline, many.expiry);
                match taken.holds.is_empty() {
                    true => taken.holds = many.holds,
                    false => taken.holds.extend(many.holds),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::own_holds::OwnHolds;
    use super::*;
    use crate::engine::held::Grant;
    use crate::resource::{FencingToken, Kind, LockIds, Resource};
    use crate::store::Claim;

    fn hold() -> Arc<Held> {
        let (ids, resource) = (Arc::new(LockIds::new("test")), Resource::new(Kind::Mutex, "a").unwrap());
        let claim = &Claim::new(resource, ids.next(), Duration::from_secs(30));
        let token = FencingToken::new(1);
        let (deadline, granted_at) = (Moment::NEVER, Moment::from_nanos(0));
        let (options, session, head) = (Arc::default(), None, None);
        let own_holds = Arc::new(OwnHolds::new("test".into(), ids, Arc::default()));
        Held::share(Grant { claim, token, deadline, granted_at, options, session, head, own_holds })
    }

    #[test]
    fn locks_that_are_released_at_once_wake_the_task_once_and_not_each_time() {
        let (schedule, second) = (Schedule::default(), |n: u64| Moment::from_nanos(n * 1_000_000_000));
        let mut woken = 0;
        for n in 0..5 {
            let held = hold();
            woken += u32::from(schedule.insert(second(10 + n), &held));
            schedule.remove(&held);
            // The task runs after the lock was released.
            assert_eq!(schedule.set_alarm(second(n)), second(10));
        }
        assert_eq!(woken, 1);
        // After the alarm, nothing is due.
        assert_eq!(schedule.set_alarm(second(10)), Moment::NEVER);
        // A hold that is due before the alarm moves it.
        assert!(schedule.insert(second(50), &hold()) && schedule.insert(second(40), &hold()));
        assert_eq!(schedule.set_alarm(second(11)), second(40));
    }

    #[test]
    fn a_hold_that_is_scheduled_after_the_engine_has_ended_is_lost() {
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
    fn removing_a_hold_keeps_the_others_on_the_schedule() {
        let (schedule, due) = (Schedule::default(), Moment::from_nanos(7));
        let holds: Vec<_> = (0..5).map(|_| hold()).collect();
        for held in &holds {
            schedule.insert(due, held);
        }
        // The first, whose index the last one then gets; the last one; one that is already removed.
        for at in [0, 4, 0] {
            schedule.remove(&holds[at]);
        }
        // One that moved to another moment.
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
        assert_eq!(numbers(schedule.take_due(due).holds), [1, 3]);
        // Taken by the task: a later removal finds nothing, and removes no other hold instead.
        schedule.insert(due, &holds[0]);
        schedule.remove(&holds[1]);
        schedule.remove(&holds[3]);
        assert_eq!(numbers(schedule.take_all()), [0, 2]);
        assert_eq!(schedule.set_alarm(Moment::from_nanos(20)), Moment::NEVER);
    }

    #[test]
    fn a_hold_that_was_released_before_it_goes_back_to_the_schedule_stays_off() {
        let (schedule, due) = (Schedule::default(), Moment::from_nanos(7));
        let holds: Vec<_> = (0..6).map(|_| hold()).collect();
        // One that is there alone, and holds that go back together.
        schedule.insert(due, &holds[0]);
        assert!(holds[2].begin_release());
        // Its release looks before it could be put back, and finds nothing.
        assert!(!schedule.remove(&holds[2]));
        let mut back = holds[1..5].to_vec();
        assert!(!schedule.insert_held(due, &mut back) && back.is_empty(), "the alarm is at that moment");
        assert!(!schedule.remove(&holds[2]));
        // Released after that: each is found where it is, and no other in its place.
        assert!(schedule.remove(&holds[1]) && schedule.remove(&holds[4]) && !schedule.remove(&holds[4]));
        let mut ended = vec![Arc::clone(&holds[5])];
        assert!(holds[5].begin_release());
        assert!(!schedule.insert_held(Moment::from_nanos(1), &mut ended) && ended.is_empty());
        let taken = schedule.take_all();
        assert_eq!(taken.len(), 2);
        assert!(taken.iter().all(|held| [0, 3].iter().any(|at| Arc::ptr_eq(held, &holds[*at]))));
    }

    #[test]
    fn due_holds_say_when_the_first_of_their_leases_may_end() {
        let (schedule, at) = (Schedule::default(), |n: u64| Moment::from_nanos(n * 1_000_000_000));
        let holds: Vec<_> = (0..4).map(|_| hold()).collect();
        for (held, ends) in holds.iter().zip([50, 40, 30, 20]) {
            held.end_at(at(ends));
        }
        schedule.insert(at(1), &holds[0]);
        schedule.insert(at(1), &holds[1]);
        schedule.insert_held(at(2), &mut vec![Arc::clone(&holds[2])]);
        schedule.insert(at(3), &holds[3]);
        assert_eq!(schedule.take_due(at(1)).deadline, at(40));
        schedule.insert(at(1), &holds[0]);
        let due = schedule.take_due(at(2));
        assert_eq!((due.holds.len(), due.deadline, due.expiry), (2, at(30), holds[0].expiry()));
        assert_eq!(schedule.take_due(at(9)).deadline, at(20));
        assert_eq!(schedule.take_due(at(9)).deadline, Moment::NEVER);
    }

    #[test]
    fn locks_acquired_at_many_moments_are_due_at_few() {
        let cadence = Duration::from_secs(10);
        let dues: std::collections::BTreeSet<_> =
            (0..10_000_u64).map(|ms| renewal_due(Moment::from_nanos(ms * 1_000_000), cadence)).collect();
        assert!(dues.len() <= 9, "{}", dues.len());
    }

    #[test]
    fn grants_with_different_latencies_are_due_at_few_moments() {
        let (cadence, expiry) = (Duration::from_secs(3), Duration::from_secs(9));
        let due = |n: u64| {
            let now = Moment::from_nanos(n * 1_000_000);
            let sent = now.before(Duration::from_micros(n % 977));
            first_renewal_due(now, cadence, crate::engine::held::local_deadline(sent, expiry))
        };
        let dues: std::collections::BTreeSet<_> = (0..3000).map(due).collect();
        assert!(dues.len() <= 9, "{}", dues.len());
        // A window of two seconds is renewed within its first third, but not at once.
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
