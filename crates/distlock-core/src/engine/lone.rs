//! A lone request: driven by the task that made it, or by the engine's task once others wait for its place.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::desk::Desk;
use super::lane::{Turn, Verb, adopt, answer_in_time, silent};
use super::verbs::spread;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Batch;

pub(super) struct Lone<V: Verb> {
    sent: Instant,
    progress: Mutex<Progress<V>>,
    /// The task that made it.
    waker: AtomicWaker,
    /// The engine's task, if it drives.
    driver: AtomicWaker,
}

enum Progress<V: Verb> {
    Out {
        call: BoxFuture<'static, Batch<V::Answer>>,
        item: V::Item,
        turn: Turn<V>,
        driven: bool,
        /// It was polled once, so the store may have heard of it.
        begun: bool,
    },
    Answered {
        answer: Result<V::Answer>,
        item: V::Item,
        desk: Arc<Desk>,
    },
    /// The answer was taken, or no caller wants it.
    Over,
}

impl<V: Verb> Lone<V> {
    pub(super) fn begin(turn: Turn<V>, item: V::Item) -> Arc<Self> {
        let call = V::call_one(Arc::clone(&turn.lane.store), item.clone());
        Arc::new(Lone {
            sent: Instant::now(),
            progress: Mutex::new(Progress::Out { call, item, turn, driven: false, begun: false }),
            waker: AtomicWaker::new(),
            driver: AtomicWaker::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Progress<V>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the call, for either task. Ready when there is an answer, or no caller that wants one.
    fn poll_call(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut progress = self.lock();
        let Progress::Out { call, begun, .. } = &mut *progress else { return Poll::Ready(()) };
        *begun = true;
        let answers = std::task::ready!(call.as_mut().poll(context));
        let answer = match answers {
            Ok(mut answers) if answers.len() == 1 => answers.pop(),
            answers => spread(answers).next(),
        };
        let answer = answer.unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "no answer")));
        let Progress::Out { item, turn, .. } = std::mem::replace(&mut *progress, Progress::Over) else {
            return Poll::Ready(());
        };
        *progress = Progress::Answered { answer, item, desk: Arc::clone(&turn.lane.desk) };
        drop(progress);
        // After the lock: the next batch is begun by this.
        drop(turn);
        Poll::Ready(())
    }

    /// The request is stuck: its caller is told, and an answer that comes after all is undone.
    fn give_up(&self) {
        let mut progress = self.lock();
        let (call, item, turn) = match std::mem::replace(&mut *progress, Progress::Over) {
            Progress::Out { call, item, turn, .. } => (call, item, turn),
            other => {
                *progress = other;
                return;
            }
        };
        let lane = Arc::clone(&turn.lane);
        let answer = Err(silent::<V>(lane.patience));
        *progress = Progress::Answered { answer, item: item.clone(), desk: Arc::clone(&lane.desk) };
        drop(progress);
        drop(turn);
        adopt::<V>(&lane.desk, lane.patience, call, vec![item]);
    }
}

/// The engine's task takes over. From here on the other task only looks for the answer: a call wakes one of its
/// pollers, and that must be the one that surely polls again.
pub(super) async fn drive<V: Verb>(lone: Arc<Lone<V>>) {
    let driving = Driving(lone);
    let lone = &driving.0;
    let (lane, seat) = match &mut *lone.lock() {
        Progress::Out { driven, turn, .. } => {
            *driven = true;
            (Arc::clone(&turn.lane), turn.seat)
        }
        _ => return,
    };
    let answered = std::future::poll_fn(|context| {
        lone.driver.register(context.waker());
        lone.poll_call(context)
    });
    if answer_in_time(&lane, seat, lone.sent, answered).await.is_none() {
        lone.give_up();
    }
}

/// Who drives a call. Dropping it, at the end or with the runtime of the engine, leaves it to the other task.
struct Driving<V: Verb>(Arc<Lone<V>>);

impl<V: Verb> Drop for Driving<V> {
    fn drop(&mut self) {
        if let Progress::Out { driven, .. } = &mut *self.0.lock() {
            *driven = false;
        }
        self.0.waker.wake();
    }
}

/// An item that was submitted. A future of its answer.
///
/// # Cancel safety
/// Dropping it leaves the request in flight; its answer, when it comes, is undone.
pub(crate) struct Submission<V: Verb>(Way<V>);

enum Way<V: Verb> {
    Lone(Arc<Lone<V>>),
    Queued(oneshot::Receiver<Result<V::Answer>>),
}

impl<V: Verb> Submission<V> {
    pub(super) fn lone(lone: Arc<Lone<V>>) -> Self {
        Submission(Way::Lone(lone))
    }

    pub(super) fn queued(answer: oneshot::Receiver<Result<V::Answer>>) -> Self {
        Submission(Way::Queued(answer))
    }
}

impl<V: Verb> Future for Submission<V> {
    type Output = Result<V::Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Way::Lone(lone) => {
                // First the waker, then the look: an answer that the engine's task brings in between wakes us.
                lone.waker.register(context.waker());
                if matches!(&*lone.lock(), Progress::Out { driven: true, .. }) {
                    return Poll::Pending;
                }
                std::task::ready!(lone.poll_call(context));
                match std::mem::replace(&mut *lone.lock(), Progress::Over) {
                    Progress::Answered { answer, .. } => Poll::Ready(answer),
                    _ => Poll::Ready(Err(Error::new(ErrorKind::Internal, "polled after its answer"))),
                }
            }
            Way::Queued(answer) => Pin::new(answer).poll(context).map(|answer| {
                answer.unwrap_or_else(|_| {
                    let what =
                        "the runtime that these locks were connected on ended before the store answered";
                    Err(Error::new(ErrorKind::ShutDown, what)
                        .with_unknown_outcome()
                        .advise("connect again on the runtime that is in use"))
                })
            }),
        }
    }
}

impl<V: Verb> Drop for Submission<V> {
    fn drop(&mut self) {
        let Way::Lone(lone) = &self.0 else { return };
        let progress = std::mem::replace(&mut *lone.lock(), Progress::Over);
        match progress {
            Progress::Out { call, item, turn, begun, .. } => {
                // The call, which would have woken it, goes another way.
                lone.driver.wake();
                let lane = Arc::clone(&turn.lane);
                drop(turn);
                if !begun {
                    // Never sent: its caller left after the engine's task took over and before that ran.
                    return;
                }
                adopt::<V>(&lane.desk, lane.patience, call, vec![item]);
            }
            Progress::Answered { answer, item, desk } => V::orphaned(&desk, item, answer),
            Progress::Over => {}
        }
    }
}
