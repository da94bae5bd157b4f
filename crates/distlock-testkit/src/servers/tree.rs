//! Signals to a server with all the processes it has started.
//!
//! PostgreSQL has a process for each connection: to stop its first process alone freezes nobody, and to kill it
//! alone lets a running statement go on. Redis and MongoDB are one process.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process that waits for a disk stops when the disk has answered.
const LIMIT: Duration = Duration::from_secs(5);

/// Sends a signal; a process that is gone already is no error.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Stops `root` first, so that it starts no more, then all below it, and waits until they stand still: a signal takes
/// effect a little after it was sent. Gives everything stopped, the root first.
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

/// Kills `root` and all below it at one moment, as a power cut does. Waiting for the root is the caller's.
pub(super) fn kill(root: u32) -> Vec<u32> {
    let all = stop(root);
    for pid in &all {
        signal(*pid, Signal::KILL);
    }
    all
}

/// Whether the process still does something: it exists and is not a zombie.
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

/// Parent and state of a process or thread, from `pid (name) state ppid …`, where the name may hold anything.
fn stat(file: &Path) -> Option<(u32, char)> {
    let text = fs::read_to_string(file).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// Processes that are stopped, and that go on when this is dropped **or when the test process is killed**.
///
/// The kernel kills the server's first process when we die; the ones below it end themselves when they notice that,
/// for which they must run. So a shell waits at the end of a pipe that we hold, and sends the signal when it breaks.
#[derive(Debug)]
pub(super) struct Frozen {
    pids: Vec<u32>,
    waker: Option<Child>,
}

impl Frozen {
    pub(super) fn new(root: u32) -> io::Result<Self> {
        let pids = stop(root);
        let waker = if pids.len() > 1 {
            let below = pids.iter().skip(1).map(u32::to_string);
            let mut shell = Command::new("sh");
            shell.args(["-c", "read -r line; kill -CONT \"$@\" 2>/dev/null", "resume"]).args(below);
            Some(shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
        } else {
            None
        };
        Ok(Self { pids, waker })
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // From below, so that the root never sees children that do not answer.
        for pid in self.pids.iter().rev() {
            signal(*pid, Signal::CONT);
        }
        if let Some(mut waker) = self.waker.take() {
            drop(waker.stdin.take());
            let _ = waker.wait();
        }
    }
}
