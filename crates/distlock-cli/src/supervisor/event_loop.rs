//! The supervisor's event loop: events of the watchdog, signals, and the guard, until the command has ended.

use std::io;
use std::time::Duration;

use distlock::{BootClock, Clock, Guard, LossReason, Moment};
use nix::sys::signal::Signal;
use rustix::process::{WaitOptions, wait};

use super::connection::WatchdogConnection;
use super::terminal::Terminal;
use super::{CommandEnd, Job};
use crate::deadlines::{Deadlines, GRACE_WHEN_GONE, has_moved};
use crate::duration;
use crate::process_tree::ProcessTree;
use crate::signals::Signals;
use crate::stderr::Messages;
use crate::watchdog::protocol::{WatchdogCommand, WatchdogEvent};

/// How long the watchdog may take to report after the command must be dead, before it is killed.
const WATCHDOG_LIMIT: Duration = Duration::from_secs(3);
/// How often the guard is checked: shortest and longest pause.
const CHECK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// How often SIGKILL is repeated, for processes that are started meanwhile.
const KILL_AGAIN: Duration = Duration::from_millis(20);
/// How long a command may take to stop when Ctrl-Z is forwarded to it.
const STOP_LIMIT: Duration = Duration::from_millis(500);
/// How often to check whether all processes of the command have ended, and for how long.
const ENDED_CHECK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// How often after that.
const SLOW_TICK: Duration = Duration::from_millis(250);

/// Why `distlock` stops together with the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuspendCause {
    /// Ctrl-Z reached `distlock`, which forwarded it.
    Forwarded,
    /// Ctrl-Z reached the command, which has the terminal.
    CommandStopped,
    /// The command needs the terminal, and `distlock` is in the background.
    NeedsTerminal,
}

pub(super) struct Supervisor<'a> {
    guard: &'a Guard,
    job: &'a Job<'a>,
    messages: &'a Messages,
    watchdog: WatchdogConnection,
    terminal: Terminal,
    command: Option<i32>,
    /// The end of the lease as last seen, and its deadlines.
    lease: Option<(Moment, Deadlines)>,
    lost: bool,
    /// Certainly lost, not only about to be: another client may hold the lock.
    gone: bool,
    /// When the command must be dead, once it is being ended.
    kill_at: Option<Moment>,
    /// The command is stopped.
    stopped: bool,
    /// Ctrl-Z was forwarded: stop when the command has stopped, or at this moment.
    suspend_at: Option<Moment>,
}

