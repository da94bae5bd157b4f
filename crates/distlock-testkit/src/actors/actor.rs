//! The test's side of an actor.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_core::store::Backend;
use tokio::process::Child;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::child;
use super::protocol::{ActorCommand, ActorConfig, ActorReply, Contention, Envelope};
use super::thread::ActorThread;
use crate::history::{Event, EventKind, LockSpec, Recorder, ReleaseOutcome, now};

/// The expected replies by id; `None` once the actor has ended.
#[derive(Debug)]
pub(super) struct PendingReplies(Mutex<Option<HashMap<u64, oneshot::Sender<ActorReply>>>>);

impl PendingReplies {
    fn with<T>(&self, act: impl FnOnce(&mut Option<HashMap<u64, oneshot::Sender<ActorReply>>>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn resolve(&self, reply: Envelope<ActorReply>) {
        let receiver = self.with(|pending| pending.as_mut().and_then(|map| map.remove(&reply.id)));
        if let Some(receiver) = receiver {
            // The test may have stopped waiting for it.
            let _ = receiver.send(reply.body);
        }
    }

    pub(super) fn close(&self) {
        self.with(Option::take);
    }
}

#[derive(Debug)]
enum Execution {
    Process(Box<Child>),
    Thread(ActorThread),
}

/// A client outside the test that acquires locks on command. Dropping it kills it.
#[derive(Debug)]
pub struct Actor {
    name: String,
    commands: UnboundedSender<Envelope<ActorCommand>>,
    pending: Arc<PendingReplies>,
    next: AtomicU64,
    execution: Execution,
    /// Where the test records pauses and kills.
    control_log: Arc<Recorder>,
}

impl Actor {
    /// Starts an actor process: this binary with the test `entry`, which must call
    /// [`run_if_actor`](super::run_if_actor).
    #[must_use]
    pub fn spawn_process(entry: &str, config: &ActorConfig, control_log: &Arc<Recorder>) -> Self {
        Actor::new(config.name.clone(), control_log, |commands, pending| {
            Execution::Process(Box::new(child::start(entry, config, commands, pending)))
        })
    }

    /// Starts an actor thread that connects with `connect` on a runtime of its own.
    #[must_use]
    pub fn spawn_thread<C>(config: ActorConfig, connect: C, control_log: &Arc<Recorder>) -> Self
    where
        C: Fn() -> Pin<Box<dyn Future<Output = Backend> + Send>> + Send + Sync + 'static,
    {
        Actor::new(config.name.clone(), control_log, |commands, pending| {
            Execution::Thread(ActorThread::start(config, Box::new(connect), commands, pending))
        })
    }

    fn new(
        name: String,
        control_log: &Arc<Recorder>,
        start: impl FnOnce(UnboundedReceiver<Envelope<ActorCommand>>, Arc<PendingReplies>) -> Execution,
    ) -> Self {
        let (commands, inbox) = unbounded_channel();
        let pending = Arc::new(PendingReplies(Mutex::new(Some(HashMap::new()))));
        let execution = start(inbox, Arc::clone(&pending));
        let control_log = Arc::clone(control_log);
        Actor { name, commands, pending, next: AtomicU64::new(1), execution, control_log }
    }

    /// The name, which is also the label of the actor's lock ids.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a command at once. The future returns the reply.
    ///
    /// # Panics
    /// The future panics if the actor ends before it replies.
    pub fn send(&self, command: ActorCommand) -> impl Future<Output = ActorReply> + Send + 'static {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        self.pending.with(|pending| pending.as_mut().map(|map| map.insert(id, sender)));
        let shown = format!("{command:?}");
        let _ = self.commands.send(Envelope { id, body: command });
        let name = self.name.clone();
        async move {
            reply.await.unwrap_or_else(|_| panic!("the actor {name} ended before it replied to {shown}"))
        }
    }

    /// Acquires a lock, without a time limit, and returns its token.
    ///
    /// # Panics
    /// The future panics if the lock is refused.
    pub fn acquire(&self, slot: u32, spec: &LockSpec) -> impl Future<Output = u64> + Send + 'static {
        self.granted_token(ActorCommand::Acquire { slot, spec: spec.clone(), timeout: None, watch: false })
    }

