//! Signals to `distlock`. A thread waits for them one by one: no system call is interrupted, and there is no handler that a
//! child could inherit.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg, raise};
use nix::unistd::getpgrp;
use tokio::sync::mpsc;

/// Forwarded to the command while it runs. During a wait for the lock, all but the last end the wait.
const FORWARDED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// How long our own copy of a signal that we sent, or the SIGCONT that resumed us, may take to arrive.
const ARRIVAL: Duration = Duration::from_millis(200);

/// Signals that are blocked and not yet received. They are blocked before any thread is started that one could hit.
#[derive(Debug)]
pub(crate) struct Blocked {
    original: SigSet,
    waited: SigSet,
}

/// Blocks the signals that are handled. A signal that was ignored at the start stays ignored, by `distlock` and by the
/// command: `nohup`, and shells that start background jobs, rely on it.
pub(crate) fn block() -> nix::Result<Blocked> {
    let ignored = ignored_at_start();
    let mut waited = SigSet::empty();
    for signal in FORWARDED.into_iter().chain([Signal::SIGTSTP, Signal::SIGCONT]) {
        if !ignored.contains(&signal) {
            waited.add(signal);
        }
    }
    let mut blocked = waited;
    // Blocked only: a background process that blocks it may change the terminal's foreground group.
    blocked.add(Signal::SIGTTOU);
    let original = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(Blocked { original, waited })
}

/// The signals that are ignored at the start. Only Linux shows them; elsewhere there are none.
fn ignored_at_start() -> Vec<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Signal::iterator().filter(|signal| mask >> (*signal as i32 - 1) & 1 == 1).collect()
}

/// Ends this process by a blocked signal, so that its parent sees it. Returns if that fails.
pub(crate) fn die_of(signal: Signal) {
    let mut set = SigSet::empty();
    set.add(signal);
    if set.thread_unblock().is_ok() {
        let _ = raise(signal);
    }
}

impl Blocked {
    /// The signals that were blocked before; they stay blocked for the command.
    pub(crate) fn original(&self) -> Vec<i32> {
        Signal::iterator()
            .filter(|signal| self.original.contains(*signal))
            .map(|signal| signal as i32)
            .collect()
    }

    /// Starts to receive signals.
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

/// The received signals.
#[derive(Debug)]
pub(crate) struct Signals {
    receiver: mpsc::UnboundedReceiver<Signal>,
    put_back: VecDeque<Signal>,
}

impl Signals {
    /// The next signal.
    ///
    /// # Cancel safety
    /// Cancel safe: no signal is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        if let Some(signal) = self.put_back.pop_front() {
            return signal;
        }
        match self.receiver.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// Runs the work unless a signal ends it first. Ctrl-Z stops this process as usual.
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

    /// Stops this process by SIGTSTP or SIGTTIN, with its whole group if the terminal did not signal the group. Returns true
    /// when it was continued; returns false soon if the kernel does not stop it, since no process could continue the group.
    pub(crate) async fn stop(&mut self, by: Signal, whole_group: bool) -> bool {
        if by != Signal::SIGTSTP {
            // Not blocked: it stops this process with the others.
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

    /// Sends a signal to all other processes in our group.
    pub(crate) async fn send_to_group(&mut self, signal: Signal) {
        if killpg(getpgrp(), signal).is_ok() {
            // Discard our own copy: it would stop this process again, or end what it still has to do.
            self.take(signal).await;
        }
    }

    /// Waits briefly for this signal and discards it; other signals keep their order.
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
