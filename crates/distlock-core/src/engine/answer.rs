//! The answer to an item of a batch: a channel for one value, in which sending the value and waking its task are two steps.
//!
//! A batched reply answers many tasks. If each were woken when it is answered, the runtime would notify an idle thread for the first
//! one; that thread takes the task, runs it, finds no other and sleeps, and is notified again for the next one. Measured on Redis
//! with 16 tasks on two threads: 1.2 notifications per acquisition, most of the client's CPU time. So all of them are answered first,
//! and then [woken together](WakeList).

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Up to this number, tasks are woken one by one.
const FEW: usize = 2;

/// The sender of an answer. If it is dropped, its task learns that no answer will come.
#[derive(Debug)]
pub(super) struct Reply<T>(Option<Arc<Channel<T>>>);

/// The receiver of an answer. Once it is dropped or closed, no answer can be sent.
#[derive(Debug)]
pub(super) struct Answer<T>(Arc<Channel<T>>);

/// No answer will come: its sender was dropped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoAnswer;

#[derive(Debug)]
struct Channel<T>(Mutex<State<T>>);

#[derive(Debug)]
enum State<T> {
    /// No answer yet. The waker is that of the task that waits.
    Waiting(Option<Waker>),
    Answered(T),
    /// The answer was taken, its receiver left, or its sender was dropped.
    Closed,
}

pub(super) fn channel<T>() -> (Reply<T>, Answer<T>) {
    let channel = Arc::new(Channel(Mutex::new(State::Waiting(None))));
    (Reply(Some(Arc::clone(&channel))), Answer(channel))
}

impl<T> Channel<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) -> State<T> {
        std::mem::replace(&mut *self.lock(), State::Closed)
    }
}

impl<T> Reply<T> {
    /// Whether the receiver left.
    pub(super) fn is_closed(&self) -> bool {
        self.0.as_ref().is_none_or(|channel| matches!(*channel.lock(), State::Closed))
    }

