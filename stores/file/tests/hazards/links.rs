//! Hazard: another user puts a link or a folder of their own into the folder of the locks.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use distlock_core::store::{Level, Store};
use distlock_core::{ErrorKind, Kind};
use distlock_file::{Access, FileConfig, FileStore};

use crate::agent::{Agent, spell};
use crate::refusals::{unprivileged, world_readable_folder};
use crate::support::{acquire, claim, mutex, open, release, tree, try_once};

/// A folder for locks, and another one that must stay empty.
pub(crate) struct Trap {
    dir: tempfile::TempDir,
}

impl Trap {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("elsewhere")).unwrap();
        fs::create_dir(dir.path().join("locks")).unwrap();
        Trap { dir }
    }

    pub(crate) fn locks(&self) -> PathBuf {
        self.dir.path().join("locks")
    }

    pub(crate) fn elsewhere(&self) -> PathBuf {
        self.dir.path().join("elsewhere")
    }

    pub(crate) fn link(&self, at: &str) {
        let at = self.locks().join(at);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        symlink(self.elsewhere(), at).unwrap();
    }

    pub(crate) fn is_untouched(&self) -> bool {
        tree(&self.elsewhere()).is_empty()
    }
}

#[tokio::test]
async fn a_link_in_place_of_a_folder_is_not_followed() {
    for (kind, links) in [
        (Kind::Mutex, &["mutex"][..]),
        (Kind::RwLock, &["rwlock", "rwlock/x", "rwlock/x/hold"]),
        (Kind::Semaphore, &["semaphore", "semaphore/x", "semaphore/x/hold", "semaphore/x/queue"]),
        (Kind::FairQueue, &["turn", "turn/x"]),
    ] {
        for link in links {
            let trap = Trap::new();
            trap.link(link);
            let store = open(trap.locks()).await;
            let error = try_once(&store, &claim(kind, "x", 1, 1)).await.expect_err(link);
            assert_eq!(error.kind(), ErrorKind::Denied, "{link}: {error}");
            assert!(error.to_string().contains("symbolic link"), "{link}: {error}");
            assert!(trap.is_untouched(), "{link}: {:?}", tree(&trap.elsewhere()));
        }
    }
}

#[tokio::test]
async fn a_link_in_place_of_the_waiter_files_is_not_followed() {
    let trap = Trap::new();
    trap.link("waiting");
    let store = open(trap.locks()).await;
    let (held, wanted) = (mutex("x"), mutex("x"));
    let hold = acquire(&store, &held).await;
    let waiting = {
        let (store, wanted) = (store.clone(), wanted.clone());
        tokio::spawn(async move { acquire(&store, &wanted).await })
    };
    // It waits without a waiter file.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(trap.is_untouched() && !waiting.is_finished());
    release(&store, &held, &hold).await;
    waiting.await.unwrap();
    assert!(trap.is_untouched() && trap.locks().join("waiting").is_symlink());
}

/// The owner of the folder may put a link there at any moment, even between two steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_becomes_a_link_at_any_moment_is_not_followed() {
    for (kind, link) in [
        (Kind::Mutex, "mutex"),
        (Kind::Semaphore, "semaphore"),
        (Kind::Semaphore, "semaphore/x"),
        (Kind::Semaphore, "semaphore/x/hold"),
        (Kind::Mutex, "waiting"),
    ] {
        let trap = Trap::new();
        let store = open(trap.locks()).await;
        let (at, elsewhere, aside) =
            (trap.locks().join(link), trap.elsewhere(), trap.dir.path().join("aside"));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // A thread, in place of another user.
                let _ = fs::create_dir_all(at.parent().unwrap());
                while !over.load(Ordering::Relaxed) {
                    let _ = fs::rename(&at, &aside);
                    let _ = symlink(&elsewhere, &at);
                    let _ = fs::remove_file(&at);
                    if fs::rename(&aside, &at).is_err() {
                        let _ = fs::remove_dir_all(&aside);
                    }
                }
            });
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(async {
                    for _ in 0..600 {
                        let (one, two) = (claim(kind, "x", 1, 1), claim(kind, "x", 1, 1));
                        // The outcome does not matter: refused, granted, or lost.
                        let Ok(Some(hold)) = try_once(&store, &one).await else { continue };
                        let withdraw = tokio_util::sync::CancellationToken::new();
                        let waits = distlock_core::store::SessionStore::acquire(&store, &two, &withdraw);
                        let _ = tokio::time::timeout(std::time::Duration::from_millis(2), waits).await;
                        release(&store, &one, &hold).await;
                        let _ = store.inspect(&distlock_core::store::Query::default()).await;
                    }
                });
            });
            over.store(true, Ordering::Relaxed);
        });
        assert!(trap.is_untouched(), "{link}: {:?}", tree(&trap.elsewhere()));
    }
}

