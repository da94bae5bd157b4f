//! Threads for file work that may wait for a disk.
//!
//! Were each call a thread of its own, many tasks that acquire new names at once would start hundreds of them, and their stacks would take
//! more memory than the locks. So calls are queued, and few threads of the caller's runtime serve them. On a slow disk more calls at
//! once are faster, and one that hangs, as on a network file system whose server is down, must not hold up others: a thread
//! whose call takes long does not count.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distlock_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

/// How many threads serve calls that do not take long.
const THREADS: usize = 16;
/// After this long a call takes long.
const LONG: Duration = Duration::from_millis(10);
/// How often a caller looks whether its call needs another thread.
const CHECK: Duration = Duration::from_millis(50);
/// How many calls a thread serves in a row. It belongs to one runtime, which waits for it when it ends, and the calls may be those of
/// another.
const IN_A_ROW: u32 = 32;

/// The threads of one store.
#[derive(Clone, Default)]
pub(crate) struct FileThreads(Arc<Mutex<Calls>>);

type Call = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Calls {
    waiting: VecDeque<Call>,
    /// Threads that serve calls, or are about to.
    threads: usize,
    /// When the calls that are being served began, each with a number.
    begun: Vec<(u64, Instant)>,
    last_number: u64,
}

impl fmt::Debug for FileThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.calls();
        let (waiting, threads) = (calls.waiting.len(), calls.threads);
        f.debug_struct("FileThreads").field("waiting", &waiting).field("threads", &threads).finish()
    }
}

impl FileThreads {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs file work on one of the threads. If the caller is dropped, or not polled, the work still runs to its end; its result is
    /// then dropped, which releases a lock.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, mut answer) = oneshot::channel();
        let call = move || {
            let panicked = |_| Err(Error::new(ErrorKind::Internal, "the file store panicked"));
            let _ = reply.send(catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked));
        };
        self.calls().waiting.push_back(Box::new(call));
        loop {
            let mut thread = self.start_thread();
            tokio::select! {
                biased;
                answer = &mut answer => return answer.unwrap_or_else(|_| Err(shutting_down())),
                () = not_started(&mut thread) => return Err(shutting_down()),
                () = tokio::time::sleep(CHECK) => {}
            }
        }
    }

    /// Starts a thread if calls wait and too few threads serve them.
    fn start_thread(&self) -> Option<JoinHandle<()>> {
        let mut calls = self.calls();
        if calls.waiting.is_empty() {
            return None;
        }
        if calls.threads >= THREADS {
            let now = Instant::now();
            let takes_long = |begun: Instant| now.saturating_duration_since(begun) >= LONG;
            let long = calls.begun.iter().filter(|(_, begun)| takes_long(*begun)).count();
            if calls.threads - long >= THREADS {
                return None;
            }
        }
        calls.threads += 1;
        drop(calls);
        Some(self.thread())
    }

    fn thread(&self) -> JoinHandle<()> {
        let thread = FileThread { threads: Some(self.clone()) };
        spawn_blocking(move || thread.serve())
    }

    fn begin(&self) -> Option<(u64, Call)> {
        let mut calls = self.calls();
        let call = calls.waiting.pop_front()?;
        calls.last_number += 1;
        let number = calls.last_number;
        calls.begun.push((number, Instant::now()));
        Some((number, call))
    }

    fn end(&self, number: u64) {
        let mut calls = self.calls();
        if let Some(at) = calls.begun.iter().position(|(other, _)| *other == number) {
            calls.begun.swap_remove(at);
        }
    }
}

fn shutting_down() -> Error {
    Error::new(ErrorKind::ShutDown, "the runtime is shutting down")
}

/// Resolves if the runtime does not start the thread, because it is shutting down.
async fn not_started(thread: &mut Option<JoinHandle<()>>) {
    if let Some(started) = thread
        && started.await.is_err_and(|error| error.is_cancelled())
    {
        return;
    }
    *thread = None;
    std::future::pending().await
}

/// A thread that serves calls. If its runtime does not start it, it is dropped.
struct FileThread {
    threads: Option<FileThreads>,
}

impl FileThread {
    fn serve(mut self) {
        let Some(threads) = &self.threads else { return };
        for _ in 0..IN_A_ROW {
            let Some((number, call)) = threads.begin() else { return };
            call();
            threads.end(number);
        }
        // It counts as the same thread.
        if let Some(threads) = self.threads.take() {
            drop(threads.thread());
        }
    }
}

