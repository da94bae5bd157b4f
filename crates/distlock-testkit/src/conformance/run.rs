//! Running a case: a runtime, a store and a harness of its own, a time limit, and the check of the history at the end.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::time::Duration;

use super::fixture::{Fixture, Pace};
use super::harness::Harness;
use crate::actors;

/// No case takes this long unless something hangs.
const LIMIT: Duration = Duration::from_secs(240);

/// What a case comes to.
type Playing = Pin<Box<dyn Future<Output = ()>>>;

/// A case as a value, for those who run cases one by one.
pub struct Case<F> {
    /// `group::case`, the name of its test.
    pub name: &'static str,
    /// What it does.
    pub play: fn(Harness<F>) -> Playing,
}

impl<F> std::fmt::Debug for Case<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Runs one case on a fixture of its own. `entry` is the full path of the test that calls [`actor`].
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

/// Runs one case on this fixture, at another pace than the fixture's own if one is given.
///
/// # Panics
/// If the case fails.
pub fn run_on<F, C, P>(entry: &'static str, fixture: impl Future<Output = F>, pace: Option<Pace>, case: C)
where
    F: Fixture,
    C: FnOnce(Harness<F>) -> P,
    P: Future<Output = ()>,
{
    // The harness knows its tests without the name of the crate in front.
    let entry = entry.split_once("::").map_or(entry, |(_, test)| test);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let played = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let fixture = fixture.await;
            let pace = pace.unwrap_or_else(|| fixture.pace());
            let harness = Harness::new(fixture, entry, pace);
            if tokio::time::timeout(LIMIT, case(harness.clone())).await.is_err() {
                panic!("the case did not end within {LIMIT:?}");
            }
            harness.finish();
        });
    }));
    // Whatever a case left behind, a store that hangs included, must not keep the other tests waiting.
    runtime.shutdown_timeout(Duration::from_secs(2));
    if let Err(panic) = played {
        resume_unwind(panic);
    }
}

/// Plays an actor of the suite if this process was started as one; otherwise does nothing.
pub fn actor<F: Fixture>() {
    actors::perform(F::join);
}
