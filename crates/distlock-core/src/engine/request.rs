//! Requests in flight: a lone request, driven by its caller's task until other items wait for its slot, and a batch,
//! driven by the background task.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::{Answer, WakeList};
use super::batcher::{Batcher, Reply, SlotId, SlotPermit};
use super::command_channel::{Command, CommandChannel};
use super::store_call::{StoreOperation, no_answer, per_item};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Batch;

/// After this share of the request time-out a request counts as stalled, and batches no longer wait for it.
const STALLED_AFTER: u32 = 20;
/// After this share of the request time-out a request frees its slot.
const FREES_AFTER: u32 = 2;

pub(super) struct LoneRequest<O: StoreOperation> {
    sent: Instant,
    progress: Mutex<Progress<O>>,
    /// Wakes the caller's task.
    caller: AtomicWaker,
    /// Wakes the background task, if it drives the request.
    driver: AtomicWaker,
}

enum Progress<O: StoreOperation> {
    InFlight {
        call: BoxFuture<'static, Batch<O::Outcome>>,
        item: O::Item,
        permit: SlotPermit<O>,
        /// The background task polls it.
        driven: bool,
        /// It was polled at least once, so the store may have received it.
        begun: bool,
    },
    Answered {
        answer: Result<O::Outcome>,
        item: O::Item,
        commands: Arc<CommandChannel>,
    },
    /// The answer was taken, or no caller wants it.
    Done,
}

impl<O: StoreOperation> LoneRequest<O> {
    pub(super) fn begin(permit: SlotPermit<O>, item: O::Item) -> Arc<Self> {
        let call = O::call_one(Arc::clone(&permit.batcher.store), item.clone());
        Arc::new(LoneRequest {
            sent: Instant::now(),
            progress: Mutex::new(Progress::InFlight { call, item, permit, driven: false, begun: false }),
            caller: AtomicWaker::new(),
            driver: AtomicWaker::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Progress<O>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the call, for either task. Ready when it is answered, or when no caller wants an answer.
    fn poll_call(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut progress = self.lock();
        let Progress::InFlight { call, begun, .. } = &mut *progress else { return Poll::Ready(()) };
        *begun = true;
        let answers = std::task::ready!(call.as_mut().poll(context));
        let answer = match answers {
            Ok(mut answers) if answers.len() == 1 => answers.pop(),
            answers => per_item(answers).next(),
        };
        let answer = answer.unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "no answer")));
        let Progress::InFlight { item, permit, .. } = std::mem::replace(&mut *progress, Progress::Done)
        else {
            return Poll::Ready(());
        };
        *progress = Progress::Answered { answer, item, commands: Arc::clone(&permit.batcher.commands) };
        drop(progress);
        // After the lock, since this sends the next batch.
        drop(permit);
        Poll::Ready(())
    }

    /// Reports the time-out to the caller. If the answer arrives later, it is undone.
    fn time_out(&self) {
        let mut progress = self.lock();
        let (call, item, permit) = match std::mem::replace(&mut *progress, Progress::Done) {
            Progress::InFlight { call, item, permit, .. } => (call, item, permit),
            other => {
                *progress = other;
                return;
            }
        };
        let batcher = Arc::clone(&permit.batcher);
        let answer = Err(no_answer::<O>(batcher.timeout));
        *progress =
            Progress::Answered { answer, item: item.clone(), commands: Arc::clone(&batcher.commands) };
        drop(progress);
        drop(permit);
        adopt::<O>(&batcher.commands, batcher.timeout, call, vec![item]);
    }
}

