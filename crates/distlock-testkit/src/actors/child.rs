//! An actor that is a process: the test binary, started again.

use std::future::Future;
use std::io::{BufRead, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_core::store::Backend;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::actor::PendingReplies;
use super::protocol::{ActorCommand, ActorConfig, ActorReply, Envelope};
use super::worker::{Connect, PauseGate, serve};

/// The environment variable that makes a test binary an actor.
pub const ACTOR_VARIABLE: &str = "DISTLOCK_TEST_ACTOR";

/// Precedes every reply. The test runner prints to the same pipe, also without a line break.
const MARK: &str = "@distlock-actor ";

/// Runs the actor if this process was started as one; otherwise returns at once. Call it from the test that is the entry
/// of actors. `connect` gets the address in the [`ActorConfig`].
///
/// # Panics
/// If anything fails. The test that started the actor then finds it dead.
pub fn run_if_actor<C, F>(connect: C)
where
    C: Fn(String) -> F + Send + Sync + 'static,
    F: Future<Output = Backend> + Send + 'static,
{
    let Ok(config) = std::env::var(ACTOR_VARIABLE) else { return };
    let config: ActorConfig = serde_json::from_str(&config).expect("the configuration of an actor");
    let address = config.address.clone().expect("an actor process needs an address");
    let connect: Connect = Box::new(move || Box::pin(connect(address.clone())));
    let (sender, commands) = unbounded_channel();
    // A thread, not a task: a pending read from standard input cannot be cancelled and would block the end of the runtime.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let command = serde_json::from_str(&line.expect("a command")).expect("a command");
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    let reply = Arc::new(|reply: Envelope<ActorReply>| {
        let line = serde_json::to_string(&reply).expect("a reply can be serialised");
        let mut out = std::io::stdout().lock();
        // The write fails if the test has ended.
        let _ = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(serve(config, connect, commands, reply, Arc::new(PauseGate::default())));
    runtime.shutdown_timeout(Duration::from_secs(1));
}

/// Starts an actor process: this binary with the one test that is the entry.
pub(super) fn start(
    entry: &str,
    config: &ActorConfig,
    mut commands: UnboundedReceiver<Envelope<ActorCommand>>,
    pending: Arc<PendingReplies>,
) -> Child {
    let binary = std::env::current_exe().expect("the path of the test binary");
    let mut child = Command::new(binary)
        .args([entry, "--exact", "--nocapture", "--test-threads=1"])
        .env(ACTOR_VARIABLE, serde_json::to_string(config).expect("a configuration can be serialised"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("cannot start the test binary as an actor");
    let mut to_child = child.stdin.take().expect("a pipe");
    tokio::spawn(async move {
        while let Some(command) = commands.recv().await {
            let line = serde_json::to_string(&command).expect("a command can be serialised") + "\n";
            if to_child.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
    });
    let from_child = child.stdout.take().expect("a pipe");
    tokio::spawn(async move {
        let mut lines = BufReader::new(from_child).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if let Some((_, reply)) = line.split_once(MARK) {
                pending.resolve(serde_json::from_str(reply).expect("a reply"));
            }
        }
        pending.close();
    });
    child
}

fn pid(child: &Child) -> Pid {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    pid.expect("the actor runs")
}

/// Stops the process, and returns when all of its threads have stopped.
pub(super) async fn pause(child: &Child) {
    let pid = pid(child);
    kill_process(pid, Signal::STOP).expect("cannot pause the actor");
    let begun = Instant::now();
    while !is_stopped(pid) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the actor does not stop");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(super) fn resume(child: &Child) {
    kill_process(pid(child), Signal::CONT).expect("cannot resume the actor");
}

#[cfg(target_os = "linux")]
fn is_stopped(pid: Pid) -> bool {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let tasks = std::fs::read_dir(tasks).expect("the actor runs");
    tasks.filter_map(Result::ok).all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses and may contain any character.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't']))
    })
}

#[cfg(not(target_os = "linux"))]
fn is_stopped(_: Pid) -> bool {
    true
}
