//! One server process: start, readiness, faults, end.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::data::DataFolder;
use super::port::Port;
use super::{clock, spawn, tree};

const READY_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Checks whether the server is ready; the error says why not yet.
type Probe = Box<dyn Fn(u16) -> Result<(), String> + Send + Sync>;

/// How to start a server.
pub struct Launch {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    environment: Vec<(String, String)>,
    folder: DataFolder,
    ports: Vec<Port>,
    stop_signal: Signal,
    movable_clock: bool,
    ready: Probe,
}

impl Launch {
    /// A server with an empty data folder that will listen on `port`.
    ///
    /// `ready` is called repeatedly after the start, with the port. It must talk to the server and return within about a second.
    pub fn new(
        program: PathBuf,
        folder: DataFolder,
        port: Port,
        ready: impl Fn(u16) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let file = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Self {
            name: format!("{file} on port {}", port.number()),
            program,
            args: Vec::new(),
            environment: Vec::new(),
            folder,
            ports: vec![port],
            stop_signal: Signal::TERM,
            movable_clock: false,
            ready: Box::new(ready),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Keeps another port reserved for this server.
    #[must_use]
    pub fn also_port(mut self, port: Port) -> Self {
        self.ports.push(port);
        self
    }

    /// The signal for a clean shutdown, if it is not SIGTERM.
    #[must_use]
    pub fn stop_signal(mut self, signal: Signal) -> Self {
        self.stop_signal = signal;
        self
    }

    /// Lets the test move the server's wall clock: see [`ServerProcess::set_clock_offset`].
    #[must_use]
    pub fn movable_clock(mut self, wanted: bool) -> Self {
        if wanted {
            self.environment.extend(clock::prepare(&self.folder));
            self.movable_clock = true;
        }
        self
    }

    /// Starts the server without waiting, to start several concurrently. Call [`ServerProcess::wait_ready`] afterwards.
    #[must_use]
    pub fn spawn(self) -> ServerProcess {
        let server = ServerProcess { launch: self, state: Mutex::default() };
        server.spawn();
        server
    }

    /// Starts the server and waits until it is ready.
    #[must_use]
    pub fn start(self) -> ServerProcess {
        let server = self.spawn();
        server.wait_ready();
        server
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch").field("name", &self.name).field("args", &self.args).finish_non_exhaustive()
    }
}

/// A server that was started for a test. Dropping it kills the server and removes its data.
///
/// All methods take `&self`, so that a server can be shared between threads and tests.
#[derive(Debug)]
pub struct ServerProcess {
    launch: Launch,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    // Before `child`: a paused server is resumed before it is killed.
    paused: Option<tree::PausedTree>,
    child: Option<Child>,
}

impl ServerProcess {
    /// The name of the server in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// The port that the server listens on; it stays the same across restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.launch.ports[0].number()
    }

    /// The server's address on the loopback interface.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.launch.ports[0].addr()
    }

