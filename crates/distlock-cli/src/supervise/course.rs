//! The course of one run: news from the watchdog, signals, and the guard, until the command is over.

use std::io;
use std::time::Duration;

use distlock::{BootClock, Clock, Guard, LossReason, Moment};
use nix::sys::signal::Signal;
use rustix::process::{WaitOptions, wait};

use super::line::Line;
use super::terminal::Terminal;
use super::{End, Job};
use crate::deadlines::{Deadlines, GRACE_WHEN_GONE, has_moved};
use crate::duration;
use crate::family::Family;
use crate::notes::Notes;
use crate::orders::{News, Order};
use crate::signals::Signals;

/// How long the watchdog may take to report what it had to end, before it is ended itself.
const WATCHDOG_PATIENCE: Duration = Duration::from_secs(3);
/// How often the guard is looked at: at least and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// How often SIGKILL is repeated, for those who are started meanwhile.
const KILL_AGAIN: Duration = Duration::from_millis(20);
/// How long a command may take to stop when Ctrl-Z is passed on to it.
const STOPPING: Duration = Duration::from_millis(500);
/// How often to look whether all processes of the command are gone, and for how long.
const GONE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// How often after that.
const SLOW_TICK: Duration = Duration::from_millis(250);

/// Why we are to stop with the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Because {
    /// Ctrl-Z reached us, and we passed it on.
    PassedOn,
    /// Ctrl-Z reached the command, which has the terminal.
    TypedInside,
    /// The command specs the terminal, and we are in the background.
    WantsTerminal,
}

pub(super) struct Course<'a> {
    guard: &'a Guard,
    job: &'a Job<'a>,
    notes: &'a Notes,
    line: Line,
    terminal: Terminal,
    command: Option<i32>,
    /// The end of the lease as it was last seen, and what follows from it.
    lease: Option<(Moment, Deadlines)>,
    lost: bool,
    /// Not only about to be lost: another holder may have it.
    gone: bool,
    /// When the command must be dead, once it is being ended.
    kill_at: Option<Moment>,
    /// The command is stopped.
    stopped: bool,
    /// Ctrl-Z was passed on: we stop when the command has, or at this moment.
    suspend_at: Option<Moment>,
}

