//! The process of one who takes part.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::protocol::{Answer, Order};

/// A running participant; it is killed when this is dropped.
pub struct Participant {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Participant {
    /// Starts it and lets it connect.
    pub fn start(who: &str, url: &str) -> Result<Self, String> {
        let mut command = command(who)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{who} does not start: {error}"))?;
        let (Some(orders), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{who} has no input or output"));
        };
        let mut participant = Participant { child, orders, answers: BufReader::new(out) };
        participant.obey(&Order::Open { url: url_for(who, url) })?;
        Ok(participant)
    }

    /// One order, and what came of it.
    pub fn obey(&mut self, order: &Order) -> Result<Answer, String> {
        self.tell(order)?;
        self.hear()
    }

    pub fn tell(&mut self, order: &Order) -> Result<(), String> {
        let mut line = serde_json::to_string(order).map_err(|error| error.to_string())?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).map_err(|error| error.to_string())
    }

    pub fn hear(&mut self) -> Result<Answer, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.is_empty() {
            return Err("it ended without an answer".to_owned());
        }
        let answer: Answer = serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))?;
        if answer.error.is_empty() { Ok(answer) } else { Err(answer.error) }
    }

    /// SIGKILL.
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

/// Peers know the plain schemes only.
fn url_for(who: &str, url: &str) -> String {
    match who {
        "distlock" | "raw" => url.to_owned(),
        _ => url.replacen("postgres+advisory://", "postgres://", 1),
    }
}

fn command(who: &str) -> Result<Command, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let missing = |what: &str| format!("{what} is not installed; bench/peers/run installs it");
    match who {
        "redis-py" => {
            let python = here.join(".deps/python/bin/python");
            if !python.exists() {
                return Err(missing("redis-py"));
            }
            let mut command = Command::new(python);
            command.arg(here.join("runners/redis_py.py"));
            Ok(command)
        }
        "node-redlock" => {
            let deps = here.join(".deps/node");
            if !deps.join("node_modules/redlock").exists() {
                return Err(missing("node-redlock"));
            }
            let mut command = Command::new("node");
            command.arg(here.join("runners/node_redlock.mjs")).env("NODE_DEPS", deps);
            Ok(command)
        }
        _ => {
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            let program = match who {
                // Built apart from the others, see Cargo.toml.
                "distributed-lock-mongo" | "mongodb-lock" => {
                    own.with_file_name("../apart/release/participant")
                }
                _ => own.with_file_name("participant"),
            };
            if !program.exists() {
                return Err(format!("{who} was not built; bench/peers/run says why"));
            }
            let mut command = Command::new(program);
            command.arg(who);
            Ok(command)
        }
    }
}
