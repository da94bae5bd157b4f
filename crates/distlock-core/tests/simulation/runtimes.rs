//! The runtimes of a simulation: a main runtime with the only clock, and one for each client, so that a client can be
//! stalled (its runtime is not driven) or ended (its runtime is dropped) while everything else continues.
//!
//! A client's tasks create their timers on the main runtime, which is entered while the client's runtime is driven.
//! So there is one virtual time, which moves only in [`MainRuntime::advance`], and the simulation alone decides what runs next.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::Instant;

thread_local! {
    /// The root future of the driven runtime.
    static ROOT: RefCell<Option<Waker>> = const { RefCell::new(None) };
    /// Whether the root future is woken before the runtime parks, or after.
    static BEFORE_PARK: Cell<bool> = const { Cell::new(true) };
}

fn wake_root() {
    if let Some(root) = ROOT.with(|root| root.borrow_mut().take()) {
        root.wake();
    }
}

fn before_park() {
    if BEFORE_PARK.get() {
        wake_root();
    }
}

fn after_unpark() {
    if !BEFORE_PARK.get() {
        wake_root();
    }
}

/// Resolves when the runtime parks because no task is ready. A paused clock does not advance then, since the root future
/// is woken before the runtime parks.
#[derive(Default)]
struct Parked {
    armed: bool,
}

impl Future for Parked {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.armed && ROOT.with(|root| root.borrow().is_none()) {
            return Poll::Ready(());
        }
        self.armed = true;
        ROOT.with(|root| *root.borrow_mut() = Some(context.waker().clone()));
        Poll::Pending
    }
}

/// The main runtime: servers, network and clock.
pub struct MainRuntime {
    runtime: Runtime,
    start: Instant,
}

impl MainRuntime {
    pub fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .on_thread_park(before_park)
            .on_thread_unpark(after_unpark)
            .build()
            .unwrap();
        let start = {
            let _inside = runtime.enter();
            Instant::now()
        };
        MainRuntime { runtime, start }
    }

    pub fn handle(&self) -> Handle {
        self.runtime.handle().clone()
    }

    /// Runs all ready tasks of the main runtime. Time does not advance.
    pub fn settle(&self) {
        BEFORE_PARK.set(true);
        self.runtime.block_on(Parked::default());
    }

    /// Moves time to the next timer, but not beyond `limit`, and returns the new time. Runs no task.
    pub fn advance(&self, limit: Duration) -> Duration {
        BEFORE_PARK.set(false);
        let start = self.start;
        self.runtime.block_on(async {
            // Without a timer the runtime would park for ever.
            let _bound = tokio::time::sleep_until(start + limit);
            tokio::pin!(_bound);
            tokio::select! {
                biased;
                () = Parked::default() => {}
                () = &mut _bound => {}
            }
            start.elapsed()
        })
    }
}

/// The runtime of one client.
pub struct ClientRuntime(Runtime);

impl ClientRuntime {
    pub fn new() -> Self {
        ClientRuntime(Builder::new_current_thread().on_thread_park(before_park).build().unwrap())
    }

    pub fn inner(&self) -> &Runtime {
        &self.0
    }

    /// Runs all ready tasks. Time does not advance.
    pub fn settle(&self, main_runtime: &MainRuntime) {
        BEFORE_PARK.set(true);
        self.0.block_on(async {
            let _timers = main_runtime.runtime.enter();
            Parked::default().await;
        });
    }
}

/// A runtime with timers of its own that follow the main one, for callers whose runtime ends.
pub struct ShortLivedRuntime {
    runtime: Runtime,
    at: Duration,
}

impl ShortLivedRuntime {
    pub fn new(now: Duration) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .on_thread_park(before_park)
            .build()
            .unwrap();
        ShortLivedRuntime { runtime, at: now }
    }

    pub fn inner(&self) -> &Runtime {
        &self.runtime
    }

    pub fn settle(&mut self, now: Duration) {
        BEFORE_PARK.set(true);
        let by = now.saturating_sub(self.at);
        self.at = now;
        self.runtime.block_on(async {
            if !by.is_zero() {
                tokio::time::advance(by).await;
            }
            Parked::default().await;
        });
    }
}

/// Drops a future after it was polled so many times, which may be at any of its awaits.
pub struct DropAfter<F> {
    future: Option<Pin<Box<F>>>,
    polls: u32,
}

impl<F: Future> DropAfter<F> {
    pub fn new(future: F, polls: Option<u32>) -> Self {
        DropAfter { future: Some(Box::pin(future)), polls: polls.unwrap_or(u32::MAX) }
    }
}

impl<F: Future> Future for DropAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Ready(None) };
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            self.future = None;
            return Poll::Ready(Some(output));
        }
        if self.polls == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        if self.polls != u32::MAX {
            self.polls -= 1;
        }
        Poll::Pending
    }
}
