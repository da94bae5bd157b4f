//! The watchdog's one loop: orders from `distlock`, news of the command, and the alarm.

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

use super::alarm::Alarm;
use super::launch;
use crate::deadlines::{Deadlines, GRACE_WHEN_GONE};
use crate::family::Family;
use crate::orders::{News, Order};
use crate::startup::Startup;

/// How often to look whether everybody is gone, while they are being ended.
const TICK: Duration = Duration::from_millis(10);
/// The same for those who cannot be ended.
const SLOW_TICK: Duration = Duration::from_millis(250);
/// How often to look at the file of a kernel lock.
const LOOK_AT_LOCK: Duration = Duration::from_secs(1);
/// What survives SIGKILL for so long cannot be ended by us: another user's process, or one stuck in the kernel.
const GIVE_UP: Duration = Duration::from_secs(2);

/// Where we are.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The command runs, and may until these moments.
    Running(Option<Deadlines>),
    /// SIGTERM was sent.
    Ending { kill_at: Moment },
    /// SIGKILL is being sent until nobody is left.
    Killing { since: Moment },
}

/// Starts the command when it is told to, and stays until it is over.
pub(super) async fn watch(line: UnixStream, given: Startup) -> io::Result<()> {
    let Startup { stdin, lock, command } = given;
    // Also takes back an ignored SIGCHLD that we may have inherited, with which no child could be waited for.
    let mut children = signal(SignalKind::child())?;
    let alarm = Alarm::new()?;
    let news = line.try_clone()?;
    let mut orders = BufReader::new(tokio::net::UnixStream::from_std(line)?).lines();
    let start = orders.next_line().await?.as_deref().and_then(Order::parse);
    let Some(Order::Start { deadlines, home, blocked }) = start else { return Ok(()) };
    let now = BootClock.now();
    if deadlines.is_some_and(|at| now >= at.term_at) {
        tell(&news, &News::Late);
        return Ok(());
    }
    let child = match launch::start(&command, Stdio::from(stdin), &blocked) {
        Ok(child) => child,
        Err(error) => {
            tell(&news, &News::Failed(error.to_string()));
            return Ok(());
        }
    };
    let pid = i32::try_from(child.id()).unwrap_or(0);
    tell(&news, &News::Started(pid));
    let mut watch = Watch {
        news,
        command: pid,
        home,
        family: Family::of(pid),
        phase: Phase::Running(deadlines),
        ended: None,
        distlock_is_gone: false,
        lock,
    };
    loop {
        let due = watch.due();
        tokio::select! {
            // Orders first: after a pause, what came meanwhile counts before what the clock says.
            biased;
            order = next_order(&mut orders), if !watch.distlock_is_gone => watch.obey(order),
            _ = children.recv() => watch.reap(),
            () = alarm.ring_at(due) => watch.act(),
        }
        if watch.is_over() {
            watch.report();
            return Ok(());
        }
    }
}

/// The next order; `None` when `distlock` is gone.
async fn next_order(orders: &mut Lines<BufReader<tokio::net::UnixStream>>) -> Option<Order> {
    loop {
        let line = orders.next_line().await.ok()??;
        if let Some(order) = Order::parse(&line) {
            return Some(order);
        }
    }
}

/// A `distlock` that is frozen reads nothing: better lose a line than wait for it.
fn tell(mut news: &UnixStream, item: &News) {
    let _ = news.write(item.to_line().as_bytes());
}

struct Watch {
    news: UnixStream,
    command: i32,
    home: i32,
    family: Family,
    phase: Phase,
    ended: Option<News>,
    distlock_is_gone: bool,
    /// Keeps the lock held if `distlock` is gone.
    lock: Option<OwnedFd>,
}

impl Watch {
    /// When to act without further word.
    fn due(&self) -> Moment {
        match self.phase {
            Phase::Running(at) => {
                let look_at_lock = self.lock.as_ref().map(|_| BootClock.now().after(LOOK_AT_LOCK));
                at.map_or(Moment::NEVER, |at| at.term_at).min(look_at_lock.unwrap_or(Moment::NEVER))
            }
            Phase::Ending { kill_at } => kill_at.min(BootClock.now().after(TICK)),
            Phase::Killing { since } if BootClock.now().since(since) >= GIVE_UP => {
                BootClock.now().after(SLOW_TICK)
            }
            Phase::Killing { .. } => BootClock.now().after(TICK),
        }
    }

