//! Moves the wall clock of a server with libfaketime. The monotonic clock stays true.
//!
//! Works with mongod, PostgreSQL and Valkey. Debian's redis-server 7 hangs under it: use Valkey instead.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::data::DataFolder;
use super::program::FAKETIME_LIB;
use super::wait::wait_for;

const FILE: &str = "clock";

/// Prepares a movable clock, without an offset yet, for the server with its data in `folder`. Returns the environment to start
/// that server with.
pub(super) fn prepare(folder: &DataFolder) -> Vec<(String, String)> {
    let file = folder.write(FILE, "+0\n");
    let pairs = [
        ("LD_PRELOAD", FAKETIME_LIB.find().display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        // Otherwise the file is read only every ten seconds.
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Moves the clock by `offset` from the true time, at once.
pub(super) fn set(folder: &DataFolder, offset: &str) {
    assert!(
        offset.starts_with(['+', '-']) && offset.len() > 1,
        "a clock offset begins with + or -, such as +1d, -3600 (seconds), +0; this one is {offset:?}"
    );
    folder.write(FILE, &format!("{offset}\n"));
}

/// Waits until the server's clock has this offset from the true time. `read` returns the server's time in seconds since 1970,
/// or `None` if it did not answer.
///
/// # Panics
/// If it does not within half a minute.
pub(super) fn wait_until_moved(seconds: i64, mut read: impl FnMut() -> Option<i64>) {
    let true_time = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        i64::try_from(since.as_secs()).expect("a time that fits")
    };
    wait_for(&format!("the server's clock is moved by {seconds:+} s"), Duration::from_secs(30), || {
        let before = true_time();
        let server_time = read()? - seconds;
        (before - 1..=true_time() + 1).contains(&server_time).then_some(())
    });
}

/// Removes the shared memory that libfaketime leaves when a process is killed.
pub(super) fn clean_up(pid: u32) {
    for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
    }
}
