//! The background task, one for each engine: renews due holds, releases dropped guards, and completes requests whose
//! callers were cancelled.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;
use tokio::task::coop;
use tracing::Instrument;

use super::command_channel::Command;
use super::{Shared, release, renewal, telemetry};
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, ErrorKind, Result};

/// How long `shutdown` waits until the store has confirmed the last releases.
const DRAIN: Duration = Duration::from_secs(10);

/// How long `shutdown` waits for calls that run in the tasks of their callers. They end at once, unless a caller is not polled.
const CALLERS_LIMIT: Duration = Duration::from_secs(1);

/// While requests are in flight, one timer runs out this often. A timer that is set earlier than all others makes the runtime wake
/// the thread that waits for events, and each request sets some. With this one before them, they wake no thread.
const FIRST_TIMER: Duration = Duration::from_millis(60);

type Tasks = FuturesUnordered<BoxFuture<'static, ()>>;

pub(super) async fn run(guard: EndGuard) {
    let shared = Arc::clone(&guard.0);
    let mut work = Tasks::new();
    let mut stuck = Tasks::new();
    let mut background = Tasks::new();
    let mut draining: Vec<(Moment, oneshot::Sender<Result<()>>)> = Vec::new();
    let mut callers_limit = Moment::NEVER;
    let mut first_timer = pin!(tokio::time::sleep(FIRST_TIMER));
    // Declared last, so that it drops first: tasks that await the futures above then see that the engine has ended.
    let _guard = guard;
    loop {
        for command in shared.commands.take() {
            match command {
                Command::Work(future) => work.push(future),
                Command::Stuck(future) => stuck.push(future),
                Command::Background(future) => background.push(future),
                Command::Release(held, pending) => {
                    let span = telemetry::release_span(&held, &shared.store_name);
                    let released = release::dropped(Arc::clone(&shared), held, pending).instrument(span);
                    work.push(Box::pin(released));
                }
                Command::Renew(held) => renewal::begin_now(&shared, &held, &mut work),
                Command::Forget(lease, pending) => {
                    work.push(Box::pin(release::forget(Arc::clone(&shared), lease, pending)));
                }
                Command::Withdraw(claim, pending) => {
                    work.push(Box::pin(release::withdraw(Arc::clone(&shared), claim, pending)));
                }
                Command::ShutDown(done) => {
                    draining.push((shared.clock.now().after(DRAIN), done));
                    callers_limit = shared.clock.now().after(CALLERS_LIMIT);
                }
            }
        }
        if shared.closing.is_cancelled() {
            for held in shared.schedule.take_all() {
                work.extend(release::shut_down(&shared, held));
            }
        }
        if !draining.is_empty() {
            let callers =
                shared.callers_calls.load(Ordering::SeqCst) > 0 && shared.clock.now() < callers_limit;
            let drained = work.is_empty() && shared.commands.is_empty() && !callers;
            finish_draining(&shared, &mut draining, drained);
        }
        let now = shared.clock.now();
        renewal::begin_due(&shared, now, &mut work);
        if shared.commands.is_closed() && shared.commands.is_empty() && work.is_empty() && stuck.is_empty() {
            return;
        }
        let next = shared.schedule.set_alarm(now);
        let next = draining.iter().map(|(until, _)| *until).fold(next, Moment::min);
        let next = if now < callers_limit { next.min(callers_limit) } else { next };
        if first_timer.is_elapsed() && !work.is_empty() {
            first_timer.as_mut().reset(tokio::time::Instant::now() + FIRST_TIMER);
        }
        tokio::select! {
            biased;
            () = shared.commands.changed() => {}
            // Many of them may be ready at once: the runtime runs other tasks in between.
            Some(()) = one_of_many_ended(&mut work) => coop::consume_budget().await,
            Some(()) = one_ended(&mut stuck) => {}
            Some(()) = one_ended(&mut background) => {}
            () = &mut first_timer, if !work.is_empty() => {}
            () = sleep_until(&*shared.clock, next) => {}
        }
    }
}

/// Resolves when one of the futures has completed or panicked. Store calls contain their own panics, so a panic here is
/// a defect of the engine; the other futures continue, since one defect must not lose every lock of the process.
async fn one_ended(tasks: &mut Tasks) -> Option<()> {
    AssertUnwindSafe(tasks.next()).catch_unwind().await.unwrap_or(Some(()))
}

/// [`one_ended`] without tokio's budget for a task. Once that is spent, every future that is polled is pending and will be
/// polled again: of a hundred thousand that are ready, all would be polled for each hundred that make progress.
async fn one_of_many_ended(tasks: &mut Tasks) -> Option<()> {
    coop::unconstrained(one_ended(tasks)).await
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
            Err(Error::new(ErrorKind::Unavailable, format!("some locks were not released within {DRAIN:?}"))
                .doing("shut down")
                .on(Arc::clone(&shared.store_name))
                .with_unknown_outcome()
                .advise("they are freed at their expiry"))
        });
    }
}

/// Ends the engine when the background task ends, also when the runtime drops the task before its first poll.
pub(super) struct EndGuard(pub(super) Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn futures_that_are_ready_together_are_polled_once_each() {
        const MANY: usize = 2000;
        let polls = Arc::new(AtomicUsize::new(0));
        let mut tasks = Tasks::new();
        for _ in 0..MANY {
            let (sender, receiver) = oneshot::channel();
            sender.send(()).unwrap();
            let (polls, mut receiver) = (Arc::clone(&polls), receiver);
            tasks.push(Box::pin(std::future::poll_fn(move |context| {
                polls.fetch_add(1, Ordering::Relaxed);
                receiver.poll_unpin(context).map(drop)
            })));
        }
        while one_of_many_ended(&mut tasks).await.is_some() {}
        assert_eq!(polls.load(Ordering::Relaxed), MANY);
    }
}
