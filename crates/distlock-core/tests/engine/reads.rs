//! What users may ask about a lock: its holder, its free permits; and sets of locks.

use distlock_core::{ErrorKind, Kind, Request};

use crate::common::{MS, SECOND, World};

#[tokio::test(start_paused = true)]
async fn the_holder_and_the_free_permits_are_told() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let (mutex, gpu, page) = (theirs.mutex("a"), theirs.semaphore("gpu", 4), theirs.rw_lock("page"));
    assert!(mutex.holder().await.unwrap().is_none());
    assert_eq!((gpu.available().await.unwrap(), gpu.holders().await.unwrap().len()), (4, 0));
    let guard = ours.mutex("a").acquire().await.unwrap();
    let permits = ours.semaphore("gpu", 4).acquire_many(3).await.unwrap();
    let reader = ours.rw_lock("page").read().await.unwrap();
    let holder = mutex.holder().await.unwrap().unwrap();
    assert_eq!((&holder.lock_id, holder.token), (guard.lock_id(), Some(guard.token())));
    assert_eq!((gpu.available().await.unwrap(), gpu.holders().await.unwrap()[0].weight), (1, 3));
    assert_eq!(page.holders().await.unwrap().len(), 1);
    drop((guard, permits, reader));
    world.until_clean("gpu").await;
    assert_eq!(gpu.available().await.unwrap(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_set_that_is_contended_is_none_and_leaves_nothing() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let held = theirs.mutex("c").acquire().await.unwrap();
    for limit in [None, Some(MS), Some(SECOND)] {
        let asking = ours.try_acquire_all(["a", "b", "c", "d"]);
        let asking = match limit {
            Some(limit) => asking.timeout(limit),
            None => asking,
        };
        assert!(asking.await.unwrap().is_none());
        // In the same process, at once.
        assert!(ours.try_acquire_all(["a", "b", "d"]).await.unwrap().is_some());
    }
    world.until_clean("a").await;
    held.release().await.unwrap();
    let all = ours.try_acquire_all(["a", "b", "c", "d"]).await.unwrap().unwrap();
    assert_eq!(all.guards().len(), 4);
    let twice = ours.try_acquire_all(["a", "a"]).await.unwrap_err();
    assert_eq!((twice.kind(), twice.store()), (ErrorKind::InvalidInput, Some("memory")));
}

#[tokio::test(start_paused = true)]
async fn the_tokens_of_a_set_are_found_by_name() {
    let world = World::new();
    let locks = world.locks();
    let set =
        locks.acquire_all([Request::mutex("a"), Request::write("b"), Request::mutex("b")]).await.unwrap();
    assert_eq!(set.token("a").unwrap(), set.guards()[0].token());
    let both = set.token("b").unwrap_err();
    assert!(both.kind() == ErrorKind::InvalidInput && both.to_string().contains("token_of"), "{both}");
    assert_eq!(set.token_of(Kind::Mutex, "b").unwrap(), set.guard_of(Kind::Mutex, "b").unwrap().token());
    assert_eq!(set.guard_of(Kind::RwLock, "b").unwrap().resource().kind(), Kind::RwLock);
    assert!(set.token_of(Kind::Semaphore, "b").is_err());
    let none = set.token("c").unwrap_err().to_string();
    assert!(none.contains("\"c\"") && none.contains("mutex \"a\""), "{none}");
}

#[tokio::test(start_paused = true)]
async fn the_token_of_a_set_is_cancelled_when_one_is_lost_and_the_error_names_it() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let set = ours.acquire_all(["a", "b", "c"]).await.unwrap();
    let token = set.cancellation_token();
    assert!(set.loss().is_none() && !token.is_cancelled());
    theirs.break_lock(Kind::Mutex, "b").await.unwrap();
    let error = set.run(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("mutex \"b\"") && error.store() == Some("memory"), "{error}");
    tokio::time::timeout(SECOND, token.cancelled()).await.unwrap();
    assert!(set.cancellation_token().is_cancelled(), "also one that is asked for afterwards");
    assert_eq!(set.loss().unwrap().resource().unwrap().name(), "b");
    assert_eq!(set.renew().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn the_token_of_a_set_that_was_released_or_taken_apart_is_not_cancelled() {
    let world = World::new();
    let locks = world.locks();
    let released = locks.acquire_all(["a", "b"]).await.unwrap();
    let token = released.cancellation_token();
    released.renew().await.unwrap();
    released.release().await.unwrap();
    let apart = locks.acquire_all(["a", "b"]).await.unwrap();
    let other = apart.cancellation_token();
    let guards = apart.into_guards();
    locks.break_lock(Kind::Mutex, "a").await.unwrap();
    guards[0].lost().await;
    tokio::time::sleep(SECOND).await;
    assert!(!token.is_cancelled() && !other.is_cancelled());
}

#[test]
fn the_token_of_a_set_is_cancelled_when_the_engines_runtime_ends() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (set, token) = runtime.block_on(async {
        let set = World::new().locks().acquire_all(["a", "b"]).await.unwrap();
        let token = set.cancellation_token();
        tokio::task::yield_now().await;
        (set, token)
    });
    assert!(!token.is_cancelled());
    drop(runtime);
    assert!(token.is_cancelled() && set.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_resizable_request_of_a_set_resizes_a_semaphore_in_use() {
    let world = World::new();
    let (ours, theirs) = (world.locks(), world.locks());
    let held = theirs.semaphore("s", 2).acquire().await.unwrap();
    let plain = ours.acquire_all([Request::permits("s", 3, 1)]).await.unwrap_err();
    assert_eq!(plain.kind(), ErrorKind::Mismatch);
    let set = ours.acquire_all([Request::permits("s", 3, 2).resizable()]).await.unwrap();
    assert!(ours.semaphore("s", 3).resizable().try_acquire().await.unwrap().is_none());
    // A request that does not fit beside the holders waits, whatever number it names.
    let waiting = tokio::spawn(ours.semaphore("s", 4).resizable().acquire_many(4).into_future());
    tokio::time::sleep(SECOND).await;
    drop((held, set));
    drop(tokio::time::timeout(10 * SECOND, waiting).await.unwrap().unwrap().unwrap());
}
