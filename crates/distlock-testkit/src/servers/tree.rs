//! Signals to a server and all its descendants.
//!
//! PostgreSQL has one process per connection: stopping only its first process pauses no session, and killing only that one lets
//! a running statement continue. Redis and MongoDB are one process each.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process that waits for the disk stops only when the disk has answered.
const LIMIT: Duration = Duration::from_secs(5);

/// Sends a signal. A process that has already ended is no error.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Stops `root` first, so that it starts no more processes, then its descendants, and waits until all have stopped: a signal
/// takes effect a little after it was sent. Returns the stopped processes, the root first.
pub(super) fn stop(root: u32) -> Vec<u32> {
    let mut stopped = vec![root];
    signal(root, Signal::STOP);
    loop {
        for pid in &stopped {
            let begin = Instant::now();
            while is_alive(*pid) && !is_stopped(*pid) && begin.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        let new: Vec<u32> = descendants(root).into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if new.is_empty() {
            return stopped;
        }
        for pid in new {
            signal(pid, Signal::STOP);
            stopped.push(pid);
        }
    }
}

/// Kills `root` and its descendants at once, as a power failure does. The caller must wait for the root.
pub(super) fn kill(root: u32) -> Vec<u32> {
    let all = stop(root);
    for pid in &all {
        signal(*pid, Signal::KILL);
    }
    all
}

/// Whether the process exists and is not a zombie.
pub(super) fn is_alive(pid: u32) -> bool {
    status(pid).is_some_and(|(_, state)| state != 'Z' && state != 'X')
}

/// Whether the process is stopped by a signal, with all its threads.
pub(super) fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut states = threads.flatten().filter_map(|thread| stat(&thread.path().join("stat")));
    states.all(|(_, state)| state == 'T')
}

fn descendants(root: u32) -> Vec<u32> {
    let processes: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, status(pid)?.0)))
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(processes.iter().filter(|(_, ppid)| *ppid == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

fn status(pid: u32) -> Option<(u32, char)> {
    stat(Path::new(&format!("/proc/{pid}/stat")))
}

/// Parent and state of a process or thread, from `pid (name) state ppid …`, where the name may contain any character.
fn stat(file: &Path) -> Option<(u32, char)> {
    let text = fs::read_to_string(file).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// Stopped processes, resumed when this is dropped **or when the test process is killed**.
///
/// If the test process dies, the kernel kills the server's first process; its descendants end when they notice that, for which
/// they must run. So a shell waits at the end of a pipe that we hold, and resumes them when the pipe breaks.
#[derive(Debug)]
pub(super) struct PausedTree {
    pids: Vec<u32>,
    resumer: Option<Child>,
}

impl PausedTree {
    pub(super) fn new(root: u32) -> io::Result<Self> {
        let pids = stop(root);
        let resumer = if pids.len() > 1 {
            let below = pids.iter().skip(1).map(u32::to_string);
            let mut shell = Command::new("sh");
            shell.args(["-c", "read -r line; kill -CONT \"$@\" 2>/dev/null", "resume"]).args(below);
            Some(shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
        } else {
            None
        };
        Ok(Self { pids, resumer })
    }
}

impl Drop for PausedTree {
    fn drop(&mut self) {
        // Descendants first, so that the root never sees a child that does not answer.
        for pid in self.pids.iter().rev() {
            signal(*pid, Signal::CONT);
        }
        if let Some(mut resumer) = self.resumer.take() {
            drop(resumer.stdin.take());
            let _ = resumer.wait();
        }
    }
}