/// Drives a lone request in the background task. From then on the caller's task only looks for the answer: a call
/// wakes one of its pollers, and that must be the one that is sure to poll again.
pub(super) async fn drive<O: StoreOperation>(request: Arc<LoneRequest<O>>) {
    let guard = DriverGuard(request);
    let request = &guard.0;
    let (batcher, slot) = match &mut *request.lock() {
        Progress::InFlight { driven, permit, .. } => {
            *driven = true;
            (Arc::clone(&permit.batcher), permit.id)
        }
        _ => return,
    };
    let answered = std::future::poll_fn(|context| {
        request.driver.register(context.waker());
        request.poll_call(context)
    });
    if answer_in_time(&batcher, slot, request.sent, answered).await.is_none() {
        request.time_out();
    }
}

/// Returns the request to its caller's task when the background task stops driving it, also if the runtime of the engine
/// ends.
struct DriverGuard<O: StoreOperation>(Arc<LoneRequest<O>>);

impl<O: StoreOperation> Drop for DriverGuard<O> {
    fn drop(&mut self) {
        if let Progress::InFlight { driven, .. } = &mut *self.0.lock() {
            *driven = false;
        }
        self.0.caller.wake();
    }
}

/// A submitted item: a future of its answer.
///
/// # Cancel safety
/// Dropping it leaves the request in flight. Its answer is undone when it arrives.
pub(crate) struct Submission<O: StoreOperation>(SubmissionKind<O>);

enum SubmissionKind<O: StoreOperation> {
    Lone(Arc<LoneRequest<O>>),
    Queued(Answer<Result<O::Outcome>>),
}

impl<O: StoreOperation> Submission<O> {
    pub(super) fn lone(request: Arc<LoneRequest<O>>) -> Self {
        Submission(SubmissionKind::Lone(request))
    }

    pub(super) fn queued(answer: Answer<Result<O::Outcome>>) -> Self {
        Submission(SubmissionKind::Queued(answer))
    }

    /// For a caller that leaves: takes the answer that a queued item got and that was not read. After this, no answer is
    /// sent to it; the batch undoes what arrives later, and a lone request undoes its own answer.
    pub(super) fn take_unread(&mut self) -> Option<Result<O::Outcome>> {
        let SubmissionKind::Queued(answer) = &mut self.0 else { return None };
        answer.close()
    }
}

