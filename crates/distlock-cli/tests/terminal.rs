//! Hazard: on a terminal, an interactive command cannot read, Ctrl-C or Ctrl-Z behave differently, or the shell does not get
//! the terminal back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Sandbox, is_alive, send, wait_for, wait_until_dead};
use nix::sys::signal::Signal;

const PROMPT: &str = "READY> ";

/// A terminal with a shell, driven through `script(1)`.
struct TestTerminal {
    child: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<String>>,
    seen: usize,
}

impl TestTerminal {
    fn with_shell(sandbox: &Sandbox, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("script");
        command
            .args(["-qfec", "exec bash --norc --noprofile --noediting -i", "/dev/null"])
            .current_dir(sandbox.path(""))
            .env("XDG_STATE_HOME", sandbox.path("state"))
            .env("D", common::BINARY)
            .env("LEASES", sandbox.lease_url())
            .env("TERM", "xterm")
            .env_remove("DISTLOCK_STORE")
            .env_remove("NO_COLOR")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command.spawn().expect("script(1) is needed for this test: install util-linux");
        let (keyboard, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        let mut terminal = TestTerminal { child, keyboard, screen, seen: 0 };
        // Split, so that the echo of this line does not look like the prompt.
        terminal.type_in("PS1='REA''DY> '\n");
        terminal.until(PROMPT);
        terminal
    }

    fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Waits until this is shown, and returns what was shown before it.
    fn until(&mut self, text: &str) -> String {
        let (from, start) = (self.seen, Instant::now());
        loop {
            let shown = self.screen.lock().unwrap()[from..].to_owned();
            if let Some(at) = shown.find(text) {
                self.seen = from + at + text.len();
                return shown[..at].to_owned();
            }
            assert!(start.elapsed() < common::LIMIT, "timed out waiting for {text:?}, saw {shown:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs a line in the shell to its end, and returns what was shown.
    fn line(&mut self, line: &str) -> String {
        self.type_in(&format!("{line}\n"));
        self.until(PROMPT)
    }

    fn last_code(&mut self) -> i32 {
        let shown = self.line("echo \"<$?>\"");
        let (_, rest) = shown.rsplit_once('<').unwrap();
        rest.split_once('>').unwrap().0.parse().unwrap()
    }
}

impl Drop for TestTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_shell_under_the_lock_has_the_terminal_until_it_ends() {
    let sandbox = Sandbox::new();
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    terminal.type_in("$D run x -- bash --norc --noprofile --noediting -i\n");
    terminal.type_in("PS1='INS''IDE> '\n");
    let greeting = terminal.until("INSIDE> ");
    assert!(!greeting.contains("job control"), "{greeting}");
    assert!(!sandbox.is_free("x"));
    // Ctrl-C is for the inner command, neither for the inner shell nor for distlock.
    terminal.type_in("sleep 60\n");
    // Before it has the terminal, Ctrl-C reaches the inner shell, which swallows it.
    wait_for("the inner command", || has_the_terminal(&terminal, "sleep\x0060\0").then_some(()));
    terminal.type_in("\u{3}");
    terminal.until("INSIDE> ");
    terminal.type_in("exit 7\n");
    terminal.until(PROMPT);
    assert_eq!(terminal.last_code(), 7);
    assert!(sandbox.is_free("x"));
}

#[test]
fn ls_watch_draws_in_place_and_ctrl_c_ends_it() {
    let sandbox = Sandbox::new();
    let run = sandbox.hold(sandbox.distlock().args(["run", "x"]));
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    terminal.type_in("stty cols 40; $D ls --watch=100ms\n");
    terminal.until("\u{1b}[2J\u{1b}[H");
    let first = terminal.until("\u{1b}[J");
    assert!(first.contains("KIND") && first.contains(" x "), "{first:?}");
    let widths = first.split("\u{1b}[K").map(|line| line.trim_matches(['\r', '\n']).chars().count());
    // The header has a colour, which takes no room.
    assert!(widths.max().unwrap() <= 40 + "\u{1b}[1m\u{1b}[0m".len(), "{first:?}");
    drop(run);
    terminal.until("no lock is held");
    let rest = terminal.until("\u{1b}[J");
    assert!(!rest.contains("KIND"), "{rest:?}");
    terminal.type_in("\u{3}");
    terminal.until(PROMPT);
    assert_eq!(terminal.last_code(), 130);
}

#[test]
fn ctrl_c_ends_the_command_and_the_loop_around_it() {
    let sandbox = Sandbox::new();
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    for wait in ["exec sleep 60", "read answer"] {
        // A script, whose shell continues unless it sees that SIGINT ended distlock.
        std::fs::write(
            sandbox.path("loop"),
            format!("for n in 1 2 3; do $D run x -- sh -c 'echo round $0; {wait}' $n; done; echo ended\n"),
        )
        .unwrap();
        terminal.type_in("bash loop\n");
        terminal.until("round 1");
        if wait == "read answer" {
            // It has the terminal once it waits for input.
            wait_for("the command to read", || reads_terminal(&terminal).then_some(()));
        }
        terminal.type_in("\u{3}");
        let rest = terminal.until(PROMPT);
        assert!(!rest.contains("round 2") && !rest.contains("ended"), "{rest}");
        assert_eq!(terminal.last_code(), 130);
        assert!(sandbox.is_free("x"));
    }
}

/// Whether a process of the terminal's session other than the shells waits for input.
fn reads_terminal(terminal: &TestTerminal) -> bool {
    processes(terminal).iter().any(|pid| {
        let waits = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        command_line(*pid).starts_with("sh\0") && waits.contains("wait_woken")
    })
}

/// Whether this command, arguments included, is in the foreground of the terminal.
fn has_the_terminal(terminal: &TestTerminal, command: &str) -> bool {
    processes(terminal).iter().any(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((_, fields)) = stat.rsplit_once(')') else { return false };
        let fields: Vec<_> = fields.split_ascii_whitespace().collect();
        let (group, foreground) = (fields[2], fields[5]);
        command_line(*pid) == command && group == foreground
    })
}

fn command_line(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// `script(1)` and everything below it.
fn processes(terminal: &TestTerminal) -> Vec<i32> {
    let mut all = vec![i32::try_from(terminal.child.id()).unwrap()];
    let mut at = 0;
    while at < all.len() {
        all.extend(common::children(all[at]));
        at += 1;
    }
    all
}

#[test]
fn ctrl_z_shows_the_prompt_and_fg_resumes() {
    let sandbox = Sandbox::new();
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    terminal.line("mkfifo pipe");
    for script in [
        "echo $$ > pid; echo started; read answer; echo got $answer",
        "echo $$ > pid; echo started; exec cat pipe",
    ] {
        terminal.type_in(&format!("$D run x -- sh -c '{script}'\n"));
        terminal.until("started\r\n");
        if script.contains("read") {
            wait_for("the command to read", || reads_terminal(&terminal).then_some(()));
        }
        terminal.type_in("\u{1a}");
        terminal.until("Stopped");
        terminal.until(PROMPT);
        let pid = sandbox.wait_for_pid("pid");
        wait_for("the command to stop too", || (common::state(pid) == Some('T')).then_some(()));
        std::fs::remove_file(sandbox.path("pid")).unwrap();
        assert!(!sandbox.is_free("x"), "the lock is free while stopped");
        terminal.type_in("fg\n");
        if script.contains("read") {
            wait_for("the command to read", || reads_terminal(&terminal).then_some(()));
            terminal.type_in("more\n");
        } else {
            std::fs::write(sandbox.path("pipe"), "got more\n").unwrap();
        }
        terminal.until("got more");
        terminal.until(PROMPT);
        assert_eq!(terminal.last_code(), 0);
    }
}

#[test]
fn a_command_in_the_background_does_not_take_the_terminal() {
    let sandbox = Sandbox::new();
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    terminal.line("$D run x -- sh -c 'echo $$ > pid; read answer; echo got $answer' &");
    let pid = sandbox.wait_for_pid("pid");
    wait_for("the command to stop", || (common::state(pid) == Some('T')).then_some(()));
    let shown = terminal.line("echo still\" \"mine");
    assert!(shown.contains("still mine"), "{shown}");
    wait_for("the job to be stopped", || terminal.line("jobs").contains("Stopped").then_some(()));
    terminal.type_in("fg\n");
    wait_for("the command to read", || reads_terminal(&terminal).then_some(()));
    terminal.type_in("it\n");
    terminal.until("got it");
    terminal.until(PROMPT);
}

#[test]
fn a_lock_inside_a_lock_gets_the_terminal() {
    let sandbox = Sandbox::new();
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    let script = "echo $$ > pid; echo reading; read answer; echo got $answer; exit 6";
    terminal.type_in(&format!("$D run outer -- $D run inner -- sh -c '{script}'\n"));
    terminal.until("reading\r\n");
    wait_for("the command to read", || reads_terminal(&terminal).then_some(()));
    terminal.type_in("\u{1a}");
    terminal.until("Stopped");
    terminal.until(PROMPT);
    terminal.type_in("fg\n");
    wait_for("the command to read", || reads_terminal(&terminal).then_some(()));
    terminal.type_in("it\n");
    terminal.until("got it");
    terminal.until(PROMPT);
    assert_eq!(terminal.last_code(), 6);
    assert!(sandbox.is_free("outer") && sandbox.is_free("inner"));
}

#[test]
fn the_rest_of_a_pipeline_keeps_the_terminal() {
    let sandbox = Sandbox::new();
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    terminal.type_in("$D run x -- echo from-the-command | sh -c 'read line; echo asking; read answer < /dev/tty; echo $line and $answer'\n");
    terminal.until("asking\r\n");
    terminal.type_in("the-keyboard\n");
    terminal.until("from-the-command and the-keyboard");
    terminal.until(PROMPT);
}

#[test]
fn a_command_killed_in_raw_mode_leaves_a_usable_terminal() {
    let sandbox = Sandbox::new();
    sandbox.leased();
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    terminal.type_in("$D --store $LEASES run --expiry 1s x -- sh -c 'trap \"\" TERM; stty raw -echo; echo $$ > pid; while :; do sleep 0.1; done'\n");
    let pid = sandbox.wait_for_pid("pid");
    sandbox.fault("renew.fail");
    wait_until_dead(pid);
    terminal.until(PROMPT);
    assert_eq!(terminal.last_code(), 76);
    let modes = terminal.line("stty -a");
    for mode in ["icanon", "echo", "isig", "opost"] {
        assert!(modes.split_whitespace().any(|word| word == mode), "{mode}: {modes}");
    }
}

#[test]
fn a_job_that_stays_suspended_loses_its_lock_and_its_command() {
    common::in_time(|| {
        let sandbox = Sandbox::new();
        sandbox.leased();
        let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
        terminal.type_in("$D --store $LEASES run --expiry 1s x -- sh -c 'echo $$ > pid; exec sleep 60'\n");
        let pid = sandbox.wait_for_pid("pid");
        terminal.type_in("\u{1a}");
        let told = terminal.until("Stopped");
        assert!(told.contains("suspended while mutex \"x\" is held"), "{told}");
        terminal.until(PROMPT);
        let mut end = sandbox.lease_end("x").unwrap();
        wait_for("the end of the command", || {
            end = sandbox.lease_end("x").unwrap_or(end).max(end);
            (!is_alive(pid)).then_some(())
        });
        let in_time = common::boot_clock() < end;
        terminal.type_in("fg\n");
        // Lost or about to be lost, depending on how quickly it was resumed.
        terminal.until("mutex \"x\"");
        terminal.until(PROMPT);
        assert_eq!(terminal.last_code(), 76);
        if in_time { Ok(()) } else { Err("alive when another client could hold the lock".to_owned()) }
    });
}

#[test]
fn a_script_keeps_the_terminal_after_its_distlock_was_killed() {
    let sandbox = Sandbox::new();
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    // A script has no job control: only the watchdog can restore its terminal, which takes a moment.
    let script = "$D run x -- sh -c 'echo $PPID > watchdog; echo reading; read answer'
        while kill -0 $(cat watchdog) 2>/dev/null; do sleep 0.01; done
        echo next; read answer; echo got $answer\n";
    std::fs::write(sandbox.path("script"), script).unwrap();
    terminal.type_in("bash script\n");
    terminal.until("reading");
    wait_for("the command to read", || reads_terminal(&terminal).then_some(()));
    let watchdog = sandbox.wait_for_pid("watchdog");
    let stat = std::fs::read_to_string(format!("/proc/{watchdog}/stat")).unwrap();
    let distlock = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    send(distlock, Signal::SIGKILL);
    terminal.until("next");
    terminal.type_in("it\n");
    terminal.until("got it");
    terminal.until(PROMPT);
}

#[test]
fn a_lock_is_broken_only_after_a_yes() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(sandbox.leased().args(["run", "x"]));
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    for (answer, wanted) in [("", 1), ("n", 1), ("nonsense", 1), ("y", 0)] {
        assert!(sandbox.record("x")["holder"].is_object());
        terminal.type_in("$D --store $LEASES break x\n");
        let asked = terminal.until("[y/N] ");
        assert!(asked.contains(&format!(":{}", holder.pid())), "the holder is not named: {asked}");
        terminal.type_in(&format!("{answer}\n"));
        terminal.until(PROMPT);
        assert_eq!(terminal.last_code(), wanted, "{answer:?}");
    }
    assert!(sandbox.record("x")["holder"].is_null());
}

#[test]
fn colour_is_shown_on_terminals_only_and_respects_no_color() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(sandbox.distlock().args(["run", "x"]));
    for (variables, coloured) in
        [(&[][..], true), (&[("NO_COLOR", "1")], false), (&[("TERM", "dumb")], false)]
    {
        let mut terminal = TestTerminal::with_shell(&sandbox, variables);
        for command in ["ls", "show x", "doctor", "--help"] {
            let shown = terminal.line(&format!("$D {command}"));
            assert_eq!(shown.contains("\u{1b}["), coloured, "{command} {variables:?}: {shown}");
        }
        assert!(!terminal.line("$D ls | cat").contains("\u{1b}["));
    }
    drop(holder);
}

#[test]
fn a_terminal_shows_the_holder_during_a_wait() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(sandbox.distlock().args(["run", "x"]));
    let mut terminal = TestTerminal::with_shell(&sandbox, &[]);
    terminal.type_in("$D run x -- true\n");
    let said = terminal.until("held by ");
    assert!(said.contains("waiting for mutex \"x\""), "{said}");
    terminal.type_in("\u{3}");
    terminal.until(PROMPT);
    assert_eq!(terminal.last_code(), 130);
    drop(holder);
}
