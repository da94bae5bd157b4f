//! The event loop of the watchdog: messages from `distlock`, the end of child processes, and the timer.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use distlock::{BootClock, Clock, Moment};
use nix::sys::signal::Signal;
use rustix::process::{WaitOptions, wait};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::signal::unix::{SignalKind, signal};

use super::boot_timer::BootTimer;
use super::launch;
use super::protocol::{WatchdogCommand, WatchdogEvent};
use super::start_message::StartMessage;
use crate::deadlines::{Deadlines, GRACE_WHEN_GONE};
use crate::process_tree::ProcessTree;

/// How often to check whether all processes have ended, while they are being killed.
const TICK: Duration = Duration::from_millis(10);
/// The same for processes that cannot be killed.
const SLOW_TICK: Duration = Duration::from_millis(250);
/// How often to check the file of a kernel lock.
const LOCK_CHECK: Duration = Duration::from_secs(1);
/// A process that survives SIGKILL for this long cannot be killed: it has another user, or is stuck in the kernel.
const GIVE_UP: Duration = Duration::from_secs(2);

/// The phase of the command.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The command may run until these moments.
    Running(Option<Deadlines>),
    /// SIGTERM was sent.
    Ending { kill_at: Moment },
    /// SIGKILL is repeated until no process is left.
    Killing { since: Moment },
}

/// Starts the command on request, and watches it to its end.
pub(super) async fn watch(socket: UnixStream, start: StartMessage) -> io::Result<()> {
    let StartMessage { stdin, lock, command } = start;
    // This also resets an inherited ignored SIGCHLD, with which no child could be waited for.
    let mut children = signal(SignalKind::child())?;
    let timer = BootTimer::new()?;
    let events = socket.try_clone()?;
    let mut messages = BufReader::new(tokio::net::UnixStream::from_std(socket)?).lines();
    let first = messages.next_line().await?.as_deref().and_then(WatchdogCommand::parse);
    let Some(WatchdogCommand::Start { deadlines, terminal_group, blocked }) = first else { return Ok(()) };
    let now = BootClock.now();
    if deadlines.is_some_and(|at| now >= at.term_at) {
        send(&events, &WatchdogEvent::Late);
        return Ok(());
    }
    let child = match launch::start(&command, Stdio::from(stdin), &blocked) {
        Ok(child) => child,
        Err(error) => {
            send(&events, &WatchdogEvent::Failed(error.to_string()));
            return Ok(());
        }
    };
    let pid = i32::try_from(child.id()).unwrap_or(0);
    send(&events, &WatchdogEvent::Started(pid));
    let mut watch = CommandWatch {
        events,
        command: pid,
        terminal_group,
        tree: ProcessTree::of(pid),
        phase: Phase::Running(deadlines),
        ended: None,
        distlock_is_gone: false,
        lock,
    };
    loop {
        let due = watch.due();
        tokio::select! {
            // Messages first: after a pause, a renewal that arrived meanwhile counts before the clock.
            biased;
            message = next_message(&mut messages), if !watch.distlock_is_gone => watch.handle(message),
            _ = children.recv() => watch.reap(),
            () = timer.wait_until(due) => watch.act(),
        }
        if watch.is_over() {
            watch.report();
            return Ok(());
        }
    }
}

/// The next message; `None` when `distlock` has ended.
async fn next_message(messages: &mut Lines<BufReader<tokio::net::UnixStream>>) -> Option<WatchdogCommand> {
    loop {
        let line = messages.next_line().await.ok()??;
        if let Some(message) = WatchdogCommand::parse(&line) {
            return Some(message);
        }
    }
}

/// Sends an event without waiting: a paused `distlock` reads nothing, and its buffer may be full.
fn send(mut socket: &UnixStream, event: &WatchdogEvent) {
    let _ = socket.write(event.to_line().as_bytes());
}

struct CommandWatch {
    events: UnixStream,
    command: i32,
    terminal_group: i32,
    tree: ProcessTree,
    phase: Phase,
    ended: Option<WatchdogEvent>,
    distlock_is_gone: bool,
    /// Keeps the lock held if `distlock` has ended.
    lock: Option<OwnedFd>,
}

impl CommandWatch {
    /// When to act if no message arrives.
    fn due(&self) -> Moment {
        match self.phase {
            Phase::Running(at) => {
                let lock_check = self.lock.as_ref().map(|_| BootClock.now().after(LOCK_CHECK));
                at.map_or(Moment::NEVER, |at| at.term_at).min(lock_check.unwrap_or(Moment::NEVER))
            }
            Phase::Ending { kill_at } => kill_at.min(BootClock.now().after(TICK)),
            Phase::Killing { since } if BootClock.now().since(since) >= GIVE_UP => {
                BootClock.now().after(SLOW_TICK)
            }
            Phase::Killing { .. } => BootClock.now().after(TICK),
        }
    }