impl<'a> Supervisor<'a> {
    /// Lets the watchdog start the command.
    pub(super) fn start(
        guard: &'a Guard,
        job: &'a Job<'a>,
        messages: &'a Messages,
        watchdog: WatchdogConnection,
    ) -> Self {
        let mut supervisor = Supervisor {
            guard,
            job,
            messages,
            watchdog,
            terminal: Terminal::open(),
            command: None,
            lease: None,
            lost: false,
            gone: false,
            kill_at: None,
            stopped: false,
            suspend_at: None,
        };
        supervisor.read_lease();
        supervisor.watchdog.send(&WatchdogCommand::Start {
            deadlines: supervisor.lease.map(|(_, at)| at),
            terminal_group: supervisor.terminal.own_group(),
            blocked: job.blocked.clone(),
        });
        supervisor
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Cleans up after the command: takes the terminal back. True if the command had the terminal.
    pub(super) fn close(&mut self, by_signal: bool) -> bool {
        let had_terminal = self.terminal.is_given();
        self.terminal.take_back(by_signal);
        self.watchdog.close();
        had_terminal
    }

    /// Runs until the command has ended.
    pub(super) async fn run(&mut self, signals: &mut Signals) -> io::Result<CommandEnd> {
        let guard = self.guard;
        loop {
            let (check_in, gone) = (self.check_in(), self.gone);
            tokio::select! {
                biased;
                event = self.watchdog.next() => match event {
                    None => return Ok(self.run_without_watchdog(signals).await),
                    Some(WatchdogEvent::Exited(code)) => return Ok(CommandEnd::Exited(code)),
                    Some(WatchdogEvent::Killed(number)) => return Ok(CommandEnd::Killed(number)),
                    Some(WatchdogEvent::Failed(reason)) => return Err(io::Error::other(reason)),
                    Some(WatchdogEvent::Late) => {
                        self.lost = true;
                        return Ok(CommandEnd::NotStarted);
                    }
                    Some(event) => self.handle(event, signals).await,
                },
                signal = signals.next() => self.forward(signal, signals).await,
                reason = guard.lost(), if !gone => self.lock_is_gone(&reason),
                () = tokio::time::sleep(check_in) => self.check(signals).await,
            }
        }
    }

    async fn handle(&mut self, event: WatchdogEvent, signals: &mut Signals) {
        match event {
            WatchdogEvent::Started(pid) => {
                self.command = Some(pid);
                self.messages.detail(&format!("the command runs as process {pid}"));
            }
            WatchdogEvent::Ending => self.lease_runs_out(),
            // The guard reports this too, unless this process was paused.
            WatchdogEvent::Removed if !self.gone => {
                let reason = LossReason::SessionEnded("its lock file was removed".into());
                self.lock_is_gone(&self.guard.loss().unwrap_or(reason));
            }
            WatchdogEvent::Left(processes) => self.report_left(processes),
            WatchdogEvent::Stopped(number) => self.command_stopped(number, signals).await,
            _ => {}
        }
    }

    fn report_left(&self, processes: usize) {
        let text = format!("{processes} of the command's processes could not be killed; end them by hand");
        self.messages.error(&text);
    }

    /// Reads the end of the lease. True if it moved. A lock that does not expire has no lease.
    fn read_lease(&mut self) -> bool {
        // The clock first: a pause between the two then makes the end look nearer, never farther.
        let now = BootClock.now();
        let Some(left) = self.guard.time_left() else { return false };
        let end = now.after(left);
        let moved = self.lease.is_none_or(|(before, _)| has_moved(before, end, left, self.job.cadence));
        if moved {
            let at = Deadlines::of(now, end, Some(self.job.cadence), self.job.grace);
            self.lease = Some((end, at));
        }
        moved
    }

    /// When to check the guard next: more often the closer a deadline is, since a renewal in the last moment counts.
    fn check_in(&self) -> Duration {
        let (shortest, longest) = CHECK;
        let now = BootClock.now();
        let due = match (self.kill_at, self.suspend_at, self.lease) {
            (Some(kill_at), ..) if now >= kill_at => return KILL_AGAIN,
            (Some(kill_at), ..) => return kill_at.since(now).clamp(shortest, longest),
            (None, Some(suspend_at), _) => return suspend_at.since(now).clamp(shortest, longest),
            (None, None, Some((_, at))) => at.term_at,
            (None, None, None) => return longest,
        };
        let longest = longest.min(self.job.cadence / 4).max(shortest);
        (due.since(now) / 4).clamp(shortest, longest)
    }

    /// Sends a moved lease to the watchdog, and does the watchdog's work if it is paused.
    async fn check(&mut self, signals: &mut Signals) {
        let now = BootClock.now();
        if let Some(kill_at) = self.kill_at {
            if let (true, Some(command)) = (now >= kill_at, self.command) {
                ProcessTree::below(self.watchdog.watchdog(), command).signal_all(Signal::SIGKILL);
            }
            if now.since(kill_at) >= WATCHDOG_LIMIT {
                self.watchdog.kill_watchdog();
            }
            return;
        }
        let moved = self.read_lease();
        match self.lease {
            Some((_, at)) if moved => self.watchdog.send(&WatchdogCommand::Lease(at)),
            Some((_, at)) if now >= at.kill_at => self.lease_runs_out(),
            _ => {}
        }
        if self.suspend_at.is_some_and(|at| now >= at) {
            self.suspend(signals, SuspendCause::Forwarded).await;
        }
    }

    /// The lease was not renewed in time. It is still held for a moment, in which the command is ended.
    fn lease_runs_out(&mut self) {
        if self.lost {
            return;
        }
        self.lost = true;
        self.kill_at = self.lease.map(|(_, at)| at.kill_at);
        let resource = self.guard.resource();
        self.messages.error(&match self.guard.loss() {
            Some(reason) => format!("lost {resource}: {reason}; the command was ended"),
            None => {
                let left = duration::show(self.guard.time_left().unwrap_or_default());
                format!(
                    "losing {resource}: it could not be renewed and expires in {left}; ending the command"
                )
            }
        });
    }

    /// The lock is certainly lost. There is no grace, not even for a command that has one already.
    fn lock_is_gone(&mut self, reason: &LossReason) {
        let latest = BootClock.now().after(self.job.grace.min(GRACE_WHEN_GONE));
        let leased = self.lease.map_or(latest, |(_, at)| latest.min(at.kill_at));
        let kill_at = self.kill_at.map_or(leased, |before| leased.min(before));
        self.kill_at = Some(kill_at);
        self.watchdog.send(&WatchdogCommand::End { kill_at });
        if !self.lost {
            self.messages.error(&format!("lost {}: {reason}; ending the command", self.guard.resource()));
        }
        (self.lost, self.gone) = (true, true);
    }

    /// The watchdog was killed. The kernel killed the command with it; this kills the rest of its tree. The lock is held while
    /// a process cannot be killed, until a signal ends the wait or the lock is lost.
    async fn run_without_watchdog(&mut self, signals: &mut Signals) -> CommandEnd {
        let (tick, limit) = ENDED_CHECK;
        let (since, mut reported) = (BootClock.now(), false);
        let mut end = CommandEnd::Killed(Signal::SIGKILL as i32);
        self.messages.error("the watchdog of the command was killed; ending the command");
        let Some(command) = self.command else { return end };
        let tree = ProcessTree::of(command);
        loop {
            tree.signal_all(Signal::SIGKILL);
            // The children of the watchdog are ours now, with the command among them unless it had ended.
            while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                if let (true, Some(code)) = (pid.as_raw_nonzero().get() == command, status.exit_status()) {
                    end = CommandEnd::Exited(code);
                }
            }
            if tree.alive() == 0 {
                return end;
            }
            let within_limit = BootClock.now().since(since) < limit;
            if !within_limit && !reported {
                self.report_left(tree.alive());
                reported = true;
            }
            self.lost |= self.guard.is_lost();
            if !within_limit && self.lost {
                return end;
            }
            tokio::select! {
                signal = signals.next(), if !within_limit => {
                    if !matches!(signal, Signal::SIGCONT | Signal::SIGWINCH | Signal::SIGTSTP) {
                        return end;
                    }
                }
                () = tokio::time::sleep(if within_limit { tick } else { SLOW_TICK }) => {}
            }
        }
    }

