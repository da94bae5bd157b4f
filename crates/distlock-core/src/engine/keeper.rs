//! The engine's one task: renews what is due, releases what was dropped, finishes what users gave up on.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;

use super::desk::Mail;
use super::{Shared, release, renewal};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind, Result};
use crate::store::LossReason;

/// How long `shutdown` waits for the store to take the last releases.
const DRAIN: Duration = Duration::from_secs(10);

type Tasks = FuturesUnordered<BoxFuture<'static, ()>>;

pub(super) async fn keep(gone: Gone) {
    let shared = Arc::clone(&gone.0);
    let mut work = Tasks::new();
    let mut stuck = Tasks::new();
    let mut background = Tasks::new();
    let mut draining: Vec<(Moment, oneshot::Sender<Result<()>>)> = Vec::new();
    // Dropped before all of these, so that tasks which await them are told that the engine ended.
    let _gone = gone;
    loop {
        for mail in shared.desk.take() {
            match mail {
                Mail::Work(future) => work.push(future),
                Mail::Stuck(future) => stuck.push(future),
                Mail::Background(future) => background.push(future),
                Mail::Release(held) => work.push(Box::pin(release::dropped(Arc::clone(&shared), held))),
                Mail::Renew(held) => renewal::begin_now(&shared, &held, &mut work),
                Mail::Forget(lease) => work.push(Box::pin(release::forget(Arc::clone(&shared), lease))),
                Mail::Withdraw(claim) => work.push(Box::pin(release::withdraw(Arc::clone(&shared), claim))),
                Mail::ShutDown(done) => draining.push((shared.clock.now().after(DRAIN), done)),
            }
        }
        if shared.closing.is_cancelled() {
            for held in shared.schedule.take_all() {
                held.lose(LossReason::ShutDown);
                work.push(Box::pin(release::forget_held(Arc::clone(&shared), held)));
            }
        }
        if !draining.is_empty() {
            finish_draining(&shared, &mut draining, work.is_empty() && shared.desk.is_empty());
        }
        let now = shared.clock.now();
        renewal::begin_due(&shared, now, &mut work);
        if shared.desk.is_closed() && shared.desk.is_empty() && work.is_empty() && stuck.is_empty() {
            return;
        }
        let next = shared.schedule.set_alarm(now);
        let next = draining.iter().map(|(until, _)| *until).fold(next, Moment::min);
        tokio::select! {
            biased;
            () = shared.desk.changed() => {}
            Some(()) = one_ended(&mut work) => {}
            Some(()) = one_ended(&mut stuck) => {}
            Some(()) = one_ended(&mut background) => {}
            () = sleep_until(&*shared.clock, next) => {}
        }
    }
}

/// Resolves when one of these has ended. One that panicked has ended, and the others go on: a panic in a store's call is
/// an error of that call, so this is a defect of ours, but no reason to lose every lock of the process.
async fn one_ended(tasks: &mut Tasks) -> Option<()> {
    AssertUnwindSafe(tasks.next()).catch_unwind().await.unwrap_or(Some(()))
}

fn finish_draining(
    shared: &Shared,
    draining: &mut Vec<(Moment, oneshot::Sender<Result<()>>)>,
    drained: bool,
) {
    let late =
        shared.clock.now() >= draining.iter().map(|(until, _)| *until).fold(Moment::NEVER, Moment::min);
    if !drained && !late {
        return;
    }
    for (_, done) in draining.drain(..) {
        let _ = done.send(if drained {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Unavailable, format!("not everything was released within {DRAIN:?}"))
                .doing("shut down")
                .on(Arc::clone(&shared.store_name))
                .with_unknown_outcome()
                .advise("what is left ends at its expiry"))
        });
    }
}

/// Tells every guard and every waiter that the task has ended, also when the runtime drops it, and drops it before it ran
/// at all.
pub(super) struct Gone(pub(super) Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.end();
    }
}
