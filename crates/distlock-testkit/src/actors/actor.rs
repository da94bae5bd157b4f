//! The test's side of an actor.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::store::Backend;
use tokio::process::Child;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::child;
use super::order::{Answer, Contest, Letter, Order, Role};
use super::thread::ActorThread;
use crate::history::{Event, LockSpec, Outcome, Recorder, What, now};

/// The answers that are awaited. `None` once the actor is gone.
#[derive(Debug)]
pub(super) struct Pending(Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>);

impl Pending {
    fn with<T>(&self, act: impl FnOnce(&mut Option<HashMap<u64, oneshot::Sender<Answer>>>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn resolve(&self, answer: Letter<Answer>) {
        let waiting = self.with(|pending| pending.as_mut().and_then(|map| map.remove(&answer.number)));
        if let Some(waiting) = waiting {
            // Whoever gave the order may have stopped waiting.
            let _ = waiting.send(answer.text);
        }
    }

    pub(super) fn give_up(&self) {
        self.with(Option::take);
    }
}

#[derive(Debug)]
enum Body {
    Process(Box<Child>),
    Thread(ActorThread),
}

/// Somebody outside the test who takes locks as told. Dropping it kills it.
#[derive(Debug)]
pub struct Actor {
    name: String,
    orders: UnboundedSender<Letter<Order>>,
    pending: Arc<Pending>,
    next: AtomicU64,
    body: Body,
    /// Where the test writes down what it does to its actors.
    director: Arc<Recorder>,
}

impl Actor {
    /// Starts an actor as a process: this binary with the test `entry`, which must call
    /// [`perform`](super::perform).
    #[must_use]
    pub fn in_process(entry: &str, role: &Role, director: &Arc<Recorder>) -> Self {
        Actor::new(role.name.clone(), director, |orders, pending| {
            Body::Process(Box::new(child::start(entry, role, orders, pending)))
        })
    }

    /// Starts an actor as a thread that connects with `connect` on its own runtime.
    #[must_use]
    pub fn in_thread<C>(role: Role, connect: C, director: &Arc<Recorder>) -> Self
    where
        C: Fn() -> Pin<Box<dyn Future<Output = Backend> + Send>> + Send + Sync + 'static,
    {
        Actor::new(role.name.clone(), director, |orders, pending| {
            Body::Thread(ActorThread::start(role, Box::new(connect), orders, pending))
        })
    }

    fn new(
        name: String,
        director: &Arc<Recorder>,
        start: impl FnOnce(tokio::sync::mpsc::UnboundedReceiver<Letter<Order>>, Arc<Pending>) -> Body,
    ) -> Self {
        let (orders, inbox) = unbounded_channel();
        let pending = Arc::new(Pending(Mutex::new(Some(HashMap::new()))));
        let body = start(inbox, Arc::clone(&pending));
        Actor { name, orders, pending, next: AtomicU64::new(1), body, director: Arc::clone(director) }
    }

    /// The name: also the label of the actor's lock ids.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives an order, now. The answer comes with the future.
    ///
    /// # Panics
    /// The future panics if the actor is dead, or dies before it answers.
    pub fn order(&self, order: Order) -> impl Future<Output = Answer> + Send + 'static {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.pending.with(|pending| pending.as_mut().map(|map| map.insert(number, sender)));
        let shown = format!("{order:?}");
        let _ = self.orders.send(Letter { number, text: order });
        let name = self.name.clone();
        async move { answer.await.unwrap_or_else(|_| panic!("the actor {name} died before it answered {shown}")) }
    }

    /// Takes a lock, without a time limit, and returns its token.
    ///
    /// # Panics
    /// The future panics if the lock is refused.
    pub fn take(&self, slot: u32, spec: &LockSpec) -> impl Future<Output = u64> + Send + 'static {
        self.token(Order::Take { slot, spec: spec.clone(), within: None, watch: false })
    }

    /// Takes a lock and lets a thread of the actor's write down whether it is still held, again and again.
    ///
    /// # Panics
    /// The future panics if the lock is refused.
    pub fn take_watched(&self, slot: u32, spec: &LockSpec) -> impl Future<Output = u64> + Send + 'static {
        self.token(Order::Take { slot, spec: spec.clone(), within: None, watch: true })
    }

    fn token(&self, order: Order) -> impl Future<Output = u64> + Send + 'static {
        let (answer, name) = (self.order(order), self.name.clone());
        async move {
            match answer.await {
                Answer::Granted { token, .. } => token,
                other => panic!("the actor {name} should have been granted, and got {other:?}"),
            }
        }
    }

    /// Whether what it took is lost.
    pub async fn is_lost(&self, slot: u32) -> bool {
        match self.order(Order::IsLost { slot }).await {
            Answer::IsLost(lost) => lost,
            other => panic!("not an answer to the question: {other:?}"),
        }
    }

    /// How long what it took is surely held; `None` for ever.
    pub async fn time_left(&self, slot: u32) -> Option<Duration> {
        match self.order(Order::TimeLeft { slot }).await {
            Answer::TimeLeft(left) => left,
            other => panic!("not an answer to the question: {other:?}"),
        }
    }

    /// Releases what it took.
    pub async fn give_back(&self, slot: u32) -> Outcome {
        match self.order(Order::GiveBack { slot }).await {
            Answer::GivenBack(outcome) => outcome,
            other => panic!("not an answer to the order: {other:?}"),
        }
    }

    /// Lets it take and release many times.
    ///
    /// # Panics
    /// The future panics if any of it fails.
    pub fn contend(&self, contest: Contest) -> impl Future<Output = ()> + Send + 'static {
        let (answer, name) = (self.order(Order::Contend(contest)), self.name.clone());
        async move {
            let answer = answer.await;
            assert!(matches!(answer, Answer::Done), "the actor {name} could not go on: {answer:?}");
        }
    }

    fn note(&self, what: What) {
        self.director.write(&Event { at: now(), actor: self.name.clone(), ask: 0, what });
    }

    /// Stops it as a whole, in the middle of whatever it does.
    pub async fn pause(&mut self) {
        match &self.body {
            Body::Process(process) => child::pause(process).await,
            Body::Thread(thread) => {
                thread.freeze(true);
                self.order(Order::Freeze).await;
            }
        }
        self.note(What::Paused);
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.note(What::Resumed);
        match &self.body {
            Body::Process(process) => child::resume(process),
            Body::Thread(thread) => thread.freeze(false),
        }
    }

    /// Kills it: `SIGKILL` for a process; for a thread, the end of its runtime without another step.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub async fn kill(mut self) {
        self.note(What::Killed);
        match &mut self.body {
            Body::Process(process) => process.kill().await.expect("cannot kill the actor"),
            Body::Thread(thread) => thread.kill(),
        }
    }

    /// Lets it give everything back and end.
    ///
    /// # Panics
    /// If it does not end well.
    pub async fn leave(mut self) {
        self.order(Order::Leave).await;
        match &mut self.body {
            Body::Process(process) => {
                let status = process.wait().await.expect("an actor that leaves");
                assert!(status.success(), "the actor {} ended with {status}", self.name);
            }
            Body::Thread(thread) => thread.join(),
        }
    }
}
