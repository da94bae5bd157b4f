//! Signals to `distlock` itself, taken one by one by a thread that waits for them: nothing is interrupted, and no
//! handler runs that a child could inherit.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg, raise};
use nix::unistd::getpgrp;
use tokio::sync::mpsc;

/// Passed on to the command while one runs; while the lock is waited for, all but the last end the wait.
const PASSED_ON: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// How long our own copy of a signal that we sent, or the signal that continued us, may take to get here.
const ARRIVAL: Duration = Duration::from_millis(200);

/// Signals that are blocked and not yet listened to. Blocking comes first of all, before any thread is there that
/// could still be hit by one.
#[derive(Debug)]
pub(crate) struct Blocked {
    original: SigSet,
    waited: SigSet,
}

/// Blocks what is to be handled. What our parent had us ignore stays ignored, by us and by the command: that is what
/// `nohup`, and a shell that starts something in the background, count on.
pub(crate) fn block() -> nix::Result<Blocked> {
    let ignored = ignored_at_birth();
    let mut waited = SigSet::empty();
    for signal in PASSED_ON.into_iter().chain([Signal::SIGTSTP, Signal::SIGCONT]) {
        if !ignored.contains(&signal) {
            waited.add(signal);
        }
    }
    let mut blocked = waited;
    // Never waited for: whoever has it blocked may hand the terminal over from the background.
    blocked.add(Signal::SIGTTOU);
    let original = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(Blocked { original, waited })
}

/// What is ignored from the start. Only Linux tells without changing it; elsewhere it counts as nothing.
fn ignored_at_birth() -> Vec<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Signal::iterator().filter(|signal| mask >> (*signal as i32 - 1) & 1 == 1).collect()
}

/// Ends this process by a signal that it had blocked, so that its parent sees which. Returns if that did not work.
pub(crate) fn die_of(signal: Signal) {
    let mut set = SigSet::empty();
    set.add(signal);
    if set.thread_unblock().is_ok() {
        let _ = raise(signal);
    }
}

impl Blocked {
    /// The signals that were blocked before, for the command.
    pub(crate) fn original(&self) -> Vec<i32> {
        Signal::iterator()
            .filter(|signal| self.original.contains(*signal))
            .map(|signal| signal as i32)
            .collect()
    }

    /// Begins to take signals.
    pub(crate) fn listen(self) -> std::io::Result<Signals> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let waited = self.waited;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while let Ok(signal) = waited.wait() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        })?;
        Ok(Signals { receiver, put_back: VecDeque::new() })
    }
}

/// The signals as they come.
#[derive(Debug)]
pub(crate) struct Signals {
    receiver: mpsc::UnboundedReceiver<Signal>,
    put_back: VecDeque<Signal>,
}

impl Signals {
    /// The next one.
    ///
    /// # Cancel safety
    /// Cancel safe: none is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        if let Some(signal) = self.put_back.pop_front() {
            return signal;
        }
        match self.receiver.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// Does the work, unless a signal ends it first. Ctrl-Z stops us meanwhile, as it would without us.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                signal = self.next() => match signal {
                    Signal::SIGTSTP => {
                        self.stop(Signal::SIGTSTP, false).await;
                    }
                    Signal::SIGCONT | Signal::SIGWINCH => {}
                    signal => return Err(signal),
                },
                done = &mut work => return Ok(done),
            }
        }
    }

    /// Stops this process by this signal, SIGTSTP or SIGTTIN, and with it everybody in its group if the terminal has
    /// not told them. Returns when it is continued: true; or soon, if the kernel does not let a group stop that nobody
    /// could continue.
    pub(crate) async fn stop(&mut self, by: Signal, whole_group: bool) -> bool {
        if by != Signal::SIGTSTP {
            // Not among those we have blocked: it stops us with the others.
            let _ = if whole_group { killpg(getpgrp(), by) } else { raise(by) };
            return self.take(Signal::SIGCONT).await;
        }
        if whole_group {
            self.send_to_group(by).await;
        }
        let mut stop = SigSet::empty();
        stop.add(by);
        if stop.thread_unblock().is_ok() {
            let _ = raise(by);
            let _ = stop.thread_block();
        }
        self.take(Signal::SIGCONT).await
    }

    /// Sends a signal to everybody in our process group but ourselves.
    pub(crate) async fn send_to_group(&mut self, signal: Signal) {
        if killpg(getpgrp(), signal).is_ok() {
            // Our own copy: left over, it would stop us a second time, or end what we still have to do.
            self.take(signal).await;
        }
    }

    /// Waits a moment for this signal and takes it out; others keep their order.
    async fn take(&mut self, wanted: Signal) -> bool {
        let taken = tokio::time::timeout(ARRIVAL, async {
            loop {
                match self.receiver.recv().await {
                    Some(signal) if signal == wanted => return true,
                    Some(signal) => self.put_back.push_back(signal),
                    None => return false,
                }
            }
        });
        taken.await.unwrap_or(false)
    }
}
