//! An actor that is a thread with a runtime of its own, for stores that live in one process. To the store and the engines
//! it looks like another process.

use std::sync::Arc;
use std::thread::JoinHandle;

use distlock_core::CancellationToken;
use tokio::sync::mpsc::UnboundedReceiver;

use super::actor::PendingReplies;
use super::protocol::{ActorCommand, ActorConfig, Envelope};
use super::worker::{Connect, PauseGate, serve};

#[derive(Debug)]
pub(super) struct ActorThread {
    killed: CancellationToken,
    gate: Arc<PauseGate>,
    thread: Option<JoinHandle<()>>,
}

impl ActorThread {
    pub(super) fn start(
        config: ActorConfig,
        connect: Connect,
        commands: UnboundedReceiver<Envelope<ActorCommand>>,
        pending: Arc<PendingReplies>,
    ) -> Self {
        let (killed, gate) = (CancellationToken::new(), Arc::new(PauseGate::default()));
        let (kill, thread_gate) = (killed.clone(), Arc::clone(&gate));
        let body = move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let replies = Arc::clone(&pending);
            let reply = Arc::new(move |reply| replies.resolve(reply));
            let serving = serve(config, connect, commands, reply, thread_gate);
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    // Nothing runs on this runtime afterwards: held locks stay held until they expire.
                    () = kill.cancelled() => {}
                    () = serving => {}
                }
            });
            drop(runtime);
            pending.close();
        };
        let thread = std::thread::Builder::new().name("actor".into()).spawn(body).expect("a thread");
        ActorThread { killed, gate, thread: Some(thread) }
    }

    pub(super) fn set_paused(&self, paused: bool) {
        self.gate.set(paused);
    }

    /// Ends the runtime without another step, and returns when it has ended.
    pub(super) fn kill(&mut self) {
        self.killed.cancel();
        self.gate.set(false);
        self.join();
    }

    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("an actor thread panicked");
        }
    }
}

impl Drop for ActorThread {
    fn drop(&mut self) {
        self.killed.cancel();
        self.gate.set(false);
    }
}
