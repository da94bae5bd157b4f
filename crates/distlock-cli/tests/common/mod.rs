//! What the tests of the command share: stores of their own, the real program, and waiting for a condition.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use distlock::{BootClock, Clock};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_distlock");

/// Longer than anything may take, on however busy a machine; shorter than the default expiry, so that what is left to
/// it is found.
pub(crate) const LIMIT: Duration = Duration::from_secs(25);

/// A folder of its own for each test, for stores and for files that commands write.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        // What a test program was started with would be handed on to the programs it starts, and a script's background
        // jobs are started deaf to some of these. A signal with a handler is handed on as if nobody had touched it.
        for signal in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP] {
            signal_hook::flag::register_conditional_default(signal as i32, Arc::new(AtomicBool::new(true)))
                .unwrap();
        }
        Place { dir: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program on the default store, in a home of its own.
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

    /// The program on a store whose locks have leases, with faults on command.
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

    /// Makes the leased store do wrong from now on.
    pub(crate) fn fault(&self, name: &str) {
        fs::create_dir_all(self.path("leases")).unwrap();
        fs::write(self.path("leases").join(name), "").unwrap();
    }

    pub(crate) fn mend(&self, name: &str) {
        fs::remove_file(self.path("leases").join(name)).unwrap();
    }

    /// What the leased store has under a name.
    pub(crate) fn record(&self, name: &str) -> serde_json::Value {
        let text = fs::read_to_string(self.path("leases").join("state.json")).unwrap_or_else(|_| "{}".into());
        serde_json::from_str::<serde_json::Value>(&text).unwrap()[name].clone()
    }

    /// Freezes a process that uses the leased store, and not in the middle of a step of that store: a real server
    /// would go on, but this one is a file, and its lock would be frozen as well.
    pub(crate) fn freeze_between_steps(&self, process: &Background) {
        let guard = fs::File::open(self.path("leases").join("guard")).unwrap();
        guard.lock().unwrap();
        process.send(Signal::SIGSTOP);
        wait_for("a frozen process", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')).then_some(())
        });
    }

    /// When the lease under a name ends, on the boot clock, if it is held.
    pub(crate) fn lease_end(&self, name: &str) -> Option<Duration> {
        self.record(name)["holder"]["expires_at_ns"].as_u64().map(Duration::from_nanos)
    }

    /// Waits for a file that a command writes, and reads it.
    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        wait_for(&format!("the file {name}"), || {
            fs::read_to_string(self.path(name)).ok().filter(|t| t.ends_with('\n'))
        })
    }

    /// Waits for a file that holds a process id.
    pub(crate) fn wait_for_pid(&self, name: &str) -> i32 {
        self.wait_for_file(name).trim().parse().unwrap()
    }

    /// Whether a name can be had on the default store.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        self.distlock().args(["run", "-q", "--no-wait", name, "--", "true"]).status().unwrap().success()
    }
}

/// Now, on the clock that counts suspended time, as the leased store writes it.
pub(crate) fn boot_clock() -> Duration {
    Duration::from_nanos(BootClock.now().as_nanos())
}

/// Waits for a condition; fails if it does not come true.
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "waited {LIMIT:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Plays something that must be in time. On a machine with more to do than it can, anybody may be late now and then;
/// what does not work is late each time.
pub(crate) fn in_time(play: impl Fn() -> Result<(), String>) {
    const TRIES: usize = 5;
    let mut problems = Vec::new();
    while problems.len() < TRIES {
        match play() {
            Ok(()) => return,
            Err(problem) => problems.push(problem),
        }
    }
    panic!("too late each time: {problems:?}");
}

/// Whether a process runs. Zombies do not.
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

/// A `distlock` that runs in the background, ended with everything it started when the test is over.
pub(crate) struct Background {
    child: Child,
}

impl Background {
    /// Starts it in a process group of its own, as a shell would, with its stderr kept.
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

    /// Waits for its end: the exit code and what it said.
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
