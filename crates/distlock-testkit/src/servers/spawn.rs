//! Starts programs as the servers' user, so that they never outlive the tests.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

use super::data::all_users_can_reach;
use super::program::SETPRIV;

/// The user and group `nobody`.
const NOBODY: u32 = 65534;

/// The user that servers run as: `nobody` if we are root (PostgreSQL refuses root), otherwise ourselves (`None`).
#[must_use]
pub fn server_user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

/// A command that runs `program` as the servers' user and that the kernel kills when this process dies.
///
/// The environment is set with `env`, not by us: a library preloaded for the server must not be loaded by the wrappers.
pub(super) fn command(program: &Path, environment: &[(String, String)]) -> Command {
    let mut command;
    if cfg!(target_os = "linux") {
        command = Command::new(SETPRIV.find());
        command.args(["--pdeathsig", "KILL"]);
        // The user `nobody` cannot reach a program below root's home folder: run that one as root.
        if let Some(user) = server_user().filter(|_| all_users_can_reach(program)) {
            command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]);
        }
        command.arg("--").arg("env");
    } else {
        command = Command::new("env");
    }
    command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
    command.arg(program).stdin(Stdio::null()).env("HOME", "/nonexistent").env("LC_ALL", "C");
    command
}

/// Spawns from a thread that lives as long as the process.
///
/// The kernel sends the parent-death signal when the *thread* that spawned the child ends. Test threads, and the
/// blocking threads of async runtimes, end long before the process does.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, inbox) = mpsc::channel::<SpawnRequest>();
        thread::Builder::new()
            .name("server-spawner".into())
            .spawn(move || {
                for (mut command, reply) in inbox {
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("cannot start the thread that spawns servers");
        requests
    });
    let (reply, child) = mpsc::channel();
    spawner.send((command, reply)).expect("the spawner lives as long as the process");
    child.recv().expect("the spawner answers every request")
}

/// Runs a server's tool (`initdb`, `pg_basebackup`) to its end, as the servers' user.
///
/// # Panics
/// If it fails, with its output.
pub fn run<A: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = A>) -> String {
    run_with(program, args, &[])
}

/// [`run`] with environment variables.
///
/// # Panics
/// If it fails, with its output.
pub fn run_with<A: AsRef<OsStr>>(
    program: &Path,
    args: impl IntoIterator<Item = A>,
    environment: &[(String, String)],
) -> String {
    try_run_with(program, args, environment).unwrap_or_else(|failure| panic!("{failure}"))
}

/// [`run_with`] for tools that may fail.
///
/// # Errors
/// If it fails, with its output.
///
/// # Panics
/// If it cannot be started.
pub fn try_run_with<A: AsRef<OsStr>>(
    program: &Path,
    args: impl IntoIterator<Item = A>,
    environment: &[(String, String)],
) -> Result<String, String> {
    let mut command = command(program, environment);
    command.args(args).current_dir("/").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = spawn(command)
        .and_then(Child::wait_with_output)
        .unwrap_or_else(|e| panic!("cannot run {}: {e}", program.display()));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{} failed ({}):\n{said}{error}", program.display(), output.status))
}