    fn handle(&mut self, message: Option<WatchdogCommand>) {
        match message {
            Some(WatchdogCommand::Lease(at)) => {
                if matches!(self.phase, Phase::Running(_)) {
                    self.phase = Phase::Running(Some(at));
                }
            }
            Some(WatchdogCommand::Signal(number)) => {
                if let Ok(signal) = Signal::try_from(number) {
                    self.tree.signal_group(signal);
                }
            }
            Some(WatchdogCommand::End { kill_at }) => self.end(kill_at),
            Some(WatchdogCommand::Start { .. }) => {}
            None => {
                self.distlock_is_gone = true;
                self.kill();
            }
        }
        self.act();
    }

    /// Does what is due now.
    fn act(&mut self) {
        let now = BootClock.now();
        match self.phase {
            Phase::Running(Some(at)) if now >= at.term_at => {
                send(&self.events, &WatchdogEvent::Ending);
                self.end(at.kill_at);
                if now >= at.kill_at {
                    self.kill();
                }
            }
            Phase::Running(_) if self.is_lock_removed() => {
                send(&self.events, &WatchdogEvent::Removed);
                self.end(now.after(GRACE_WHEN_GONE));
            }
            Phase::Ending { kill_at } if now >= kill_at => self.kill(),
            Phase::Killing { .. } => self.tree.signal_all(Signal::SIGKILL),
            _ => {}
        }
        self.reap();
    }

    /// Whether the file of a kernel lock was unlinked. `distlock` detects that sooner, unless it is paused.
    fn is_lock_removed(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| rustix::fs::fstat(lock).is_ok_and(|stat| stat.st_nlink == 0))
    }

    /// SIGTERM now, and SIGKILL at that moment or earlier.
    fn end(&mut self, kill_at: Moment) {
        match &mut self.phase {
            Phase::Running(_) => {
                self.phase = Phase::Ending { kill_at };
                self.tree.signal_all(Signal::SIGTERM);
                // A stopped process does not handle SIGTERM until it is continued.
                self.tree.signal_all(Signal::SIGCONT);
            }
            Phase::Ending { kill_at: before } => *before = kill_at.min(*before),
            Phase::Killing { .. } => {}
        }
    }

    fn kill(&mut self) {
        self.phase = Phase::Killing { since: BootClock.now() };
        self.tree.signal_all(Signal::SIGKILL);
    }

    /// Reaps every child that ended or was stopped, adopted ones included.
    fn reap(&mut self) {
        let all = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Ok(Some((pid, status))) = wait(all) {
            if pid.as_raw_nonzero().get() != self.command {
                continue;
            }
            if let Some(number) = status.stopping_signal() {
                send(&self.events, &WatchdogEvent::Stopped(number));
            } else if let Some(code) = status.exit_status() {
                self.ended = Some(WatchdogEvent::Exited(code));
            } else if let Some(number) = status.terminating_signal() {
                self.ended = Some(WatchdogEvent::Killed(number));
            }
        }
    }

    /// A command that ended by itself may leave processes (daemons); one that was ended may not.
    fn is_over(&self) -> bool {
        match self.phase {
            Phase::Running(_) => self.ended.is_some(),
            Phase::Ending { .. } => self.ended.is_some() && self.tree.alive() == 0,
            Phase::Killing { since } => {
                // Without `distlock`, this is the only process that keeps the lock for the rest.
                let keeps_lock = self.distlock_is_gone && self.lock.is_some();
                let give_up = !keeps_lock && BootClock.now().since(since) >= GIVE_UP;
                (self.ended.is_some() && self.tree.alive() == 0)
                    || (give_up && self.distlock_is_gone)
                    || (give_up && self.ended.is_some())
            }
        }
    }

    fn report(&mut self) {
        // Closed before `distlock` is told: the close that wakes the waiters then comes after the release.
        self.lock = None;
        if matches!(self.phase, Phase::Killing { .. }) {
            let left = self.tree.alive();
            if left > 0 {
                send(&self.events, &WatchdogEvent::Left(left));
            }
        }
        if let Some(ended) = &self.ended {
            send(&self.events, ended);
        }
        if self.distlock_is_gone {
            self.restore_terminal();
        }
    }

    /// Makes the group of `distlock` the terminal's foreground group, in place of a killed `distlock`: the script that started
    /// it would otherwise continue in the background.
    fn restore_terminal(&self) {
        let Ok(terminal) = std::fs::File::open("/dev/tty") else { return };
        let is_commands = rustix::termios::tcgetpgrp(&terminal)
            .is_ok_and(|group| group.as_raw_nonzero().get() == self.command);
        if let (true, Some(group)) = (is_commands, rustix::process::Pid::from_raw(self.terminal_group)) {
            let _ = rustix::termios::tcsetpgrp(&terminal, group);
        }
    }
}
