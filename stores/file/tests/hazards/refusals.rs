//! Hazard: an unusable folder is reported as busy, or a lock is granted in it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use distlock_core::{ErrorKind, Kind};

use crate::agent::{Agent, spell};
use crate::support::{acquire, claim, mutex, open, release, tree, try_once};

/// The program as an unprivileged user: 65534 if the tests run as root, the same user otherwise.
pub(crate) fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new(program);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    command
}

/// A folder that every user may read, with this test program in it, which every user can run.
pub(crate) fn world_readable_folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("program");
    // By another process: a child that another test starts meanwhile would keep the copy open for writing, so that it cannot be run.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    (dir, program)
}

#[test]
fn the_doctor_warns_of_a_folder_inside_that_cannot_be_written() {
    let (dir, program) = world_readable_folder();
    let locks = dir.path().join("locks");
    std::fs::create_dir_all(locks.join("rwlock")).unwrap();
    std::fs::set_permissions(&locks, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(locks.join("rwlock"), std::fs::Permissions::from_mode(0o555)).unwrap();
    let mut agent = Agent::start_as(&locks, unprivileged(&program));
    let said = agent.ask("doctor 1", "examined 1").join(" ");
    std::fs::set_permissions(locks.join("rwlock"), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(said.contains("may not write into") && said.contains("locks/rwlock"), "{said}");
    assert!(!said.contains("locks/mutex"), "{said}");
}

#[test]
fn a_folder_without_the_right_to_write_is_not_reported_as_busy() {
    let (dir, program) = world_readable_folder();
    let locks = dir.path().join("locks");
    std::fs::create_dir(&locks).unwrap();
    std::fs::set_permissions(&locks, std::fs::Permissions::from_mode(0o555)).unwrap();
    for command in ["try", "acquire"] {
        for kind in [Kind::Mutex, Kind::RwLock] {
            let mut agent = Agent::start_as(&locks, unprivileged(&program));
            let said = agent.ask(&format!("{command} 1 {}", spell(kind, "x", 1, 1)), "failed 1");
            assert_eq!(said[0], "Denied", "{said:?}");
            let text = said.join(" ");
            assert!(text.contains("locks") && text.contains("choose another folder"), "{text}");
        }
    }
    std::fs::set_permissions(&locks, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(tree(&locks).is_empty());
}

/// A process with a tiny file system at `dir`, mounted for this process only.
fn on_a_tiny_disk(dir: &Path) -> Agent {
    let unshare: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["unshare", "--mount", "--propagation", "private"],
        false => &["unshare", "--mount", "--map-root-user"],
    };
    let path = dir.display();
    let script = format!("mount -t tmpfs -o size=96k,mode=700 tiny '{path}' && exec \"$0\" \"$@\"");
    Agent::start_in(dir, unshare, &script)
}

#[test]
fn a_full_disk_refuses_a_new_lock_and_keeps_counting_for_an_old_one() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let mut agent = on_a_tiny_disk(dir.path());
        let (old, new) = (spell(kind, "old", 1, 1), spell(kind, "new", 1, 1));
        let (token, _) = agent.acquire(1, &old);
        agent.release(1);
        let filler = dir.path().join("filler");
        agent.ask(&format!("fill {}", filler.display()), "filled");
        let said = agent.ask(&format!("try 2 {new}"), "failed 2");
        assert_eq!(said[0], "Exhausted", "{said:?}");
        assert!(said.join(" ").contains("free space"), "{said:?}");
        if kind == Kind::Mutex {
            // All its blocks were written at the first grant.
            assert!(agent.acquire(3, &old).0 > token);
            agent.release(3);
        }
        agent.ask(&format!("remove {}", filler.display()), "removed");
        agent.acquire(4, &new);
        assert!(agent.acquire(5, &old).0 > token);
    }
}

#[test]
fn too_many_open_files_are_not_reported_as_busy_and_corrupt_nothing() {
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = Agent::start_in(dir.path(), &["env"], "ulimit -n 24 && exec \"$0\" \"$@\"");
        let mut number = 0;
        let said = loop {
            number += 1;
            agent.tell(&format!("try {number} {}", spell(kind, &format!("lock {number}"), 1, 1)));
            let report = agent.wait_for_any();
            if report.starts_with("failed") {
                break report;
            }
            assert!(report.starts_with("granted") && number < 24, "{report}");
        };
        assert!(said.contains("Exhausted") && said.contains("ulimit"), "{said}");
        agent.release(1);
        agent.release(2);
        agent.release(3);
        agent.acquire(100, &spell(kind, "after", 1, 1));
    }
}

#[tokio::test]
async fn a_file_in_place_of_the_folder_is_refused_and_left_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    for path in [file.clone(), file.join("below")] {
        let store = open(path).await;
        for kind in [Kind::Mutex, Kind::RwLock] {
            let error = try_once(&store, &claim(kind, "x", 1, 1)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.advice().is_some(), "{error}");
        }
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

#[tokio::test]
async fn a_link_in_place_of_a_lock_file_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    std::fs::create_dir(dir.path().join("mutex")).unwrap();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join("mutex/x.lock")).unwrap();
    let error = try_once(&store, &mutex("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}

#[tokio::test]
async fn a_removed_folder_is_created_again() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("locks");
    let store = open(&base).await;
    for kind in [Kind::Mutex, Kind::Semaphore] {
        let mut last = None;
        for _ in 0..3 {
            let claim = claim(kind, "x", 1, 1);
            let hold = acquire(&store, &claim).await;
            assert!(Some(hold.token) > last);
            last = Some(hold.token);
            release(&store, &claim, &hold).await;
            std::fs::remove_dir_all(&base).unwrap();
        }
    }
}

#[tokio::test]
async fn a_claim_above_the_capacity_does_not_wait_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for (weight, capacity) in [(0, 3), (4, 3)] {
        let error = try_once(&store, &claim(Kind::Semaphore, "x", weight, capacity)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
