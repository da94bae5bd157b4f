//! The actor's side: carries out orders.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use distlock_core::store::Backend;
use distlock_core::{Locks, ReleaseError};
use tokio::sync::OnceCell;
use tokio::sync::mpsc::UnboundedReceiver;

use super::order::{Answer, Contest, Letter, Order, Role};
use crate::history::{LockSpec, Outcome, RecordedGuard, Recorder};

/// How often a watched guard is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Makes the actor's connection.
pub(super) type Connect =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Backend> + Send>> + Send + Sync + 'static>;

/// Where answers go.
pub(super) type Reply = Arc<dyn Fn(Letter<Answer>) + Send + Sync>;

/// Stops the threads of an actor that is itself a thread.
#[derive(Debug, Default)]
pub(super) struct Freezer {
    frozen: Mutex<bool>,
    thawed: Condvar,
}

impl Freezer {
    pub(super) fn set(&self, frozen: bool) {
        *lock(&self.frozen) = frozen;
        self.thawed.notify_all();
    }

    /// Returns at once, or when it is thawed.
    fn pass(&self) {
        let mut frozen = lock(&self.frozen);
        while *frozen {
            frozen = self.thawed.wait(frozen).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Slot = Mutex<Option<RecordedGuard>>;

struct Player {
    role: Role,
    connect: Connect,
    locks: OnceCell<Locks>,
    recorder: Arc<Recorder>,
    slots: Mutex<HashMap<u32, Arc<Slot>>>,
    freezer: Arc<Freezer>,
}

/// Carries out orders until `Leave`, or until nobody is left who could give one.
pub(super) async fn serve(
    role: Role,
    connect: Connect,
    mut orders: UnboundedReceiver<Letter<Order>>,
    reply: Reply,
    freezer: Arc<Freezer>,
) {
    let recorder = Recorder::create(&role.logs, &role.name);
    let player = Arc::new(Player {
        role,
        connect,
        locks: OnceCell::new(),
        recorder,
        slots: Mutex::default(),
        freezer: Arc::clone(&freezer),
    });
    while let Some(Letter { number, text }) = orders.recv().await {
        let answer = move |reply: &Reply, text| reply(Letter { number, text });
        match text {
            Order::Freeze => {
                answer(&reply, Answer::Done);
                // Blocks the only thread of the runtime on purpose: nothing of the engine moves meanwhile.
                freezer.pass();
            }
            Order::IsLost { slot } => {
                // Neither the runtime's tasks nor its timers get a chance to notice first.
                let (player, reply) = (Arc::clone(&player), Arc::clone(&reply));
                thread::spawn(move || {
                    let lost = player.with(slot, |taken| !taken.look());
                    answer(&reply, Answer::IsLost(lost));
                });
            }
            Order::Leave => {
                lock(&player.slots).clear();
                if let Some(locks) = player.locks.get() {
                    locks.shutdown().await.expect("everything is given back");
                }
                answer(&reply, Answer::Done);
                return;
            }
            order => {
                let (player, reply) = (Arc::clone(&player), Arc::clone(&reply));
                tokio::spawn(async move { answer(&reply, player.carry_out(order).await) });
            }
        }
    }
}

impl Player {
    async fn locks(&self) -> &Locks {
        let connect = || async {
            let builder = Locks::builder((self.connect)().await);
            let options = self.role.terms.options();
            builder.label(&self.role.name).options(options).build().expect("an engine")
        };
        self.locks.get_or_init(connect).await
    }

    fn slot(&self, slot: u32) -> Arc<Slot> {
        lock(&self.slots).get(&slot).cloned().unwrap_or_else(|| panic!("nothing was taken as {slot}"))
    }

    fn with<T>(&self, slot: u32, ask: impl FnOnce(&RecordedGuard) -> T) -> T {
        let slot = self.slot(slot);
        let taken = lock(&slot);
        ask(taken.as_ref().expect("it was given back"))
    }

    async fn carry_out(self: Arc<Self>, order: Order) -> Answer {
        match order {
            Order::Connect => {
                self.locks().await;
                Answer::Done
            }
            Order::Take { slot, spec, within, watch } => self.take(slot, &spec, within, watch).await,
            Order::TimeLeft { slot } => Answer::TimeLeft(self.with(slot, |taken| taken.time_left())),
            Order::GiveBack { slot } => {
                let taken = lock(&self.slot(slot)).take().expect("it was given back");
                Answer::GivenBack(match taken.release().await {
                    Ok(()) => Outcome::Clean,
                    Err(ReleaseError::Lost { .. }) => Outcome::Lost,
                    Err(_) => Outcome::Unknown,
                })
            }
            Order::Contend(contest) => match self.contend(&contest).await {
                Ok(()) => Answer::Done,
                Err(error) => refused(&error),
            },
            Order::Freeze | Order::IsLost { .. } | Order::Leave => unreachable!("carried out above"),
        }
    }

    async fn take(&self, slot: u32, spec: &LockSpec, within: Option<Duration>, watch: bool) -> Answer {
        let locks = self.locks().await;
        let taken = match within {
            Some(limit) => self.recorder.take_within(locks, spec, limit).await,
            None => self.recorder.take(locks, spec).await,
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => return refused(&error),
        };
        let answer =
            Answer::Granted { token: taken.token().get(), lock_id: taken.lock_id().as_str().to_owned() };
        let kept = Arc::new(Mutex::new(Some(taken)));
        if watch {
            let (watched, freezer) = (Arc::downgrade(&kept), Arc::clone(&self.freezer));
            thread::spawn(move || look_on(&watched, &freezer));
        }
        lock(&self.slots).insert(slot, kept);
        answer
    }

    async fn contend(&self, contest: &Contest) -> Result<(), distlock_core::Error> {
        let locks = self.locks().await;
        for spec in contest.specs.iter().cycle().take(contest.rounds as usize) {
            let taken = self.recorder.take(locks, spec).await?;
            taken.look();
            tokio::time::sleep(contest.hold).await;
            taken.look();
            taken.release().await?;
            tokio::time::sleep(contest.rest).await;
        }
        Ok(())
    }
}

fn refused(error: &distlock_core::Error) -> Answer {
    Answer::Refused { kind: format!("{:?}", error.kind()), text: error.to_string() }
}

/// Writes down what a guard says until it is lost or gone.
fn look_on(watched: &Weak<Slot>, freezer: &Freezer) {
    loop {
        freezer.pass();
        let Some(slot) = watched.upgrade() else { return };
        let held = lock(&slot).as_ref().is_some_and(RecordedGuard::look);
        drop(slot);
        if !held {
            return;
        }
        thread::sleep(LOOK);
    }
}
