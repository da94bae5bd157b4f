//! An actor that is a process: the test binary, started once more.

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

use super::actor::Pending;
use super::order::{Answer, Letter, Order, Role};
use super::serve::{Connect, Freezer, serve};

/// The environment variable that makes a test binary an actor.
pub const ROLE_VARIABLE: &str = "DISTLOCK_TEST_ACTOR";

/// What stands in front of every answer. The test harness prints to the same place, also without a line break.
const MARK: &str = "@distlock-actor ";

/// Acts, if this process was started as an actor; otherwise does nothing. To be called by the test that is the
/// entry for actors; `connect` gets the address that the test gave them.
///
/// # Panics
/// If something goes wrong: the test that started us then finds its actor dead.
pub fn perform<C, F>(connect: C)
where
    C: Fn(String) -> F + Send + Sync + 'static,
    F: Future<Output = Backend> + Send + 'static,
{
    let Ok(role) = std::env::var(ROLE_VARIABLE) else { return };
    let role: Role = serde_json::from_str(&role).expect("the role of an actor");
    let address = role.address.clone().expect("an actor in a process of its own needs an address");
    let connect: Connect = Box::new(move || Box::pin(connect(address.clone())));
    let (sender, orders) = unbounded_channel();
    // A thread, not a task: a read from standard input cannot be given up, and would keep the runtime.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let order = serde_json::from_str(&line.expect("an order")).expect("an order");
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    let reply = Arc::new(|answer: Letter<Answer>| {
        let line = serde_json::to_string(&answer).expect("an answer can be written");
        let mut out = std::io::stdout().lock();
        // Nobody listens any more: the test is over.
        let _ = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(serve(role, connect, orders, reply, Arc::new(Freezer::default())));
    runtime.shutdown_timeout(Duration::from_secs(1));
}

/// Starts an actor: this binary with the one test that is the entry.
pub(super) fn start(
    entry: &str,
    role: &Role,
    mut orders: UnboundedReceiver<Letter<Order>>,
    pending: Arc<Pending>,
) -> Child {
    let binary = std::env::current_exe().expect("the path of the test binary");
    let mut child = Command::new(binary)
        .args([entry, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE_VARIABLE, serde_json::to_string(role).expect("a role can be written"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("cannot start the test binary as an actor");
    let mut to_child = child.stdin.take().expect("a pipe");
    tokio::spawn(async move {
        while let Some(letter) = orders.recv().await {
            let line = serde_json::to_string(&letter).expect("an order can be written") + "\n";
            if to_child.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
    });
    let from_child = child.stdout.take().expect("a pipe");
    tokio::spawn(async move {
        let mut lines = BufReader::new(from_child).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if let Some((_, answer)) = line.split_once(MARK) {
                pending.resolve(serde_json::from_str(answer).expect("an answer"));
            }
        }
        pending.give_up();
    });
    child
}

fn pid(child: &Child) -> Pid {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    pid.expect("the actor runs")
}

/// Stops the process as a whole, and returns when it stands still.
pub(super) async fn pause(child: &Child) {
    let pid = pid(child);
    kill_process(pid, Signal::STOP).expect("cannot pause the actor");
    let begun = Instant::now();
    while !stands_still(pid) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the actor does not stand still");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(super) fn resume(child: &Child) {
    kill_process(pid(child), Signal::CONT).expect("cannot let the actor go on");
}

#[cfg(target_os = "linux")]
fn stands_still(pid: Pid) -> bool {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let tasks = std::fs::read_dir(tasks).expect("the actor runs");
    tasks.filter_map(Result::ok).all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state follows the name, which stands in parentheses and may itself hold anything.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't']))
    })
}

#[cfg(not(target_os = "linux"))]
fn stands_still(_: Pid) -> bool {
    true
}
