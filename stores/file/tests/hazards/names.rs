//! Hazard: a name leaves the folder, or two names share a lock.

use distlock_core::Kind;
use distlock_core::store::{Query, Store};

use crate::support::{acquire, claim, open, release, tree, try_once};

#[tokio::test]
async fn strange_names_stay_in_the_folder_share_no_lock_and_are_shown_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("locks");
    let long = ["x".repeat(4096), format!("{}y", "x".repeat(4095)), "\u{e9}".repeat(2048)];
    let mut names = vec![
        ".",
        "..",
        "/",
        "../..",
        "/etc/passwd",
        "a",
        "A",
        "a ",
        " a",
        "a.",
        "a.lock",
        "\0",
        "a\0",
        "\u{1}\n\t\u{7f}",
        "\u{e9}",
        "e\u{301}",
        "%",
        "%2e",
        "~",
        "-",
        "日本語",
        "gate",
        "hold",
        "new",
    ];
    names.extend(long.iter().map(String::as_str));
    for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::FairQueue] {
        let store = open(&base).await;
        let mut held = Vec::new();
        for name in &names {
            let claim = claim(kind, name, 1, 1);
            let hold = try_once(&store, &claim).await.unwrap();
            held.push((claim, hold.unwrap_or_else(|| panic!("{name:?} shares a lock with another name"))));
        }
        let shown = store.inspect(&Query::default().with_kind(kind)).await.unwrap();
        let mut shown: Vec<String> = shown.into_iter().map(|record| record.name.unwrap()).collect();
        let mut expected: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        shown.sort();
        expected.sort();
        assert_eq!(shown, expected);
        for (claim, hold) in &held {
            let record = &store.inspect(&Query::named(claim.resource.name())).await.unwrap()[0];
            assert_eq!(record.holders[0].lock_id, claim.lock_id);
            release(&store, claim, hold).await;
        }
    }
    let outside: Vec<String> =
        tree(dir.path()).into_iter().filter(|path| !path.starts_with("locks")).collect();
    assert_eq!(outside, Vec::<String>::new());
}

#[tokio::test]
async fn a_prefix_matches_names_and_not_file_names() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for name in ["jobs/a", "jobs/B", "jobs", "Jobs/c", "other"] {
        acquire(&store, &claim(Kind::Mutex, name, 1, 1)).await;
    }
    let found = store.inspect(&Query::prefixed("jobs/")).await.unwrap();
    let names: Vec<_> = found.iter().map(|record| record.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["jobs/B", "jobs/a"]);
}
