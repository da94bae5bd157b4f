//! Helpers for the tests of the command: private stores, the real program, and waiting for a condition.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use distlock::{BootClock, Clock};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_distlock");

/// Longer than any step takes on a busy machine, and shorter than the default expiry, so that a lock left to expire is found.
pub(crate) const LIMIT: Duration = Duration::from_secs(25);

/// A private folder for a test, for its stores and the files that its commands write.
pub(crate) struct Sandbox {
    dir: TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        // Ignored signals are inherited, and a script starts its background jobs with some of these ignored. A signal with a
        // handler is reset to its default in a child.
        for signal in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP] {
            signal_hook::flag::register_conditional_default(signal as i32, Arc::new(AtomicBool::new(true)))
                .unwrap();
        }
        Sandbox { dir: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program on the default store, in a private home.
    pub(crate) fn distlock(&self) -> Command {
        let mut command = Command::new(BINARY);
        command
            .env_remove("DISTLOCK_STORE")
            .env_remove("NO_COLOR")
            .env("XDG_STATE_HOME", self.path("state"))
            .env("HOME", self.path("home"))
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// The program on a store with leases and with faults on command.
    pub(crate) fn leased(&self) -> Command {
        let url = self.lease_url();
        let checked = self.distlock().args(["--store", &url, "ls"]).output().unwrap();
        assert!(
            checked.status.success(),
            "the program under test was built without its test store; run cargo test -p distlock-cli --all-features ({})",
            String::from_utf8_lossy(&checked.stderr)
        );
        let mut command = self.distlock();
        command.args(["--store", &url]);
        command
    }

    pub(crate) fn lease_url(&self) -> String {
        format!("distlock-test://{}", self.path("leases").display())
    }

    /// Sets a fault of the leased store.
    pub(crate) fn fault(&self, name: &str) {
        fs::create_dir_all(self.path("leases")).unwrap();
        fs::write(self.path("leases").join(name), "").unwrap();
    }

    pub(crate) fn clear_fault(&self, name: &str) {
        fs::remove_file(self.path("leases").join(name)).unwrap();
    }

    /// The record of a name in the leased store.
    pub(crate) fn record(&self, name: &str) -> serde_json::Value {
        let text = fs::read_to_string(self.path("leases").join("state.json")).unwrap_or_else(|_| "{}".into());
        serde_json::from_str::<serde_json::Value>(&text).unwrap()[name].clone()
    }

    /// Pauses a process that uses the leased store, but not inside a transaction: it would keep the store's file locked, unlike
    /// a client of a real server.
    pub(crate) fn pause_between_transactions(&self, process: &Background) {
        let guard = fs::File::open(self.path("leases").join("guard")).unwrap();
        guard.lock().unwrap();
        process.send(Signal::SIGSTOP);
        wait_for("a paused process", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')).then_some(())
        });
    }

    /// The end of the lease of a name on the boot clock, if it is held.
    pub(crate) fn lease_end(&self, name: &str) -> Option<Duration> {
        self.record(name)["holder"]["expires_at_ns"].as_u64().map(Duration::from_nanos)
    }

    /// Waits for a file that a command writes, and reads it.
    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        wait_for(&format!("the file {name}"), || {
            fs::read_to_string(self.path(name)).ok().filter(|t| t.ends_with('\n'))
        })
    }

    /// Waits for a file with a process id.
    pub(crate) fn wait_for_pid(&self, name: &str) -> i32 {
        self.wait_for_file(name).trim().parse().unwrap()
    }

    /// Runs a command that holds the lock until it is killed, and waits until it has it.
    pub(crate) fn hold(&self, run: &mut Command) -> Background {
        let _ = fs::remove_file(self.path("held"));
        let run = Background::start(run.args(sh("echo > held; exec sleep 60")));
        self.wait_for_file("held");
        run
    }

    /// Whether a name can be acquired on the default store.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        self.distlock().args(["run", "-q", "--no-wait", name, "--", "true"]).status().unwrap().success()
    }
}

/// The time on the boot clock, as the leased store writes it.
pub(crate) fn boot_clock() -> Duration {
    Duration::from_nanos(BootClock.now().as_nanos())
}

/// Waits for a condition, within the limit.
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "timed out after {LIMIT:?} waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a test with a time limit several times. On an overloaded machine it may be late sometimes; a defect is late every
/// time.
pub(crate) fn in_time(attempt: impl Fn() -> Result<(), String>) {
    const TRIES: usize = 5;
    let mut problems = Vec::new();
    while problems.len() < TRIES {
        match attempt() {
            Ok(()) => return,
            Err(problem) => problems.push(problem),
        }
    }
    panic!("too late every time: {problems:?}");
}

/// Whether a process is alive; zombies are not.
pub(crate) fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// The state letter of a process.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

pub(crate) fn wait_until_dead(pid: i32) {
    wait_for(&format!("the end of process {pid}"), || (!is_alive(pid)).then_some(()));
}

/// The children of a process.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let parent = |child: i32| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse::<i32>().ok()
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|child| parent(*child) == Some(pid)).collect()
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// A `distlock` in the background, killed when the test ends.
pub(crate) struct Background {
    child: Child,
}

impl Background {
    /// Starts it in its own process group, as a shell does, and captures its stderr.
    pub(crate) fn start(command: &mut Command) -> Self {
        Background { child: command.stderr(Stdio::piped()).process_group(0).spawn().unwrap() }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The watchdog between it and its command.
    pub(crate) fn watchdog(&self) -> i32 {
        wait_for("the watchdog", || children(self.pid()).first().copied())
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for its end: the exit code and its stderr.
    pub(crate) fn finish(mut self) -> (i32, String) {
        let status = wait_for("the end of distlock", || self.child.try_wait().unwrap());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status.code().unwrap_or(-1), said)
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

/// A shell script as the command to run.
pub(crate) fn sh(script: &str) -> [&str; 4] {
    ["--", "sh", "-c", script]
}

/// Copies a program, by another process: a child that another test starts during a copy of our own would keep the file open for
/// writing, and a program that is open for writing cannot be run (ETXTBSY).
pub(crate) fn copy_program(from: &str, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success(), "cannot copy {from}");
}
