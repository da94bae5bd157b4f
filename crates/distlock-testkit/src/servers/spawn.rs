//! Starting programs as the servers' user, so that they never outlive the tests.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

use super::data::everyone_can_reach;
use super::program::SETPRIV;

/// The user and group `nobody`.
const NOBODY: u32 = 65534;

/// The user that servers run as: `nobody` if we are root (PostgreSQL refuses root), otherwise ourselves (`None`).
#[must_use]
pub fn server_user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

/// A command that runs `program` as the servers' user, and that the kernel kills when we die.
///
/// The environment goes to the program through `env`, not through us: a library preloaded for the server must not
/// come alive in the programs before it.
pub(super) fn command(program: &Path, environment: &[(String, String)]) -> Command {
    let mut command;
    if cfg!(target_os = "linux") {
        command = Command::new(SETPRIV.find());
        command.args(["--pdeathsig", "KILL"]);
        // A program in a checkout below root's home folder is out of nobody's reach: run that one as root.
        if let Some(user) = server_user().filter(|_| everyone_can_reach(program)) {
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
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("server-spawner".into())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    let _ = answer.send(command.spawn());
                }
            })
            .expect("cannot start the thread that spawns servers");
        orders
    });
    let (answer, child) = mpsc::channel();
    spawner.send((command, answer)).expect("the spawner lives as long as the process");
    child.recv().expect("the spawner answers every order")
}

/// Runs a program of a server's tool box (`initdb`, `pg_basebackup`) to its end, as the servers' user.
///
/// # Panics
/// If it fails, with what it said.
pub fn run<A: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = A>) -> String {
    run_with(program, args, &[])
}

/// [`run`] with environment variables.
///
/// # Panics
/// If it fails, with what it said.
pub fn run_with<A: AsRef<OsStr>>(
    program: &Path,
    args: impl IntoIterator<Item = A>,
    environment: &[(String, String)],
) -> String {
    let mut command = command(program, environment);
    command.args(args).current_dir("/").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = spawn(command)
        .and_then(Child::wait_with_output)
        .unwrap_or_else(|e| panic!("cannot run {}: {e}", program.display()));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{} failed ({}):\n{said}{}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said
}
