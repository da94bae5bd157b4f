//! A client in another process: this test program, started again.
//!
//! It reads commands from stdin and writes reports to stdout, one per line, with `@` in front (the test harness prints lines
//! of its own). Claims are numbered; their names are hexadecimal.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use distlock_core::store::{Claim, Lease, Level, Query, SessionStore, Store};
use distlock_core::{BootClock, Clock, Kind};
use distlock_file::{Access, FileConfig, FileStore, Wakeups};
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, claim};

const DIR: &str = "DISTLOCK_FILE_TEST_DIR";
const POLL: &str = "DISTLOCK_FILE_TEST_POLL";
const SHARED: &str = "DISTLOCK_FILE_TEST_SHARED";

/// A process that acquires and releases on command.
pub(crate) struct Agent {
    child: Child,
    reports: mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Agent {
    /// Starts one on this folder.
    pub(crate) fn start(dir: &Path) -> Agent {
        Agent::start_as(dir, Command::new(std::env::current_exe().unwrap()))
    }

    /// Starts one that polls.
    pub(crate) fn start_polling(dir: &Path) -> Agent {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(POLL, "1");
        Agent::start_as(dir, command)
    }

    /// Starts one that shares the folder with its group.
    pub(crate) fn start_shared(dir: &Path, mut command: Command) -> Agent {
        command.env(SHARED, "1");
        Agent::start_as(dir, command)
    }

    /// Starts one inside a shell script, which must end with `exec "$0" "$@"`.
    pub(crate) fn start_in(dir: &Path, wrapper: &[&str], script: &str) -> Agent {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).args(["sh", "-c", script]).arg(std::env::current_exe().unwrap());
        Agent::start_as(dir, command)
    }