    /// The server's data folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.launch.folder.path()
    }

    /// The process id of the running server.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.state().child.as_ref().map(Child::id)
    }

    /// Whether the server runs, paused or not.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.state().child.as_mut().map(Child::try_wait), Some(Ok(None)))
    }

    /// Whether the server is paused, read from the state of its process.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.pid().is_some_and(tree::is_stopped)
    }

    /// Starts a server that was stopped or killed, with the same data, on the same port, and waits until it is ready.
    ///
    /// # Panics
    /// If it runs already, or does not become ready.
    pub fn start_again(&self) {
        self.spawn();
        self.wait_ready();
    }

    /// Stops the server cleanly if it runs, and starts it again with the same data on the same port.
    ///
    /// # Panics
    /// If it does not stop, or does not become ready.
    pub fn restart(&self) {
        if self.pid().is_some() {
            self.stop();
        }
        self.start_again();
    }

    /// Stops the server cleanly and waits for its end. A paused server is resumed first.
    ///
    /// # Panics
    /// If it does not run, or has not ended after half a minute.
    pub fn stop(&self) {
        let mut state = self.state();
        state.paused = None;
        let child = state.child.as_mut().unwrap_or_else(|| panic!("{} does not run", self.launch.name));
        tree::signal(child.id(), self.launch.stop_signal);
        let begin = Instant::now();
        while !matches!(child.try_wait(), Ok(Some(_))) {
            assert!(begin.elapsed() < STOP_LIMIT, "{} does not stop\n{}", self.launch.name, self.log_tail());
            std::thread::sleep(Duration::from_millis(2));
        }
        self.forget(&mut state);
    }

    /// Kills the server with all its processes at once (SIGKILL) and waits until they have ended. Does nothing if it does not
    /// run. Data that the server had not written to the kernel is lost.
    pub fn kill(&self) {
        let mut state = self.state();
        let Some(child) = state.child.as_mut() else { return };
        if let Ok(None) = child.try_wait() {
            let all = tree::kill(child.id());
            let _ = child.wait();
            let begin = Instant::now();
            while all.iter().skip(1).any(|pid| tree::is_alive(*pid)) && begin.elapsed() < STOP_LIMIT {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.forget(&mut state);
    }

    /// Pauses all processes of the server (SIGSTOP). Connections stay open and the kernel accepts new ones, but no request is
    /// answered.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pause(&self) {
        let mut state = self.state();
        let pid = state.child.as_ref().map(Child::id);
        let pid = pid.unwrap_or_else(|| panic!("{} does not run", self.launch.name));
        if state.paused.is_none() {
            state.paused = Some(tree::PausedTree::new(pid).expect("cannot pause the server"));
        }
    }

    /// Resumes a paused server (SIGCONT). Does nothing if it is not paused.
    pub fn resume(&self) {
        self.state().paused = None;
    }

    /// Moves the server's wall clock by `offset` from the true time: `+1d`, `-3600` (seconds), `+90s`, `+0`.
    ///
    /// The server sees it when it next reads its clock. Valkey uses a cached time for one more command or a tenth of a second.
    ///
    /// # Panics
    /// If the server was not started with a movable clock.
    pub fn set_clock_offset(&self, offset: &str) {
        assert!(self.launch.movable_clock, "{} was not started with movable_clock()", self.launch.name);
        clock::set(&self.launch.folder, offset);
    }

    /// Waits until a spawned server is ready.
    ///
    /// # Panics
    /// If it ends, or is not ready after a minute; the message has the end of its log.
    pub fn wait_ready(&self) {
        let begin = Instant::now();
        let mut pause = Duration::from_millis(2);
        loop {
            let Err(why) = (self.launch.ready)(self.port()) else { return };
            let ended = match self.state().child.as_mut().map(Child::try_wait) {
                Some(Ok(Some(status))) => Some(status.to_string()),
                Some(_) => None,
                None => Some("it was never started".to_owned()),
            };
            if let Some(status) = ended {
                panic!("{} ended before it was ready ({status})\n{}", self.launch.name, self.log_tail());
            }
            assert!(
                begin.elapsed() < READY_LIMIT,
                "{} not ready: {why}\n{}",
                self.launch.name,
                self.log_tail()
            );
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// The last lines of the server's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(40)..];
        format!("--- end of the log of {} ---\n{}\n---", self.launch.name, tail.join("\n"))
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    fn log_file(&self) -> PathBuf {
        self.folder().join("server.log")
    }

    fn spawn(&self) {
        let mut state = self.state();
        assert!(state.child.is_none(), "{} runs already", self.launch.name);
        let log =
            OpenOptions::new().create(true).append(true).open(self.log_file()).expect("cannot open the log");
        let log_for_stderr = log.try_clone().expect("cannot open the log twice");
        let mut command = spawn::command(&self.launch.program, &self.launch.environment);
        // In its own process group, so that Ctrl-C reaches only the tests; the servers end with them.
        command
            .args(&self.launch.args)
            .current_dir(self.folder())
            .process_group(0)
            .stdout(log)
            .stderr(log_for_stderr);
        let child =
            spawn::spawn(command).unwrap_or_else(|e| panic!("cannot start {}: {e}", self.launch.name));
        state.child = Some(child);
    }

    fn forget(&self, state: &mut State) {
        state.paused = None;
        if let Some(child) = state.child.take()
            && self.launch.movable_clock
        {
            clock::clean_up(child.id());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