impl Drop for FileThread {
    fn drop(&mut self) {
        if let Some(threads) = &self.threads {
            threads.calls().threads -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    async fn in_time<T>(work: impl Future<Output = T>) -> T {
        tokio::time::timeout(PATIENCE, work).await.expect("held up")
    }

    /// Calls that hang until the sender is dropped.
    fn hanging(threads: &FileThreads, count: usize) -> mpsc::Sender<()> {
        let (end, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..count {
            let (threads, wait) = (threads.clone(), Arc::clone(&wait));
            let hangs = move || {
                let _ = wait.lock().unwrap().recv();
                Ok(())
            };
            tokio::spawn(async move { threads.run(hangs).await });
        }
        end
    }

    #[tokio::test]
    async fn many_calls_at_once_run_on_few_threads() {
        let (threads, most) = (FileThreads::default(), Arc::new((AtomicUsize::new(0), AtomicUsize::new(0))));
        let calls = (0..500).map(|at| {
            let (threads, most) = (threads.clone(), Arc::clone(&most));
            tokio::spawn(async move {
                let now = threads.run(move || {
                    most.1.fetch_max(most.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(100));
                    most.0.fetch_sub(1, Ordering::SeqCst);
                    Ok(at)
                });
                assert_eq!(in_time(now).await.unwrap(), at);
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        // A busy machine may make some of them take long.
        assert!(most.1.load(Ordering::SeqCst) < 3 * THREADS, "{most:?}");
        while threads.calls().threads > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn calls_that_hang_do_not_hold_up_others() {
        let threads = FileThreads::default();
        let end = hanging(&threads, 3 * THREADS);
        for at in 0..100 {
            assert_eq!(in_time(threads.run(move || Ok(at))).await.unwrap(), at);
        }
        drop(end);
    }

    #[tokio::test]
    async fn a_caller_that_is_not_polled_any_more_holds_up_no_others() {
        let threads = FileThreads::default();
        let ran = Arc::new(AtomicUsize::new(0));
        let mut callers: Vec<_> = (0..5 * THREADS)
            .map(|_| {
                let (threads, ran) = (threads.clone(), Arc::clone(&ran));
                Box::pin(async move { threads.run(move || Ok(ran.fetch_add(1, Ordering::SeqCst))).await })
            })
            .collect();
        // Some may have been served between two steps of their first poll.
        callers.retain_mut(|caller| caller.now_or_never().is_none());
        in_time(threads.run(|| Ok(()))).await.unwrap();
        callers.truncate(THREADS);
        in_time(async {
            while ran.load(Ordering::SeqCst) < 5 * THREADS {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_call_that_panics_fails_alone() {
        let threads = FileThreads::default();
        for _ in 0..2 * THREADS {
            let failed = in_time(threads.run(|| -> Result<()> { panic!("as expected") })).await;
            assert_eq!(failed.unwrap_err().kind(), ErrorKind::Internal);
        }
        in_time(threads.run(|| Ok(()))).await.unwrap();
    }

    #[test]
    fn a_runtime_that_ends_does_not_wait_for_the_calls_of_another() {
        let threads = FileThreads::default();
        let (mine, other) = (runtime(), runtime());
        let stop = Arc::new(AtomicUsize::new(0));
        // The other one's calls never end, and are served by threads of this one as well.
        let load: Vec<_> = (0..200)
            .map(|_| {
                let (threads, stop) = (threads.clone(), Arc::clone(&stop));
                other.spawn(async move {
                    while stop.load(Ordering::SeqCst) == 0 {
                        let slow = || {
                            std::thread::sleep(Duration::from_micros(50));
                            Ok(())
                        };
                        threads.run(slow).await.unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            let runtime = runtime();
            for _ in 0..20 {
                runtime.block_on(async {
                    let mut call = Box::pin(threads.run(|| Ok(())));
                    let _ = (&mut call).now_or_never();
                });
                other.block_on(async { tokio::time::sleep(Duration::from_micros(300)).await });
            }
            let begun = Instant::now();
            drop(runtime);
            assert!(begun.elapsed() < PATIENCE / 10, "{:?}", begun.elapsed());
        }
        stop.store(1, Ordering::SeqCst);
        other.block_on(async { in_time(futures_util::future::join_all(load)).await });
        drop(other);
        mine.block_on(async { in_time(threads.run(|| Ok(()))).await.unwrap() });
    }

    #[test]
    fn a_call_in_a_runtime_that_ends_fails_and_the_next_one_is_served() {
        let threads = FileThreads::default();
        let ended = runtime();
        let handle = ended.handle().clone();
        drop(ended);
        let other = runtime();
        let entered = handle.enter();
        let mut call = Box::pin(threads.run(|| Ok(())));
        assert_eq!(
            (&mut call).now_or_never().map(|done| done.unwrap_err().kind()),
            Some(ErrorKind::ShutDown)
        );
        drop(entered);
        other.block_on(async { in_time(threads.run(|| Ok(()))).await.unwrap() });
    }
}
