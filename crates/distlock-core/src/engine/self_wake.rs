//! Wake-ups that a task sends to itself while it is polled. The runtime takes them for a yield: it polls the task again later, and
//! notifies an idle thread to help. `FuturesUnordered` does that whenever it has polled all of its futures, and the background task
//! whenever it sends a command to itself, so nearly every batch woke a thread that found nothing to do.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// How often a task is polled in one go before its thread runs others.
const MOST_POLLS: usize = 3;

/// Drives a task. If it wakes itself while it is polled, it is polled again at once.
///
/// # Cancel safety
/// Dropping it drops the task.
pub(super) async fn drive(task: impl Future<Output = ()>) {
    let mut task = pin!(task);
    let state = Arc::new(SelfWake::default());
    let waker = Waker::from(Arc::clone(&state));
    std::future::poll_fn(|context| {
        state.task.register(context.waker());
        for _ in 0..MOST_POLLS {
            state.is_polled.store(true, Ordering::SeqCst);
            // What it was woken for until now is what it is polled for.
            state.is_woken.store(false, Ordering::SeqCst);
            let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
            state.is_polled.store(false, Ordering::SeqCst);
            if !state.is_woken.swap(false, Ordering::SeqCst) || polled.is_ready() {
                return polled;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[derive(Default)]
struct SelfWake {
    task: AtomicWaker,
    is_polled: AtomicBool,
    /// It was woken while it was polled.
    is_woken: AtomicBool,
}

impl Wake for SelfWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // In this order: a poll that ends in between finds the mark.
        self.is_woken.store(true, Ordering::SeqCst);
        if !self.is_polled.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A task that calls `on_poll` with the number of the poll and its waker; how often it was polled, and how often its runtime was
    /// asked to poll it.
    struct Driven {
        task: BoxFuture<'static, ()>,
        polls: Arc<AtomicUsize>,
        wakes: Arc<Wakes>,
    }

    impl Driven {
        fn new(on_poll: impl Fn(usize, &Waker) + Send + 'static) -> Self {
            let polls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&polls);
            let task = std::future::poll_fn(move |context| {
                on_poll(counted.fetch_add(1, Ordering::SeqCst), context.waker());
                Poll::Pending
            });
            Driven { task: drive(task).boxed(), polls, wakes: Arc::default() }
        }

        /// Polls it as a runtime does; how often the task was polled in all, and woken.
        fn poll(&mut self) -> (usize, usize) {
            let waker = Waker::from(Arc::clone(&self.wakes));
            assert!(self.task.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
            (self.polls.load(Ordering::SeqCst), self.wakes.0.load(Ordering::SeqCst))
        }
    }

    #[test]
    fn a_task_that_wakes_itself_while_it_is_polled_is_polled_again_at_once() {
        let mut driven = Driven::new(|poll, waker| {
            if poll == 0 {
                waker.wake_by_ref()
            }
        });
        assert_eq!(driven.poll(), (2, 0));
        assert_eq!(driven.poll(), (3, 0));
    }

    #[test]
    fn a_task_that_wakes_itself_without_end_lets_others_run() {
        let mut driven = Driven::new(|_, waker| waker.wake_by_ref());
        assert_eq!(driven.poll(), (MOST_POLLS, 1));
        assert_eq!(driven.poll(), (2 * MOST_POLLS, 2));
    }

    #[test]
    fn a_wake_up_between_two_polls_reaches_the_runtime() {
        let kept = Arc::new(std::sync::Mutex::new(None));
        let keep = Arc::clone(&kept);
        let mut driven = Driven::new(move |_, waker| *keep.lock().unwrap() = Some(waker.clone()));
        assert_eq!(driven.poll(), (1, 0));
        let waker = kept.lock().unwrap().take().unwrap();
        waker.wake();
        assert_eq!(driven.wakes.0.load(Ordering::SeqCst), 1);
        // The wake-up is not taken for one that came while it was polled.
        assert_eq!(driven.poll(), (2, 1));
    }

    /// Wakes the task from another thread all the time: every wake-up is followed by a poll.
    #[tokio::test]
    async fn no_wake_up_is_lost_between_the_end_of_a_poll_and_the_look_for_one() {
        const ROUNDS: usize = 20_000;
        let (asked, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let waker = Arc::new(AtomicWaker::new());
        let task = {
            let (asked, answered, waker) = (Arc::clone(&asked), Arc::clone(&answered), Arc::clone(&waker));
            tokio::spawn(drive(std::future::poll_fn(move |context| {
                waker.register(context.waker());
                let seen = asked.load(Ordering::SeqCst);
                answered.store(seen, Ordering::SeqCst);
                if seen == ROUNDS { Poll::Ready(()) } else { Poll::Pending }
            })))
        };
        let asking = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                asked.store(round, Ordering::SeqCst);
                waker.wake();
                while answered.load(Ordering::SeqCst) < round {
                    std::hint::spin_loop();
                }
            }
        });
        let limit = std::time::Duration::from_secs(60);
        tokio::time::timeout(limit, task).await.expect("a wake-up was lost").unwrap();
        asking.join().unwrap();
    }
}