impl<'a> Course<'a> {
    /// Lets the watchdog start the command.
    pub(super) fn begin(guard: &'a Guard, job: &'a Job<'a>, notes: &'a Notes, line: Line) -> Self {
        let mut course = Course {
            guard,
            job,
            notes,
            line,
            terminal: Terminal::open(),
            command: None,
            lease: None,
            lost: false,
            gone: false,
            kill_at: None,
            stopped: false,
            suspend_at: None,
        };
        course.read_lease();
        course.line.order(&Order::Start {
            deadlines: course.lease.map(|(_, at)| at),
            home: course.terminal.home(),
            blocked: job.blocked.clone(),
        });
        course
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// The command is over: takes the terminal back. True if the command had the terminal.
    pub(super) fn close(&mut self, by_signal: bool) -> bool {
        let had_terminal = self.terminal.is_lent();
        self.terminal.take_back(by_signal);
        self.line.close();
        had_terminal
    }

    pub(super) async fn until_the_end(&mut self, signals: &mut Signals) -> io::Result<End> {
        let guard = self.guard;
        loop {
            let (look_in, gone) = (self.look_in(), self.gone);
            tokio::select! {
                biased;
                news = self.line.next() => match news {
                    None => return Ok(self.without_watchdog(signals).await),
                    Some(News::Exited(code)) => return Ok(End::Exited(code)),
                    Some(News::Killed(number)) => return Ok(End::Killed(number)),
                    Some(News::Failed(why)) => return Err(io::Error::other(why)),
                    Some(News::Late) => {
                        self.lost = true;
                        return Ok(End::NotStarted);
                    }
                    Some(news) => self.hear(news, signals).await,
                },
                signal = signals.next() => self.pass_on(signal, signals).await,
                reason = guard.lost(), if !gone => self.lock_is_gone(&reason),
                () = tokio::time::sleep(look_in) => self.look(signals).await,
            }
        }
    }

    async fn hear(&mut self, news: News, signals: &mut Signals) {
        match news {
            News::Started(pid) => {
                self.command = Some(pid);
                self.notes.detail(&format!("the command runs as process {pid}"));
            }
            News::Ending => self.lease_runs_out(),
            // We noticed too, unless we were frozen.
            News::Removed if !self.gone => {
                let reason = LossReason::SessionEnded("its lock file was removed".into());
                self.lock_is_gone(&self.guard.loss().unwrap_or(reason));
            }
            News::Left(processes) => self.say_who_is_left(processes),
            News::Stopped(number) => self.command_stopped(number, signals).await,
            _ => {}
        }
    }

    fn say_who_is_left(&self, processes: usize) {
        let text = format!("{processes} of the command's processes could not be ended; end them by hand");
        self.notes.say(&text);
    }

    /// Reads when the lease ends now. True if that moved. A lock without a time limit of its own has no lease.
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

    /// The sooner something is due, the more closely we look: an extension that comes in the last moment counts.
    fn look_in(&self) -> Duration {
        let (least, most) = LOOK;
        let now = BootClock.now();
        let due = match (self.kill_at, self.suspend_at, self.lease) {
            (Some(kill_at), ..) if now >= kill_at => return KILL_AGAIN,
            (Some(kill_at), ..) => return kill_at.since(now).clamp(least, most),
            (None, Some(suspend_at), _) => return suspend_at.since(now).clamp(least, most),
            (None, None, Some((_, at))) => at.term_at,
            (None, None, None) => return most,
        };
        let most = most.min(self.job.cadence / 4).max(least);
        (due.since(now) / 4).clamp(least, most)
    }

    /// Tells the watchdog that the lease moved; and does its work, should it be frozen.
    async fn look(&mut self, signals: &mut Signals) {
        let now = BootClock.now();
        if let Some(kill_at) = self.kill_at {
            if let (true, Some(command)) = (now >= kill_at, self.command) {
                Family::below(self.line.watchdog(), command).signal_everybody(Signal::SIGKILL);
            }
            if now.since(kill_at) >= WATCHDOG_PATIENCE {
                self.line.kill_watchdog();
            }
            return;
        }
        let moved = self.read_lease();
        match self.lease {
            Some((_, at)) if moved => self.line.order(&Order::Lease(at)),
            Some((_, at)) if now >= at.kill_at => self.lease_runs_out(),
            _ => {}
        }
        if self.suspend_at.is_some_and(|at| now >= at) {
            self.suspend(signals, Because::PassedOn).await;
        }
    }

    /// No extension came in time. The lock is ours for a moment still: enough to end the command before it passes on.
    fn lease_runs_out(&mut self) {
        if self.lost {
            return;
        }
        self.lost = true;
        self.kill_at = self.lease.map(|(_, at)| at.kill_at);
        let resource = self.guard.resource();
        self.notes.say(&match self.guard.loss() {
            Some(reason) => format!("lost {resource}: {reason}; the command was ended"),
            None => {
                let left = duration::show(self.guard.time_left().unwrap_or_default());
                format!("losing {resource}: it could not be extended and ends in {left}; ending the command")
            }
        });
    }

    /// There is no grace any more, not even for a command that is in the middle of it.
    fn lock_is_gone(&mut self, reason: &LossReason) {
        let latest = BootClock.now().after(self.job.grace.min(GRACE_WHEN_GONE));
        let leased = self.lease.map_or(latest, |(_, at)| latest.min(at.kill_at));
        let kill_at = self.kill_at.map_or(leased, |before| leased.min(before));
        self.kill_at = Some(kill_at);
        self.line.order(&Order::End { kill_at });
        if !self.lost {
            self.notes.say(&format!("lost {}: {reason}; ending the command", self.guard.resource()));
        }
        (self.lost, self.gone) = (true, true);
    }

    /// The watchdog was killed. The kernel killed the command with it; the rest of its group is left to us. The lock is
    /// kept for those who cannot be ended, until a signal ends the wait or the lock is lost.
    async fn without_watchdog(&mut self, signals: &mut Signals) -> End {
        let (tick, patience) = GONE;
        let (since, mut said) = (BootClock.now(), false);
        let mut end = End::Killed(Signal::SIGKILL as i32);
        self.notes.say("the watchdog of the command was killed; ending the command");
        let Some(command) = self.command else { return end };
        let family = Family::of(command);
        loop {
            family.signal_everybody(Signal::SIGKILL);
            // The watchdog's children became ours, the command among them unless it had ended.
            while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                if let (true, Some(code)) = (pid.as_raw_nonzero().get() == command, status.exit_status()) {
                    end = End::Exited(code);
                }
            }
            if family.alive() == 0 {
                return end;
            }
            let patient = BootClock.now().since(since) < patience;
            if !patient && !said {
                self.say_who_is_left(family.alive());
                said = true;
            }
            self.lost |= self.guard.is_lost();
            if !patient && self.lost {
                return end;
            }
            tokio::select! {
                signal = signals.next(), if !patient => {
                    if !matches!(signal, Signal::SIGCONT | Signal::SIGWINCH | Signal::SIGTSTP) {
                        return end;
                    }
                }
                () = tokio::time::sleep(if patient { tick } else { SLOW_TICK }) => {}
            }
        }
    }