    /// Sends the answer, and lists the task that waits for it. The answer comes back if its receiver left.
    pub(super) fn send(mut self, answer: T, woken: &mut WakeList) -> Result<(), T> {
        let Some(channel) = self.0.take() else { return Err(answer) };
        let mut state = channel.lock();
        match &mut *state {
            State::Waiting(waker) => {
                woken.0.extend(waker.take());
                *state = State::Answered(answer);
                Ok(())
            }
            _ => Err(answer),
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let Some(channel) = self.0.take() else { return };
        if let State::Waiting(Some(waker)) = channel.close() {
            waker.wake();
        }
    }
}

impl<T> Answer<T> {
    /// Takes the answer that was sent and not read. After this, none can be sent.
    pub(super) fn close(&mut self) -> Option<T> {
        match self.0.close() {
            State::Answered(answer) => Some(answer),
            _ => None,
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, NoAnswer>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        if let State::Waiting(waker) = &mut *state {
            match waker {
                Some(known) => known.clone_from(context.waker()),
                None => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Closed) {
            State::Answered(answer) => Poll::Ready(Ok(answer)),
            _ => Poll::Ready(Err(NoAnswer)),
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        // Dropped without the lock: dropping an answer may do anything.
        drop(self.0.close());
    }
}

/// The tasks that were answered together. They are woken when the list is dropped.
#[derive(Debug, Default)]
pub(super) struct WakeList(Vec<Waker>);

impl WakeList {
    pub(super) fn with_capacity(tasks: usize) -> Self {
        WakeList(Vec::with_capacity(tasks))
    }
}

impl Drop for WakeList {
    fn drop(&mut self) {
        let wakers = std::mem::take(&mut self.0);
        if wakers.len() <= FEW {
            wakers.into_iter().for_each(Waker::wake);
            return;
        }
        // A yield in the name of all of them. The runtime wakes what has yielded at its next look for events, all at once, and then
        // notifies one idle thread to help. Outside of a runtime they are woken now.
        let together = Waker::from(Arc::new(Together(Mutex::new(wakers))));
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&together));
    }
}

/// Wakes all of its tasks, also if the runtime ends and drops it unused: they may belong to another runtime.
struct Together(Mutex<Vec<Waker>>);

impl Together {
    fn wake_all(&self) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Together {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        self.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// This many answers that were polled once, and how often their tasks were woken.
    fn polled(count: usize) -> (Vec<Reply<usize>>, Vec<Answer<usize>>, Arc<Count>) {
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let (replies, mut answers): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
        for answer in &mut answers {
            assert!(answer.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        }
        (replies, answers, woken)
    }

    fn send_all(replies: Vec<Reply<usize>>) -> WakeList {
        let mut woken = WakeList::default();
        for (number, reply) in replies.into_iter().enumerate() {
            assert!(!reply.is_closed());
            reply.send(number, &mut woken).unwrap();
        }
        woken
    }

    #[test]
    fn no_task_is_woken_before_all_are_answered() {
        for count in [1, 2, 3, 100] {
            let (replies, answers, woken) = polled(count);
            let list = send_all(replies);
            assert_eq!(woken.0.load(Ordering::SeqCst), 0);
            // Here is no runtime to wait for.
            drop(list);
            assert_eq!(woken.0.load(Ordering::SeqCst), count);
            for (number, answer) in answers.into_iter().enumerate() {
                assert_eq!(answer.now_or_never(), Some(Ok(number)));
            }
        }
    }

    #[test]
    fn tasks_of_another_runtime_are_woken_although_the_runtime_that_answers_ends() {
        for workers in [0, 2] {
            let runtime = match workers {
                0 => tokio::runtime::Builder::new_current_thread().build().unwrap(),
                workers => {
                    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).build().unwrap()
                }
            };
            let (replies, answers, woken) = polled(3);
            runtime.spawn(async move { drop(send_all(replies)) });
            let (ends, ended) = std::sync::mpsc::channel::<()>();
            runtime.spawn(async move {
                let _ends = ends;
                std::future::pending::<()>().await;
            });
            if workers == 0 {
                // One poll of each task, and no look for events after it.
                runtime.block_on(async { tokio::task::yield_now().await });
            }
            drop(runtime);
            assert!(ended.recv().is_err());
            // The task that answers may have ended before its first poll. Then there is no answer, and all learn of it.
            assert_eq!(woken.0.load(Ordering::SeqCst), 3);
            assert!(answers.into_iter().all(|answer| answer.now_or_never().is_some()));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_tasks_are_all_woken_by_a_busy_runtime() {
        for _ in 0..200 {
            let (replies, answers): (Vec<_>, Vec<_>) = (0..50).map(|_| channel()).unzip();
            let waiting: Vec<_> = answers.into_iter().map(tokio::spawn).collect();
            tokio::spawn(async move { drop(send_all(replies)) });
            for (number, waiting) in waiting.into_iter().enumerate() {
                assert_eq!(waiting.await.unwrap(), Ok(number));
            }
        }
    }

    #[test]
    fn an_answer_without_a_receiver_comes_back_and_a_receiver_without_a_sender_learns_of_it() {
        let (reply, answer) = channel();
        drop(answer);
        assert!(reply.is_closed());
        assert_eq!(reply.send(7, &mut WakeList::default()), Err(7));

        let (reply, mut answer) = channel();
        reply.send(7, &mut WakeList::default()).unwrap();
        assert_eq!(answer.close(), Some(7));
        assert_eq!(answer.close(), None);

        let (reply, mut answer) = channel();
        assert_eq!(answer.close(), None);
        assert_eq!(reply.send(7, &mut WakeList::default()), Err(7));

        let (replies, answers, woken) = polled(1);
        drop(replies);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(answers.into_iter().all(|answer| answer.now_or_never() == Some(Err(NoAnswer))));
    }
}
