//! What the kernel keeps of a PostgreSQL server that was killed.
//!
//! Each server marks its data folder as taken with a System V shared memory segment of 56 bytes. One that is killed
//! leaves it to its successor on the same folder; when the folder goes, nobody would ever remove it, and the kernel
//! has room for 4,096 of them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Removes the segment of the server that was killed with its data in `folder`; nothing to do for any other folder.
pub(in crate::servers) fn release(folder: &Path) {
    let Ok(note) = fs::read_to_string(folder.join("data/postmaster.pid")) else { return };
    let Ok(segments) = fs::read_to_string("/proc/sysvipc/shm") else { return };
    if let Some(segment) = abandoned(&note, &segments) {
        let mut ipcrm = Command::new("ipcrm");
        let _ = ipcrm.args(["-m", &segment.to_string()]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// The segment that the server noted in `postmaster.pid`: by its key, its number and the process that made it, so
/// that nobody else's is taken for it, and only if no process uses it.
fn abandoned(note: &str, segments: &str) -> Option<i32> {
    let mut lines = note.lines();
    let process: i64 = lines.next()?.trim().parse().ok()?;
    let mut words = lines.nth(5)?.split_whitespace();
    let key = words.next()?.parse::<i64>().ok()? as i32;
    let number: i64 = words.next()?.parse().ok()?;
    segments.lines().skip(1).find_map(|line| {
        let field: Vec<i64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [its_key, its_number, _mode, _size, maker, _last, users, ..] = field[..] else { return None };
        let same = its_key == i64::from(key) && its_number == number && maker == process && users == 0;
        same.then_some(i32::try_from(number).ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: &str =
        "12408\n/tmp/x/data\n1794772959\n21000\n/tmp/x\n127.0.0.1\n  10029454        17\nready   \n";
    const HEAD: &str = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid\n";

    #[test]
    fn only_the_segment_of_a_dead_server_is_removed() {
        let table = |line: &str| format!("{HEAD}{line}\n");
        assert_eq!(abandoned(NOTE, &table("10029454 17 600 56 12408 12412 0 65534 65534")), Some(17));
        assert_eq!(abandoned(NOTE, &table("10029454 17 600 56 12408 12412 5 65534 65534")), None, "in use");
        assert_eq!(abandoned(NOTE, &table("10029454 17 600 56 999 12412 0 65534 65534")), None, "another's");
        assert_eq!(
            abandoned(NOTE, &table("10029455 17 600 56 12408 12412 0 65534 65534")),
            None,
            "another key"
        );
        assert_eq!(abandoned("", HEAD), None);
    }
}
