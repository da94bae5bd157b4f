//! Servers whose wall clock a test can move, through libfaketime. The monotonic clock stays true.
//!
//! Works with mongod, PostgreSQL and Valkey. Debian's redis-server 7 hangs under it: use Valkey instead.

use std::path::Path;

use super::data::DataFolder;
use super::program::FAKETIME_LIB;

const FILE: &str = "clock";

/// Makes the clock of the server that keeps its data in `folder` movable, right for now, and gives the environment
/// to start that server with.
pub(super) fn prepare(folder: &DataFolder) -> Vec<(String, String)> {
    let file = folder.write(FILE, "+0\n");
    let pairs = [
        ("LD_PRELOAD", FAKETIME_LIB.find().display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        // Without this the file is read every ten seconds only.
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

/// Removes what libfaketime leaves behind when a process is killed.
pub(super) fn clean_up(pid: u32) {
    for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
    }
}
