//! Removes the shared memory segment of a killed PostgreSQL server.
//!
//! Each server marks its data folder as in use with a System V shared memory segment of 56 bytes. A killed server leaves it for
//! the next server on that folder. Without that next server the segment would stay for ever, and the kernel has room for 4,096.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The processes of a killed server end within milliseconds.
const LIMIT: Duration = Duration::from_secs(2);

/// Removes the segment of the killed server with its data in `folder`, when the last of its processes has ended. Does nothing
/// for any other folder.
pub(in crate::servers) fn release(folder: &Path) {
    let Ok(pid_file) = fs::read_to_string(folder.join("data/postmaster.pid")) else { return };
    let begin = Instant::now();
    loop {
        let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        match find_segment(&pid_file, &segments) {
            Some(Segment { number, users: 0 }) => {
                let mut ipcrm = Command::new("ipcrm");
                let _ = ipcrm
                    .args(["-m", &number.to_string()])
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status();
                return;
            }
            Some(_) if begin.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(2)),
            _ => return,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Segment {
    number: i64,
    users: i64,
}

/// The segment that `postmaster.pid` names. Key, number and creating process must match, so that no other segment is removed.
fn find_segment(pid_file: &str, segments: &str) -> Option<Segment> {
    let mut lines = pid_file.lines();
    let process: i64 = lines.next()?.trim().parse().ok()?;
    let mut words = lines.nth(5)?.split_whitespace();
    let key = words.next()?.parse::<i64>().ok()? as i32;
    let number: i64 = words.next()?.parse().ok()?;
    segments.lines().skip(1).find_map(|line| {
        let field: Vec<i64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [its_key, its_number, _mode, _size, maker, _last, users, ..] = field[..] else { return None };
        let same = its_key == i64::from(key) && its_number == number && maker == process;
        same.then_some(Segment { number, users })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID_FILE: &str =
        "12408\n/tmp/x/data\n1794772959\n21000\n/tmp/x\n127.0.0.1\n  10029454        17\nready   \n";
    const HEADER: &str = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid\n";

    #[test]
    fn only_the_segment_of_the_dead_server_matches() {
        let find = |line: &str| find_segment(PID_FILE, &format!("{HEADER}{line}\n"));
        let ours = |users| Some(Segment { number: 17, users });
        assert_eq!(find("10029454 17 600 56 12408 12412 0 65534 65534"), ours(0));
        assert_eq!(find("10029454 17 600 56 12408 12412 5 65534 65534"), ours(5));
        assert_eq!(find("10029454 17 600 56 999 12412 0 65534 65534"), None, "another's");
        assert_eq!(find("10029455 17 600 56 12408 12412 0 65534 65534"), None, "another key");
        assert_eq!(super::find_segment("", HEADER), None);
    }
}
