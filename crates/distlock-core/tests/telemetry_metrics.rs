//! The metrics, with the feature on.
#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{MS, World};
use distlock_core::faults::{Fault, Verb};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// Sums the recorded values by name.
#[derive(Clone, Default)]
struct Sums(Arc<Mutex<BTreeMap<String, f64>>>);

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
        Arc::new(One(self.clone(), key.name().to_owned()))
    }
}

impl Recorder for Sums {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
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
    assert!(sum("distlock_busy_total") >= 1.0 && sum("distlock_extension_seconds") >= 1.0);
    drop(kept);
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
