//! An actor that is a thread with a runtime of its own: what another process would be, as far as the store and the
//! engines can tell, for stores that live in one process.

use std::sync::Arc;
use std::thread::JoinHandle;

use distlock_core::CancellationToken;
use tokio::sync::mpsc::UnboundedReceiver;

use super::actor::Pending;
use super::order::{Letter, Order, Role};
use super::serve::{Connect, Freezer, serve};

#[derive(Debug)]
pub(super) struct ActorThread {
    killed: CancellationToken,
    freezer: Arc<Freezer>,
    thread: Option<JoinHandle<()>>,
}

impl ActorThread {
    pub(super) fn start(
        role: Role,
        connect: Connect,
        orders: UnboundedReceiver<Letter<Order>>,
        pending: Arc<Pending>,
    ) -> Self {
        let (killed, freezer) = (CancellationToken::new(), Arc::new(Freezer::default()));
        let (kill, cold) = (killed.clone(), Arc::clone(&freezer));
        let act = move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let over = Arc::clone(&pending);
            let reply = Arc::new(move |answer| pending.resolve(answer));
            let serving = serve(role, connect, orders, reply, cold);
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    // Nothing runs on this runtime after this: what is held stays held until it expires.
                    () = kill.cancelled() => {}
                    () = serving => {}
                }
            });
            drop(runtime);
            over.give_up();
        };
        let thread = std::thread::Builder::new().name("actor".into()).spawn(act).expect("a thread");
        ActorThread { killed, freezer, thread: Some(thread) }
    }

    pub(super) fn freeze(&self, frozen: bool) {
        self.freezer.set(frozen);
    }

    /// Ends the runtime without another step, and returns when that is done.
    pub(super) fn kill(&mut self) {
        self.killed.cancel();
        self.freezer.set(false);
        self.join();
    }

    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("an actor's thread panicked");
        }
    }
}

impl Drop for ActorThread {
    fn drop(&mut self) {
        self.killed.cancel();
        self.freezer.set(false);
    }
}