    async fn pass_on(&mut self, signal: Signal, signals: &mut Signals) {
        match signal {
            Signal::SIGTSTP if self.stopped => self.suspend(signals, Because::PassedOn).await,
            Signal::SIGTSTP => {
                self.line.order(&Order::Signal(signal as i32));
                self.suspend_at = Some(BootClock.now().after(STOPPING));
            }
            Signal::SIGCONT => self.resume(),
            signal => self.line.order(&Order::Signal(signal as i32)),
        }
    }

    /// The command was stopped: it specs the terminal, or Ctrl-Z was typed, or somebody stopped it by name.
    async fn command_stopped(&mut self, number: i32, signals: &mut Signals) {
        let Some(command) = self.command else { return };
        self.stopped = true;
        match Signal::try_from(number) {
            Ok(Signal::SIGTTIN | Signal::SIGTTOU) if self.terminal.lend(command) => self.resume(),
            Ok(Signal::SIGTTIN | Signal::SIGTTOU) => self.suspend(signals, Because::WantsTerminal).await,
            _ if self.suspend_at.is_some() => self.suspend(signals, Because::PassedOn).await,
            Ok(Signal::SIGTSTP | Signal::SIGSTOP) if self.terminal.is_lent() => {
                self.suspend(signals, Because::TypedInside).await;
            }
            _ => self.notes.detail("the command is stopped; the lock stays held"),
        }
    }

    /// Stops as a job, so that the shell that started us gets its prompt, and goes on when the shell says so.
    async fn suspend(&mut self, signals: &mut Signals, because: Because) {
        self.suspend_at = None;
        self.terminal.take_back(true);
        if let Some((_, at)) = self.lease {
            self.notes.hint(&format!(
                "suspended while {} is held; if it is not resumed within {} the command is ended",
                self.guard.resource(),
                duration::show(at.term_at.since(BootClock.now())),
            ));
        }
        let stopped = match because {
            Because::PassedOn => signals.stop(Signal::SIGTSTP, false).await,
            Because::TypedInside => signals.stop(Signal::SIGTSTP, true).await,
            // The same signal as the command's: who lends us the terminal, should we run under another `distlock`,
            // must see what is wanted.
            Because::WantsTerminal => signals.stop(Signal::SIGTTIN, true).await,
        };
        let Some(command) = self.command else { return };
        let lent = because != Because::PassedOn && self.terminal.lend(command);
        if because == Because::WantsTerminal && !stopped && !lent {
            // Nobody can ever bring us to the foreground, and so the command would wait for ever. The kernel sends this
            // to groups in that state.
            self.line.order(&Order::Signal(Signal::SIGHUP as i32));
        }
        self.resume();
    }

    fn resume(&mut self) {
        self.stopped = false;
        self.line.order(&Order::Signal(Signal::SIGCONT as i32));
    }
}