    /// [`acquire`](Self::acquire), and lets a thread of the actor record all the time whether the guard is held.
    ///
    /// # Panics
    /// The future panics if the lock is refused.
    pub fn acquire_watched(&self, slot: u32, spec: &LockSpec) -> impl Future<Output = u64> + Send + 'static {
        self.granted_token(ActorCommand::Acquire { slot, spec: spec.clone(), timeout: None, watch: true })
    }

    fn granted_token(&self, command: ActorCommand) -> impl Future<Output = u64> + Send + 'static {
        let (reply, name) = (self.send(command), self.name.clone());
        async move {
            match reply.await {
                ActorReply::Granted { token, .. } => token,
                other => panic!("the actor {name} should have been granted the lock, and got {other:?}"),
            }
        }
    }

    /// Whether the guard is lost.
    pub async fn is_lost(&self, slot: u32) -> bool {
        match self.send(ActorCommand::IsLost { slot }).await {
            ActorReply::IsLost(lost) => lost,
            other => panic!("unexpected reply to IsLost: {other:?}"),
        }
    }

    /// How long the lock is held without a renewal; `None` without a limit.
    pub async fn time_left(&self, slot: u32) -> Option<Duration> {
        match self.send(ActorCommand::TimeLeft { slot }).await {
            ActorReply::TimeLeft(left) => left,
            other => panic!("unexpected reply to TimeLeft: {other:?}"),
        }
    }

    /// Releases the lock.
    pub async fn release(&self, slot: u32) -> ReleaseOutcome {
        match self.send(ActorCommand::Release { slot }).await {
            ActorReply::Released(outcome) => outcome,
            other => panic!("unexpected reply to Release: {other:?}"),
        }
    }

    /// Acquires and releases many times.
    ///
    /// # Panics
    /// The future panics if any of them fails.
    pub fn contend(&self, contention: Contention) -> impl Future<Output = ()> + Send + 'static {
        let (reply, name) = (self.send(ActorCommand::Contend(contention)), self.name.clone());
        async move {
            let reply = reply.await;
            assert!(matches!(reply, ActorReply::Done), "the actor {name} failed to contend: {reply:?}");
        }
    }

    fn record(&self, kind: EventKind) {
        self.control_log.write(&Event { at: now(), actor: self.name.clone(), request: 0, kind });
    }

    /// Pauses the whole actor, whatever it is doing.
    pub async fn pause(&mut self) {
        match &self.execution {
            Execution::Process(process) => child::pause(process).await,
            Execution::Thread(thread) => {
                thread.set_paused(true);
                self.send(ActorCommand::Pause).await;
            }
        }
        self.record(EventKind::Paused);
    }

    /// Resumes it.
    pub fn resume(&mut self) {
        self.record(EventKind::Resumed);
        match &self.execution {
            Execution::Process(process) => child::resume(process),
            Execution::Thread(thread) => thread.set_paused(false),
        }
    }

    /// Kills it: `SIGKILL` for a process; a thread's runtime ends without another step.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub async fn kill(mut self) {
        self.record(EventKind::Killed);
        match &mut self.execution {
            Execution::Process(process) => process.kill().await.expect("cannot kill the actor"),
            Execution::Thread(thread) => thread.kill(),
        }
    }

    /// Releases everything and ends the actor.
    ///
    /// # Panics
    /// If it does not end cleanly.
    pub async fn shutdown(mut self) {
        self.send(ActorCommand::Shutdown).await;
        match &mut self.execution {
            Execution::Process(process) => {
                let status = process.wait().await.expect("the exit status of the actor");
                assert!(status.success(), "the actor {} ended with {status}", self.name);
            }
            Execution::Thread(thread) => thread.join(),
        }
    }
}
