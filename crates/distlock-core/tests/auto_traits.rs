//! The public types can be sent and shared, and their futures can be spawned.
#![allow(clippy::unwrap_used)]

use distlock_core::{
    Acquire, AcquireAll, Error, FencingToken, Guard, GuardSet, Locks, Mutex, Options, ReleaseError, RwLock,
    Semaphore, TokenGate, TryAcquire,
};

fn shared<T: Send + Sync + 'static>() {}
fn spawned<F: Future + Send + 'static>(_: F) {}

#[test]
fn the_public_types_are_send_sync_and_static() {
    shared::<Locks>();
    shared::<Mutex>();
    shared::<RwLock>();
    shared::<Semaphore>();
    shared::<Guard>();
    shared::<GuardSet>();
    shared::<Acquire>();
    shared::<TryAcquire>();
    shared::<AcquireAll>();
    shared::<Error>();
    shared::<ReleaseError>();
    shared::<Options>();
    shared::<TokenGate>();
    shared::<FencingToken>();
}

#[test]
fn the_futures_can_be_spawned() {
    #[allow(dead_code)]
    fn all(locks: Locks, guard: Guard) {
        spawned(locks.mutex("a").acquire().into_future());
        spawned(locks.acquire_all(["a"]).into_future());
        spawned(async move {
            guard.lost().await;
            guard.release().await
        });
    }
}
