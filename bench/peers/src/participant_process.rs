//! The process of a participant.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{self, Child, ChildStdin, ChildStdout, Stdio};

use crate::protocol::{Command, Reply};

/// A running participant, killed when this is dropped.
pub struct Participant {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Participant {
    /// Starts it and connects it to the server.
    pub fn start(who: &str, url: &str) -> Result<Self, String> {
        let mut command = command(who)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{who} does not start: {error}"))?;
        let (Some(requests), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{who} has no input or output"));
        };
        let mut participant = Participant { child, requests, replies: BufReader::new(out) };
        participant.execute(&Command::Open { url: url_for(who, url) })?;
        Ok(participant)
    }

    /// Sends a command and waits for its reply.
    pub fn execute(&mut self, command: &Command) -> Result<Reply, String> {
        self.send(command)?;
        self.receive()
    }

    pub fn send(&mut self, command: &Command) -> Result<(), String> {
        let mut line = serde_json::to_string(command).map_err(|error| error.to_string())?;
        line.push('\n');
        self.requests.write_all(line.as_bytes()).map_err(|error| error.to_string())
    }

    pub fn receive(&mut self) -> Result<Reply, String> {
        let mut line = String::new();
        self.replies.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.is_empty() {
            return Err("it ended without a reply".to_owned());
        }
        let reply: Reply = serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))?;
        if reply.error.is_empty() { Ok(reply) } else { Err(reply.error) }
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Peers support only the plain schemes.
fn url_for(who: &str, url: &str) -> String {
    match who {
        "distlock" | "baseline" => url.to_owned(),
        _ => url.replacen("postgres+advisory://", "postgres://", 1),
    }
}

fn command(who: &str) -> Result<process::Command, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let missing = |what: &str| format!("{what} is not installed; bench/peers/run installs it");
    match who {
        "redis-py" => {
            let python = here.join(".deps/python/bin/python");
            if !python.exists() {
                return Err(missing("redis-py"));
            }
            let mut command = process::Command::new(python);
            command.arg(here.join("runners/redis_py.py"));
            Ok(command)
        }
        "node-redlock" => {
            let deps = here.join(".deps/node");
            if !deps.join("node_modules/redlock").exists() {
                return Err(missing("node-redlock"));
            }
            let mut command = process::Command::new("node");
            command.arg(here.join("runners/node_redlock.mjs")).env("NODE_DEPS", deps);
            Ok(command)
        }
        _ => {
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            let program = match who {
                // Built separately, see Cargo.toml.
                "distributed-lock-mongo" | "mongodb-lock" => {
                    own.with_file_name("../separate/release/participant")
                }
                _ => own.with_file_name("participant"),
            };
            if !program.exists() {
                return Err(format!("{who} was not built; see the output of bench/peers/run"));
            }
            let mut command = process::Command::new(program);
            command.arg(who);
            Ok(command)
        }
    }
}
