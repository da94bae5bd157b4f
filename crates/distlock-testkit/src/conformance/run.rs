//! Runs a case with its own runtime, store and harness under a time limit, then checks the recorded history.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::time::Duration;

use super::fixture::{Fixture, Timing};
use super::harness::Harness;
use crate::actors;

/// A case that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(240);

type CaseFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A case as a value, to run cases one by one.
pub struct Case<F> {
    /// `group::case`, the name of its test.
    pub name: &'static str,
    /// The case itself.
    pub run: fn(Harness<F>) -> CaseFuture,
}

impl<F> std::fmt::Debug for Case<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Runs one case on a fixture of its own. `entry` is the full path of the test that calls [`run_if_actor`].
///
/// # Panics
/// If the case fails.
pub fn run<F, C, P>(entry: &'static str, case: C)
where
    F: Fixture,
    C: FnOnce(Harness<F>) -> P,
    P: Future<Output = ()>,
{
    run_on(entry, F::open(), None, case);
}

/// Runs one case on this fixture, optionally with another timing than the fixture's own.
///
/// # Panics
/// If the case fails.
pub fn run_on<F, C, P>(entry: &'static str, fixture: impl Future<Output = F>, timing: Option<Timing>, case: C)
where
    F: Fixture,
    C: FnOnce(Harness<F>) -> P,
    P: Future<Output = ()>,
{
    // The test runner's names do not include the crate.
    let entry = entry.split_once("::").map_or(entry, |(_, test)| test);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let result = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let fixture = fixture.await;
            let timing = timing.unwrap_or_else(|| fixture.timing());
            let harness = Harness::new(fixture, entry, timing);
            if tokio::time::timeout(LIMIT, case(harness.clone())).await.is_err() {
                panic!("the case did not end within {LIMIT:?}");
            }
            harness.check_history();
        });
    }));
    // Tasks that the case left behind, also on a store that hangs, must not delay the other tests.
    runtime.shutdown_timeout(Duration::from_secs(2));
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// Runs an actor of the suite if this process was started as one; otherwise returns at once.
pub fn run_if_actor<F: Fixture>() {
    actors::run_if_actor(F::connect_to);
}
