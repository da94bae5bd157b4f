//! The metrics, with the feature on.
#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use common::{MS, World};
use distlock_core::faults::{Fault, Verb};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// Sums the recorded values by name.
#[derive(Clone, Default)]
struct Sums(Arc<Mutex<BTreeMap<String, f64>>>, Arc<Mutex<Told>>);

/// What the recorder was told about the metrics.
#[derive(Default)]
struct Told {
    units: BTreeMap<String, (Unit, String)>,
    labels: BTreeSet<(String, String)>,
}

struct One(Sums, String);

impl One {
    fn add(&self, value: f64) {
        *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() += value;
    }
}

impl CounterFn for One {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }
    fn absolute(&self, _: u64) {}
}

impl GaugeFn for One {
    fn increment(&self, value: f64) {
        self.add(value);
    }
    fn decrement(&self, value: f64) {
        self.add(-value);
    }
    fn set(&self, _: f64) {}
}

impl HistogramFn for One {
    fn record(&self, _: f64) {
        self.add(1.0);
    }
}

impl Sums {
    fn one(&self, key: &Key) -> Arc<One> {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        self.1.lock().unwrap().labels.insert((key.name().to_owned(), labels.join(" ")));
        Arc::new(One(self.clone(), key.name().to_owned()))
    }

    fn describe(&self, key: &KeyName, unit: Option<Unit>, meaning: &SharedString) {
        let told = (unit.expect("a unit"), meaning.to_string());
        self.1.lock().unwrap().units.insert(key.as_str().to_owned(), told);
    }
}

impl Recorder for Sums {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.describe(&key, unit, &meaning);
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.describe(&key, unit, &meaning);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.describe(&key, unit, &meaning);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one(key))
    }
}

#[tokio::test(start_paused = true)]
async fn every_metric_is_recorded_once() {
    let sums = Sums::default();
    let _recorder = metrics::set_default_local_recorder(&sums);
    let world = World::new();
    let (ours, theirs, faults) = world.contended_cycle().await;
    let held = ours.mutex("b").acquire().await.unwrap();
    let kept = theirs.mutex("c").acquire().await.unwrap();
    faults.set_down(true);
    held.lost().await;
    drop(held);
    let sum = |name: &str| sums.0.lock().unwrap().get(name).copied().unwrap_or_default();
    assert_eq!(sum("distlock_acquired_total"), 3.0);
    assert_eq!(sum("distlock_wait_seconds"), 3.0);
    assert_eq!(sum("distlock_timed_out_total"), 1.0);
    assert_eq!(sum("distlock_lost_total"), 1.0);
    assert_eq!(sum("distlock_hold_seconds"), 1.0);
    assert_eq!(sum("distlock_held"), 1.0, "one lock is still held");
    assert!(sum("distlock_busy_total") >= 1.0 && sum("distlock_renewal_seconds") >= 1.0);
    assert_eq!(sum("distlock_waiting"), 0.0);
    drop(kept);
    let told = sums.1.lock().unwrap();
    for (name, labels) in &told.labels {
        let (unit, meaning) = told.units.get(name).unwrap_or_else(|| panic!("{name} is not described"));
        assert_eq!(*unit == Unit::Seconds, name.ends_with("_seconds"), "{name}");
        assert!(!meaning.is_empty() && labels.ends_with("store=memory"), "{name}: {labels}");
        let table = include_str!("../src/telemetry.rs");
        assert!(table.contains(&format!("| `{name}` |")), "{name} is not in the table");
    }
    assert_eq!(told.labels.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(), told.units.len());
}

#[tokio::test(start_paused = true)]
async fn waiting_is_a_gauge_and_the_queue_of_a_fair_mutex_counts_as_the_mutex() {
    let sums = Sums::default();
    let _recorder = metrics::set_default_local_recorder(&sums);
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let sum = |name: &str| sums.0.lock().unwrap().get(name).copied().unwrap_or_default();
    let held = ours.mutex("a").fair().acquire().await.unwrap();
    assert_eq!(
        (sum("distlock_acquired_total"), sum("distlock_held"), sum("distlock_waiting")),
        (1.0, 1.0, 0.0)
    );
    let mut waiters: Vec<_> = [&ours, &theirs, &theirs]
        .iter()
        .map(|locks| tokio::spawn(locks.mutex("a").fair().acquire().into_future()))
        .collect();
    waiters.push(tokio::spawn(theirs.mutex("a").acquire().into_future()));
    common::until(|| async { sum("distlock_waiting") == 4.0 }).await;
    waiters.pop().unwrap().abort();
    waiters.pop().unwrap().abort();
    common::until(|| async { sum("distlock_waiting") == 2.0 }).await;
    assert!(theirs.mutex("a").fair().try_acquire().timeout(5 * MS).await.unwrap().is_none());
    assert_eq!((sum("distlock_timed_out_total"), sum("distlock_waiting")), (1.0, 2.0));
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(
        (sum("distlock_acquired_total"), sum("distlock_hold_seconds")),
        (3.0, 3.0),
        "the queue is not counted"
    );
    assert_eq!((sum("distlock_held"), sum("distlock_waiting")), (0.0, 0.0));
    let kinds = sums.1.lock().unwrap().labels.iter().all(|(_, labels)| !labels.contains("queue"));
    assert!(kinds, "no internal kind is shown");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_release_counts_once() {
    let sums = Sums::default();
    let _recorder = metrics::set_default_local_recorder(&sums);
    let world = World::new();
    let (locks, _clock, faults) = world.process();
    faults.always(Verb::Release, Fault::none().delay_before(20 * MS));
    for name in ["a", "b", "c"] {
        let guard = locks.mutex(name).acquire().await.unwrap();
        tokio::time::timeout(5 * MS, guard.release()).await.unwrap_err();
    }
    locks.shutdown().await.unwrap();
    let sum = |name: &str| sums.0.lock().unwrap().get(name).copied().unwrap_or_default();
    assert_eq!(sum("distlock_hold_seconds"), 3.0);
    assert_eq!(sum("distlock_held"), 0.0);
}