    fn obey(&mut self, order: Option<Order>) {
        match order {
            Some(Order::Lease(at)) => {
                if matches!(self.phase, Phase::Running(_)) {
                    self.phase = Phase::Running(Some(at));
                }
            }
            Some(Order::Signal(number)) => {
                if let Ok(signal) = Signal::try_from(number) {
                    self.family.signal_group(signal);
                }
            }
            Some(Order::End { kill_at }) => self.end(kill_at),
            Some(Order::Start { .. }) => {}
            None => {
                self.distlock_is_gone = true;
                self.kill();
            }
        }
        self.act();
    }

    /// Does what is due.
    fn act(&mut self) {
        let now = BootClock.now();
        match self.phase {
            Phase::Running(Some(at)) if now >= at.term_at => {
                tell(&self.news, &News::Ending);
                self.end(at.kill_at);
                if now >= at.kill_at {
                    self.kill();
                }
            }
            Phase::Running(_) if self.is_lock_removed() => {
                tell(&self.news, &News::Removed);
                self.end(now.after(GRACE_WHEN_GONE));
            }
            Phase::Ending { kill_at } if now >= kill_at => self.kill(),
            Phase::Killing { .. } => self.family.signal_everybody(Signal::SIGKILL),
            _ => {}
        }
        self.reap();
    }

    /// Whether the file of a kernel lock has no name any more. `distlock` notices sooner, unless it is frozen.
    fn is_lock_removed(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| rustix::fs::fstat(lock).is_ok_and(|stat| stat.st_nlink == 0))
    }

    /// SIGTERM for all, and SIGKILL at that moment or earlier.
    fn end(&mut self, kill_at: Moment) {
        match &mut self.phase {
            Phase::Running(_) => {
                self.phase = Phase::Ending { kill_at };
                self.family.signal_everybody(Signal::SIGTERM);
                // Who is stopped would hear nothing of it.
                self.family.signal_everybody(Signal::SIGCONT);
            }
            Phase::Ending { kill_at: before } => *before = kill_at.min(*before),
            Phase::Killing { .. } => {}
        }
    }

    fn kill(&mut self) {
        self.phase = Phase::Killing { since: BootClock.now() };
        self.family.signal_everybody(Signal::SIGKILL);
    }

    /// Takes note of every child that ended or was stopped, those included that became ours.
    fn reap(&mut self) {
        let all = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Ok(Some((pid, status))) = wait(all) {
            if pid.as_raw_nonzero().get() != self.command {
                continue;
            }
            if let Some(number) = status.stopping_signal() {
                tell(&self.news, &News::Stopped(number));
            } else if let Some(code) = status.exit_status() {
                self.ended = Some(News::Exited(code));
            } else if let Some(number) = status.terminating_signal() {
                self.ended = Some(News::Killed(number));
            }
        }
    }

    /// A command that ended by itself may leave something behind, as daemons are started; one that had to end may not.
    fn is_over(&self) -> bool {
        match self.phase {
            Phase::Running(_) => self.ended.is_some(),
            Phase::Ending { .. } => self.ended.is_some() && self.family.alive() == 0,
            Phase::Killing { since } => {
                // No other process keeps the lock for what is left.
                let keeps_lock = self.distlock_is_gone && self.lock.is_some();
                let patience_over = !keeps_lock && BootClock.now().since(since) >= GIVE_UP;
                (self.ended.is_some() && self.family.alive() == 0)
                    || (patience_over && self.distlock_is_gone)
                    || (patience_over && self.ended.is_some())
            }
        }
    }

    fn report(&mut self) {
        // Before `distlock` hears of it: the close that wakes the waiters is then the one after its release.
        self.lock = None;
        if matches!(self.phase, Phase::Killing { .. }) {
            let left = self.family.alive();
            if left > 0 {
                tell(&self.news, &News::Left(left));
            }
        }
        if let Some(ended) = &self.ended {
            tell(&self.news, ended);
        }
        if self.distlock_is_gone {
            self.give_the_terminal_back();
        }
    }

    /// `distlock` cannot do it any more, and a script that goes on would find itself in the background.
    fn give_the_terminal_back(&self) {
        let Ok(terminal) = std::fs::File::open("/dev/tty") else { return };
        let is_commands = rustix::termios::tcgetpgrp(&terminal)
            .is_ok_and(|group| group.as_raw_nonzero().get() == self.command);
        if let (true, Some(home)) = (is_commands, rustix::process::Pid::from_raw(self.home)) {
            let _ = rustix::termios::tcsetpgrp(&terminal, home);
        }
    }
}