#[tokio::test]
async fn the_benchmark_and_the_doctor_follow_no_link_either() {
    let trap = Trap::new();
    trap.link("mutex");
    let precious = trap.elsewhere().join("bench%2f1.lock");
    fs::write(&precious, "precious").unwrap();
    let store = open(trap.locks()).await;
    let driver = store.baseline();
    driver.cycle("bench/1").await.unwrap();
    let _ = driver.clean_up("bench/").await;
    let found = store.doctor().await.unwrap();
    let warned = found.iter().any(|finding| {
        finding.level == Level::Warning
            && finding.what.contains("symbolic link")
            && finding.what.contains("mutex")
    });
    assert!(warned, "{found:?}");
    assert_eq!(tree(&trap.elsewhere()), ["bench%2f1.lock"]);
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    assert_eq!(fs::read_dir(trap.locks()).unwrap().count(), 1, "nothing but the link is left");
}

/// Neither the user of the tests nor user 65534.
const STRANGER: u32 = 65533;

fn own(path: &Path, user: u32, mode: u32) {
    chown(path, Some(user), Some(user)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_folder_of_an_untrusted_user_is_refused_by_root_and_by_others() {
    if !rustix::process::geteuid().is_root() {
        // Only root can create files of other users.
        return;
    }
    for kind in [Kind::Mutex, Kind::Semaphore] {
        for below in ["", "x"] {
            let (dir, program) = world_readable_folder();
            // Like /tmp: all users may create folders there, and none may remove those of others.
            let locks = dir.path().join("locks");
            fs::create_dir(&locks).unwrap();
            own(&locks, 0, 0o1777);
            let folder = locks.join(kind.as_str());
            fs::create_dir(&folder).unwrap();
            own(&folder, if below.is_empty() { STRANGER } else { 0 }, 0o1777);
            if below == "x" {
                let inner = folder.join(if kind == Kind::Mutex { "x.lock" } else { "x" });
                if kind == Kind::Mutex {
                    fs::write(&inner, "").unwrap();
                } else {
                    fs::create_dir(&inner).unwrap();
                }
                own(&inner, STRANGER, 0o777);
            }
            let before = tree(&locks);
            let root = std::process::Command::new(&program);
            for user in [root, unprivileged(&program)] {
                let mut agent = Agent::start_as(&locks, user);
                for command in ["try", "acquire"] {
                    let said = agent.ask(&format!("{command} 1 {}", spell(kind, "x", 1, 1)), "failed 1");
                    let text = said.join(" ");
                    assert_eq!(said[0], "Denied", "{kind} {below}: {text}");
                    assert!(text.contains("belongs to user 65533"), "{kind} {below}: {text}");
                }
            }
            assert_eq!(tree(&locks), before, "nothing was created there");
        }
    }
}

#[test]
fn the_users_own_folder_inside_a_shared_one_is_not_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (dir, program) = world_readable_folder();
    let locks = dir.path().join("locks");
    fs::create_dir(&locks).unwrap();
    // Root uses a folder of user 65534, and that user one of root: a user who names a folder trusts its owner.
    for (owner, first) in [(65534, 0), (65534, 65534), (0, 0)] {
        own(&locks, owner, 0o777);
        let users = [std::process::Command::new(&program), unprivileged(&program)];
        let users: Vec<_> = if first == 0 { users.into() } else { users.into_iter().rev().collect() };
        for user in users {
            let mut agent = Agent::start_as(&locks, user);
            agent.acquire(1, &spell(Kind::Semaphore, &format!("of {owner} {}", agent.pid()), 1, 1));
            fs::set_permissions(locks.join("semaphore"), fs::Permissions::from_mode(0o777)).unwrap();
        }
        fs::remove_dir_all(locks.join("semaphore")).unwrap();
    }
    // The members of a group share the folder on purpose.
    own(&locks, 0, 0o2770);
    chown(&locks, Some(0), Some(65534)).unwrap();
    fs::create_dir(locks.join("mutex")).unwrap();
    own(&locks.join("mutex"), STRANGER, 0o2770);
    chown(locks.join("mutex"), Some(STRANGER), Some(65534)).unwrap();
    let mut agent = Agent::start_shared(&locks, unprivileged(&program));
    agent.acquire(1, &spell(Kind::Mutex, "x", 1, 1));
}

#[tokio::test]
async fn the_doctor_warns_of_a_shared_folder_without_setgid_or_sticky_bit() {
    let dir = tempfile::tempdir().unwrap();
    let warnings = async |access: Access, mode: u32| {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let store = FileStore::connect(FileConfig::new(dir.path()).access(access)).await.unwrap();
        let found = store.doctor().await.unwrap().into_iter();
        let found = found.filter(|finding| finding.level == Level::Warning);
        found.map(|finding| format!("{} -> {}", finding.what, finding.advice.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(warnings(Access::Group, 0o2770).await, Vec::<String>::new());
    let found = warnings(Access::Group, 0o770).await;
    assert!(found.len() == 1 && found[0].contains("setgid") && found[0].contains("chmod g+s"), "{found:?}");
    let found = warnings(Access::Group, 0o2777).await;
    assert!(found.len() == 1 && found[0].contains("every user"), "{found:?}");
    assert!(found[0].contains("remove") && found[0].contains("sticky"), "{found:?}");
    let found = warnings(Access::Private, 0o1777).await;
    assert!(found[0].contains("every user") && !found[0].contains("sticky"), "{found:?}");
    // A folder that another member created before the rights were correct.
    let folder = dir.path().join("mutex");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let found = warnings(Access::Group, 0o2770).await;
    assert!(found.len() == 1 && found[0].contains("/mutex") && found[0].contains("chmod"), "{found:?}");
}
