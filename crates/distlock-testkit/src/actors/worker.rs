//! The actor's side: executes commands.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use distlock_core::Locks;
use distlock_core::store::Backend;
use tokio::sync::OnceCell;
use tokio::sync::mpsc::UnboundedReceiver;

use super::protocol::{ActorCommand, ActorConfig, ActorReply, Contention, Envelope};
use crate::history::{LockSpec, RecordedGuard, Recorder, ReleaseOutcome};

/// How often a watched guard is checked.
const WATCH_INTERVAL: Duration = Duration::from_millis(2);

/// Opens the actor's connection.
pub(super) type Connect =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Backend> + Send>> + Send + Sync + 'static>;

/// Sends a reply to the test.
pub(super) type SendReply = Arc<dyn Fn(Envelope<ActorReply>) + Send + Sync>;

/// Blocks the threads of a paused actor thread.
#[derive(Debug, Default)]
pub(super) struct PauseGate {
    paused: Mutex<bool>,
    resumed: Condvar,
}

impl PauseGate {
    pub(super) fn set(&self, paused: bool) {
        *lock(&self.paused) = paused;
        self.resumed.notify_all();
    }

    /// Blocks while paused.
    fn wait(&self) {
        let mut paused = lock(&self.paused);
        while *paused {
            paused = self.resumed.wait(paused).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A guard in a slot; `None` after its release.
type GuardSlot = Mutex<Option<RecordedGuard>>;

struct ActorWorker {
    config: ActorConfig,
    connect: Connect,
    locks: OnceCell<Locks>,
    recorder: Arc<Recorder>,
    slots: Mutex<HashMap<u32, Arc<GuardSlot>>>,
    gate: Arc<PauseGate>,
}

/// Executes commands until `Shutdown` or until the command channel closes.
pub(super) async fn serve(
    config: ActorConfig,
    connect: Connect,
    mut commands: UnboundedReceiver<Envelope<ActorCommand>>,
    send: SendReply,
    gate: Arc<PauseGate>,
) {
    let recorder = Recorder::create(&config.logs, &config.name);
    let worker = Arc::new(ActorWorker {
        config,
        connect,
        locks: OnceCell::new(),
        recorder,
        slots: Mutex::default(),
        gate: Arc::clone(&gate),
    });
    while let Some(Envelope { id, body }) = commands.recv().await {
        let reply = move |send: &SendReply, body| send(Envelope { id, body });
        match body {
            ActorCommand::Pause => {
                reply(&send, ActorReply::Done);
                // Blocks the runtime's only thread on purpose: the engine makes no progress while paused.
                gate.wait();
            }
            ActorCommand::IsLost { slot } => {
                // On a thread of its own, so that no task or timer of the runtime can notice the loss first.
                let (worker, send) = (Arc::clone(&worker), Arc::clone(&send));
                thread::spawn(move || {
                    let lost = worker.with_guard(slot, |guard| !guard.check_held());
                    reply(&send, ActorReply::IsLost(lost));
                });
            }
            ActorCommand::Shutdown => {
                lock(&worker.slots).clear();
                if let Some(locks) = worker.locks.get() {
                    locks.shutdown().await.expect("all locks are released");
                }
                reply(&send, ActorReply::Done);
                return;
            }
            command => {
                let (worker, send) = (Arc::clone(&worker), Arc::clone(&send));
                tokio::spawn(async move { reply(&send, worker.execute(command).await) });
            }
        }
    }
}

impl ActorWorker {
    async fn locks(&self) -> &Locks {
        let connect = || async {
            let builder = Locks::builder((self.connect)().await);
            let options = self.config.options.to_options();
            builder.label(&self.config.name).options(options).build().expect("an engine")
        };
        self.locks.get_or_init(connect).await
    }

    fn slot(&self, slot: u32) -> Arc<GuardSlot> {
        lock(&self.slots).get(&slot).cloned().unwrap_or_else(|| panic!("slot {slot} was never used"))
    }

    fn with_guard<T>(&self, slot: u32, query: impl FnOnce(&RecordedGuard) -> T) -> T {
        let slot = self.slot(slot);
        let guard = lock(&slot);
        query(guard.as_ref().expect("the lock was released before"))
    }

    async fn execute(self: Arc<Self>, command: ActorCommand) -> ActorReply {
        match command {
            ActorCommand::Connect => {
                self.locks().await;
                ActorReply::Done
            }
            ActorCommand::Acquire { slot, spec, timeout, watch } => {
                self.acquire(slot, &spec, timeout, watch).await
            }
            ActorCommand::TimeLeft { slot } => {
                ActorReply::TimeLeft(self.with_guard(slot, |guard| guard.time_left()))
            }
            ActorCommand::Release { slot } => {
                let guard = lock(&self.slot(slot)).take().expect("the lock was released before");
                ActorReply::Released(ReleaseOutcome::of(&guard.release().await))
            }
            ActorCommand::Contend(contention) => match self.contend(&contention).await {
                Ok(()) => ActorReply::Done,
                Err(error) => refused(&error),
            },
            ActorCommand::Pause | ActorCommand::IsLost { .. } | ActorCommand::Shutdown => {
                unreachable!("handled by serve")
            }
        }
    }

    async fn acquire(
        &self,
        slot: u32,
        spec: &LockSpec,
        timeout: Option<Duration>,
        watch: bool,
    ) -> ActorReply {
        let locks = self.locks().await;
        let acquired = match timeout {
            Some(limit) => self.recorder.acquire_within(locks, spec, limit).await,
            None => self.recorder.acquire(locks, spec).await,
        };
        let guard = match acquired {
            Ok(guard) => guard,
            Err(error) => return refused(&error),
        };
        let reply =
            ActorReply::Granted { token: guard.token().get(), lock_id: guard.lock_id().as_str().to_owned() };
        let guard = Arc::new(Mutex::new(Some(guard)));
        if watch {
            let (watched, gate) = (Arc::downgrade(&guard), Arc::clone(&self.gate));
            thread::spawn(move || watch_guard(&watched, &gate));
        }
        lock(&self.slots).insert(slot, guard);
        reply
    }

    async fn contend(&self, contention: &Contention) -> Result<(), distlock_core::Error> {
        let locks = self.locks().await;
        for spec in contention.specs.iter().cycle().take(contention.rounds as usize) {
            let guard = self.recorder.acquire(locks, spec).await?;
            guard.check_held();
            tokio::time::sleep(contention.hold).await;
            guard.check_held();
            guard.release().await?;
            tokio::time::sleep(contention.pause).await;
        }
        Ok(())
    }
}

fn refused(error: &distlock_core::Error) -> ActorReply {
    ActorReply::Refused { kind: format!("{:?}", error.kind()), text: error.to_string() }
}

/// Records whether the guard is held, until it is lost or released.
fn watch_guard(watched: &Weak<GuardSlot>, gate: &PauseGate) {
    loop {
        gate.wait();
        let Some(slot) = watched.upgrade() else { return };
        let held = lock(&slot).as_ref().is_some_and(RecordedGuard::check_held);
        drop(slot);
        if !held {
            return;
        }
        thread::sleep(WATCH_INTERVAL);
    }
}