impl<O: StoreOperation> Future for Submission<O> {
    type Output = Result<O::Outcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            SubmissionKind::Lone(request) => {
                // Registered before the check, so that an answer that the background task stores in between wakes us.
                request.caller.register(context.waker());
                if matches!(&*request.lock(), Progress::InFlight { driven: true, .. }) {
                    return Poll::Pending;
                }
                std::task::ready!(request.poll_call(context));
                match std::mem::replace(&mut *request.lock(), Progress::Done) {
                    Progress::Answered { answer, .. } => Poll::Ready(answer),
                    _ => Poll::Ready(Err(Error::new(ErrorKind::Internal, "polled after its answer"))),
                }
            }
            SubmissionKind::Queued(answer) => Pin::new(answer).poll(context).map(|answer| {
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

impl<O: StoreOperation> Drop for Submission<O> {
    fn drop(&mut self) {
        let SubmissionKind::Lone(request) = &self.0 else { return };
        let progress = std::mem::replace(&mut *request.lock(), Progress::Done);
        match progress {
            Progress::InFlight { call, item, permit, begun, .. } => {
                // The call moves out of the request and will not wake its driver any more.
                request.driver.wake();
                let batcher = Arc::clone(&permit.batcher);
                drop(permit);
                if !begun && !O::OUTLIVES_CALLER {
                    // Never sent: the caller left after the background task took over and before it polled the call.
                    return;
                }
                adopt::<O>(&batcher.commands, batcher.timeout, call, vec![item]);
            }
            Progress::Answered { answer, item, commands } => O::orphaned(&commands, item, answer),
            Progress::Done => {}
        }
    }
}

/// Waits for the answer to a request that was sent at `sent`. The longer it takes, the more it lets other requests pass.
/// `None` after the request time-out, but not before a quarter of it has passed from now: the task that sent the request
/// may not have polled it for long, and the answer may already be there.
async fn answer_in_time<O: StoreOperation, T>(
    batcher: &Arc<Batcher<O>>,
    slot: SlotId,
    sent: Instant,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let mut answer = pin!(answer);
    if let Ok(answer) = timeout_at(sent + batcher.timeout / STALLED_AFTER, &mut answer).await {
        return Some(answer);
    }
    batcher.stalled(slot.number);
    let earliest = Instant::now() + batcher.timeout / 4;
    if let Ok(answer) = timeout_at(earliest.max(sent + batcher.timeout / FREES_AFTER), &mut answer).await {
        return Some(answer);
    }
    batcher.free(slot);
    timeout_at(earliest.max(sent + batcher.timeout), answer).await.ok()
}

/// Yields once, so that every task that is ready can submit its item, and then sends the batch.
pub(super) async fn gather<O: StoreOperation>(permit: SlotPermit<O>) {
    tokio::task::yield_now().await;
    send_pending(permit).await;
}

/// Sends the pending items as one batch.
pub(super) async fn send_pending<O: StoreOperation>(permit: SlotPermit<O>) {
    let (items, replies) = permit.take_batch();
    permit.batcher.send_rest();
    if !items.is_empty() {
        run_batch(permit, items, replies).await;
    }
}

async fn run_batch<O: StoreOperation>(permit: SlotPermit<O>, items: Vec<O::Item>, replies: Vec<Reply<O>>) {
    let batcher = Arc::clone(&permit.batcher);
    let sent = Instant::now();
    let mut call = O::call(Arc::clone(&batcher.store), items.clone());
    let answers = answer_in_time(&batcher, permit.id, sent, &mut call).await;
    if O::REPEATABLE
        && items.len() > 1
        && let Some(Err(error)) = &answers
        && error.is_panic()
    {
        return batcher.split(items, replies, error);
    }
    // Sends the next batch before these answers are processed, also if this request had no answer.
    drop(permit);
    let mut woken = WakeList::with_capacity(items.len());
    match answers {
        Some(answers) => {
            for ((item, reply), answer) in items.into_iter().zip(replies).zip(per_item(answers)) {
                if let Err(answer) = reply.send(answer, &mut woken) {
                    O::orphaned(&batcher.commands, item, answer);
                }
            }
        }
        None => {
            let error = no_answer::<O>(batcher.timeout);
            for reply in replies {
                let _ = reply.send(Err(error.clone()), &mut woken);
            }
            adopt::<O>(&batcher.commands, batcher.timeout, call, items);
        }
    }
}

/// Drives a call to completion that no caller awaits, and undoes its result. `shutdown` waits for it for one request
/// time-out. The engine itself ends only after the store would have expired what the call may have created.
fn adopt<O: StoreOperation>(
    commands: &Arc<CommandChannel>,
    request_timeout: Duration,
    mut call: BoxFuture<'static, Batch<O::Outcome>>,
    items: Vec<O::Item>,
) {
    let channel = Arc::clone(commands);
    commands.send(Command::Work(Box::pin(async move {
        let longest = items.iter().map(O::lifetime).max().unwrap_or_default();
        let unanswered = items.clone();
        let undo = {
            let commands = Arc::clone(&channel);
            move |answers| {
                for (item, answer) in items.into_iter().zip(per_item(answers)) {
                    O::orphaned(&commands, item, answer);
                }
            }
        };
        match timeout(request_timeout, &mut call).await {
            Ok(answers) => undo(answers),
            Err(_) => {
                // The store may have applied it after the first withdrawal, and its answer may never come.
                for item in unanswered {
                    O::orphaned(&channel, item, Err(no_answer::<O>(request_timeout)));
                }
                channel.send(Command::Stuck(Box::pin(async move {
                    if let Ok(answers) = timeout(longest, call).await {
                        undo(answers);
                    }
                })));
            }
        }
    })));
}
