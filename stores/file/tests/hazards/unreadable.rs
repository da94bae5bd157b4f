//! Hazard: an unreadable record (a link, garbage, a file without the right to read it) hides other records.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use distlock_core::Kind;
use distlock_core::store::{Query, Store};

use crate::agent::Agent;
use crate::links::Trap;
use crate::refusals::{unprivileged, world_readable_folder};
use crate::support::{acquire, claim, mutex, open, tree, until};

#[tokio::test]
async fn a_record_that_cannot_be_read_does_not_hide_the_others() {
    let trap = Trap::new();
    let store = open(trap.locks()).await;
    let held = [mutex("a"), claim(Kind::Semaphore, "b", 1, 2), mutex("z")];
    for claim in &held {
        acquire(&store, claim).await;
    }
    let waiter = {
        let (store, wanted) = (store.clone(), mutex("a"));
        tokio::spawn(async move { acquire(&store, &wanted).await })
    };
    until("it waits", async || tree(&trap.locks()).iter().any(|path| path.starts_with("waiting/"))).await;
    let waiting = trap.locks().join("waiting");
    let waiter_folder = fs::read_dir(&waiting).unwrap().next().unwrap().unwrap().path();
    let garbage = |at: &str| {
        let at = trap.locks().join(at);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, [0xff; 5000]).unwrap();
    };
    trap.link("mutex/link.lock");
    trap.link("semaphore/link");
    trap.link("semaphore/b/hold/00000000000000000009-1-2-link");
    trap.link("semaphore/b/queue/00000000000000000009-1-2-link");
    trap.link("turn");
    trap.link("rwlock");
    symlink(trap.elsewhere(), waiter_folder.join("00000000000000000000-link")).unwrap();
    garbage("mutex/garbage.lock");
    garbage("semaphore/garbage");
    garbage("semaphore/c/hold/00000000000000000001-1-1-garbage");
    fs::create_dir(trap.locks().join("mutex/folder.lock")).unwrap();

    let listed = store.inspect(&Query::default()).await.unwrap();
    let names: Vec<_> = listed.iter().map(|record| record.name.clone().unwrap()).collect();
    assert_eq!(names, ["a", "b", "z"]);
    assert_eq!((listed[0].waiters.len(), listed[1].holders.len()), (1, 1));
    // An unreadable lock that is asked for by name must not look free.
    for name in ["link", "garbage"] {
        let answer = store.inspect(&Query::named(name)).await;
        assert!(name == "garbage" || answer.is_err(), "{name}: {answer:?}");
    }
    assert!(trap.is_untouched());
    waiter.abort();
}

#[tokio::test]
async fn an_unreadable_folder_is_not_reported_as_empty() {
    let (dir, program) = world_readable_folder();
    let locks = dir.path().join("locks");
    let store = open(&locks).await;
    acquire(&store, &mutex("x")).await;
    fs::set_permissions(&locks, fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        let mut agent = Agent::start_as(&locks, unprivileged(&program));
        let said = agent.ask("list 1", "failed 1");
        assert_eq!(said[0], "Denied", "{said:?}");
    }
    assert_eq!(store.inspect(&Query::default()).await.unwrap().len(), 1);
}