    pub(crate) fn start_as(dir: &Path, mut command: Command) -> Agent {
        command
            .args(["agent::a_process_of_its_own", "--exact", "--nocapture", "--test-threads=1"])
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // A process that another test starts has a copied program open for writing until it executes its own.
        let mut spawned = command.spawn();
        while spawned.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy) {
            spawned = command.spawn();
        }
        let mut child = spawned.unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, reports) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(report) = line.strip_prefix("@ ") {
                    let _ = send.send(report.to_owned());
                }
            }
        });
        let mut agent = Agent { child, reports, seen: Vec::new() };
        agent.wait_for("ready");
        agent
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Waits for a report with this prefix, and returns the words after it.
    pub(crate) fn wait_for(&mut self, beginning: &str) -> Vec<String> {
        loop {
            if let Some(at) = self.seen.iter().position(|report| begins(report, beginning)) {
                let report = self.seen.remove(at);
                return report[beginning.len()..].split_whitespace().map(str::to_owned).collect();
            }
            match self.reports.recv_timeout(LONG) {
                Ok(report) => self.seen.push(report),
                Err(error) => panic!("no report {beginning:?} ({error}), only {:?}", self.seen),
            }
        }
    }

    /// Waits for the next report, whatever it is.
    pub(crate) fn wait_for_any(&mut self) -> String {
        if self.seen.is_empty() {
            return self.reports.recv_timeout(LONG).unwrap();
        }
        self.seen.remove(0)
    }

    pub(crate) fn ask(&mut self, command: &str, beginning: &str) -> Vec<String> {
        self.tell(command);
        self.wait_for(beginning)
    }

    /// Acquires, and returns the token and the moment of the grant.
    pub(crate) fn acquire(&mut self, number: u32, claim: &str) -> (u64, u64) {
        granted(&self.ask(&format!("acquire {number} {claim}"), &format!("granted {number}")))
    }

    /// Waits for the grant of an earlier claim.
    pub(crate) fn granted(&mut self, number: u32) -> (u64, u64) {
        granted(&self.wait_for(&format!("granted {number}")))
    }

    /// The grant of an earlier claim, if it was reported already.
    pub(crate) fn granted_by_now(&mut self, number: u32) -> Option<(u64, u64)> {
        self.seen.extend(self.reports.try_iter());
        let beginning = format!("granted {number}");
        let there = self.seen.iter().any(|report| begins(report, &beginning));
        there.then(|| self.granted(number))
    }

    /// Releases, and returns the moment before.
    pub(crate) fn release(&mut self, number: u32) -> u64 {
        self.ask(&format!("release {number}"), &format!("released {number}"))[0].parse().unwrap()
    }

    /// Kills it with SIGKILL and waits for its end. Returns the moment before.
    pub(crate) fn kill(&mut self) -> u64 {
        let now = BootClock.now().as_nanos();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        now
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

fn begins(report: &str, beginning: &str) -> bool {
    report.strip_prefix(beginning).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

fn granted(words: &[String]) -> (u64, u64) {
    (words[0].parse().unwrap(), words[1].parse().unwrap())
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A claim as words of a command.
pub(crate) fn spell(kind: Kind, name: &str, weight: u32, capacity: u32) -> String {
    let name: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind} {weight} {capacity} {name}")
}

fn read(words: &[&str]) -> Claim {
    let [kind, weight, capacity, name] = words else { panic!("{words:?}") };
    let bytes = (0..name.len()).step_by(2).map(|at| u8::from_str_radix(&name[at..at + 2], 16).unwrap());
    let name = String::from_utf8(bytes.collect()).unwrap();
    claim(Kind::parse(kind).unwrap(), &name, weight.parse().unwrap(), capacity.parse().unwrap())
}

fn report(text: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\n@ {text}\n").and_then(|()| out.flush());
}

fn now() -> u64 {
    BootClock.now().as_nanos()
}

/// Does nothing unless a test started it.
#[test]
fn a_process_of_its_own() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let wakeups = if std::env::var_os(POLL).is_some() { Wakeups::Poll } else { Wakeups::Auto };
    let access = if std::env::var_os(SHARED).is_some() { Access::Group } else { Access::Private };
    let config = FileConfig::new(dir).wakeups(wakeups).access(access);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let store = runtime.block_on(FileStore::connect(config)).unwrap();
    let work = Arc::new(AgentProcess { store, claims: Mutex::default() });
    report(format_args!("ready"));
    for command in std::io::stdin().lines().map_while(Result::ok) {
        let work = Arc::clone(&work);
        runtime.spawn(async move { work.execute(&command).await });
    }
    // The parent is gone.
    std::process::exit(0);
}

struct AgentProcess {
    store: FileStore,
    claims: Mutex<HashMap<String, (Claim, CancellationToken)>>,
}

impl AgentProcess {
    async fn execute(&self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["acquire", number, ref claim @ ..] => self.acquire(number, read(claim), false).await,
            ["try", number, ref claim @ ..] => self.acquire(number, read(claim), true).await,
            ["withdraw", number] => self.claims.lock().unwrap()[number].1.cancel(),
            ["release", number] => {
                let claim = self.claims.lock().unwrap()[number].0.clone();
                let before = now();
                let lease = Lease::of(&claim, distlock_core::FencingToken::new(0));
                self.store.release(&lease).await.unwrap();
                report(format_args!("released {number} {before}"));
            }
            ["cycles", number, times, dir, ref claim @ ..] => self.cycles(number, times, dir, claim).await,
            ["try-free", number, times, ref claim @ ..] => self.try_free(number, times, claim).await,
            ["inspect", number, times] => {
                let mut seen = 0;
                for _ in 0..times.parse::<u32>().unwrap() {
                    seen += self.store.inspect(&Query::default()).await.unwrap().len();
                }
                report(format_args!("inspected {number} {seen}"));
            }
            ["list", number] => match self.store.inspect(&Query::default()).await {
                Ok(records) => report(format_args!("listed {number} {}", records.len())),
                Err(error) => report(format_args!("failed {number} {:?} {error}", error.kind())),
            },
            ["doctor", number] => {
                let findings = self.store.doctor().await.unwrap();
                let warnings = findings.iter().filter(|finding| finding.level == Level::Warning);
                let said: Vec<&str> = warnings.map(|finding| finding.what.as_str()).collect();
                report(format_args!("examined {number} {}", said.join("; ")));
            }
            ["spawn"] => {
                let child = Command::new("sleep")
                    .arg("600")
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn();
                report(format_args!("spawned {}", child.unwrap().id()));
            }
            ["lock", path] => {
                let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
                file.lock().unwrap();
                std::mem::forget(file);
                report(format_args!("locked"));
            }
            ["fill", path] => {
                // In pieces small enough to use the last free block.
                let mut file = std::fs::File::create(path).unwrap();
                while file.write_all(&[b'x'; 512]).is_ok() {}
                report(format_args!("filled"));
            }
            ["remove", path] => {
                std::fs::remove_file(path).unwrap();
                report(format_args!("removed"));
            }
            _ => panic!("{command:?}"),
        }
    }

    async fn acquire(&self, number: &str, claim: Claim, once: bool) {
        let withdraw = CancellationToken::new();
        if once {
            withdraw.cancel();
        }
        self.claims.lock().unwrap().insert(number.to_owned(), (claim.clone(), withdraw.clone()));
        match self.store.acquire(&claim, &withdraw).await {
            Ok(Some(hold)) => {
                report(format_args!("granted {number} {} {}", hold.token, now()));
                hold.session.wait_for_end().await;
                report(format_args!("lost {number} {:?}", hold.session.ended()));
            }
            Ok(None) => report(format_args!("none {number}")),
            Err(error) => report(format_args!("failed {number} {:?} {error}", error.kind())),
        }
    }

    /// Acquires and releases repeatedly, and writes the token and whether it was alone.
    async fn cycles(&self, number: &str, times: &str, dir: &str, claim: &[&str]) {
        let (marker, history) = (Path::new(dir).join("marker"), Path::new(dir).join("history"));
        let mut history = std::fs::OpenOptions::new().append(true).create(true).open(history).unwrap();
        let never = CancellationToken::new();
        for _ in 0..times.parse::<u32>().unwrap() {
            let claim = read(claim);
            let hold = self.store.acquire(&claim, &never).await.unwrap().unwrap();
            let alone = std::fs::File::create_new(&marker).is_ok();
            writeln!(history, "{} {alone}", hold.token).unwrap();
            tokio::task::yield_now().await;
            std::fs::remove_file(&marker).unwrap();
            self.store.release(&Lease::of(&claim, hold.token)).await.unwrap();
        }
        report(format_args!("cycled {number}"));
    }

    /// Tries to acquire a free lock repeatedly, and counts the refusals.
    async fn try_free(&self, number: &str, times: &str, claim: &[&str]) {
        let withdrawn = CancellationToken::new();
        withdrawn.cancel();
        let mut refused = 0;
        for _ in 0..times.parse::<u32>().unwrap() {
            let claim = read(claim);
            match self.store.acquire(&claim, &withdrawn).await.unwrap() {
                Some(hold) => self.store.release(&Lease::of(&claim, hold.token)).await.unwrap(),
                None => refused += 1,
            }
        }
        report(format_args!("tried {number} {refused}"));
    }
}