    /// Forwards a signal to the command.
    async fn forward(&mut self, signal: Signal, signals: &mut Signals) {
        match signal {
            Signal::SIGTSTP if self.stopped => self.suspend(signals, SuspendCause::Forwarded).await,
            Signal::SIGTSTP => {
                self.watchdog.send(&WatchdogCommand::Signal(signal as i32));
                self.suspend_at = Some(BootClock.now().after(STOP_LIMIT));
            }
            Signal::SIGCONT => self.resume(),
            signal => self.watchdog.send(&WatchdogCommand::Signal(signal as i32)),
        }
    }

    /// The command was stopped: it needs the terminal, Ctrl-Z was typed, or another process stopped it.
    async fn command_stopped(&mut self, number: i32, signals: &mut Signals) {
        let Some(command) = self.command else { return };
        self.stopped = true;
        match Signal::try_from(number) {
            Ok(Signal::SIGTTIN | Signal::SIGTTOU) if self.terminal.give_to(command) => self.resume(),
            Ok(Signal::SIGTTIN | Signal::SIGTTOU) => self.suspend(signals, SuspendCause::NeedsTerminal).await,
            _ if self.suspend_at.is_some() => self.suspend(signals, SuspendCause::Forwarded).await,
            Ok(Signal::SIGTSTP | Signal::SIGSTOP) if self.terminal.is_given() => {
                self.suspend(signals, SuspendCause::CommandStopped).await;
            }
            _ => self.messages.detail("the command is stopped; the lock stays held"),
        }
    }

    /// Stops as a job, so that the shell shows its prompt, and resumes when the shell continues it.
    async fn suspend(&mut self, signals: &mut Signals, cause: SuspendCause) {
        self.suspend_at = None;
        self.terminal.take_back(true);
        if let Some((_, at)) = self.lease {
            self.messages.hint(&format!(
                "suspended while {} is held; if it is not resumed within {} the command is ended",
                self.guard.resource(),
                duration::show(at.term_at.since(BootClock.now())),
            ));
        }
        let stopped = match cause {
            SuspendCause::Forwarded => signals.stop(Signal::SIGTSTP, false).await,
            SuspendCause::CommandStopped => signals.stop(Signal::SIGTSTP, true).await,
            // The signal of the command: an outer `distlock` must see that the terminal is needed.
            SuspendCause::NeedsTerminal => signals.stop(Signal::SIGTTIN, true).await,
        };
        let Some(command) = self.command else { return };
        let given = cause != SuspendCause::Forwarded && self.terminal.give_to(command);
        if cause == SuspendCause::NeedsTerminal && !stopped && !given {
            // No shell can bring this group to the foreground, so the command would wait for ever. The kernel sends SIGHUP to
            // such groups.
            self.watchdog.send(&WatchdogCommand::Signal(Signal::SIGHUP as i32));
        }
        self.resume();
    }

    fn resume(&mut self) {
        self.stopped = false;
        self.watchdog.send(&WatchdogCommand::Signal(Signal::SIGCONT as i32));
    }
}
