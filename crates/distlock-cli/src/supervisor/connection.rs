//! The connection to the watchdog: starts it, sends messages, receives events.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Child;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};

use crate::watchdog::protocol::{WatchdogCommand, WatchdogEvent};
use crate::watchdog::{WATCHDOG_ARGUMENT, start_message, this_program};

/// A watchdog and the socket to it.
#[derive(Debug)]
pub(super) struct WatchdogConnection {
    watchdog: Child,
    socket: UnixStream,
    events: Lines<BufReader<tokio::net::UnixStream>>,
}

impl WatchdogConnection {
    /// Starts a watchdog for this command, with these variables added to its environment. The store's URL is neither in the
    /// environment nor in an argument, since it may have a password. The command is not in an argument either: a `pkill -f`
    /// for `distlock` or for the command must not hit the watchdog.
    pub(super) fn open(
        command: &[OsString],
        variables: &[(&str, String)],
        lock: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let watchdog = this_program()?
            .arg(WATCHDOG_ARGUMENT)
            .envs(variables.iter().map(|(name, value)| (*name, value)))
            .stdin(OwnedFd::from(theirs))
            .process_group(0)
            .spawn()?;
        start_message::send(&ours, command, lock)?;
        ours.set_nonblocking(true)?;
        let events = tokio::net::UnixStream::from_std(ours.try_clone()?)?;
        Ok(WatchdogConnection { watchdog, socket: ours, events: BufReader::new(events).lines() })
    }

    /// Sends a message without waiting: a paused watchdog reads nothing, and its buffer may be full. It then acts on the last
    /// deadlines it received, which is too early rather than too late.
    pub(super) fn send(&self, message: &WatchdogCommand) {
        let _ = (&self.socket).write(message.to_line().as_bytes());
    }

    /// The next event; `None` when the watchdog has ended.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<WatchdogEvent> {
        loop {
            let line = self.events.next_line().await.ok()??;
            if let Some(event) = WatchdogEvent::parse(&line) {
                return Some(event);
            }
        }
    }

    /// The process id of the watchdog.
    pub(super) fn watchdog(&self) -> i32 {
        i32::try_from(self.watchdog.id()).unwrap_or(0)
    }

    /// Kills a watchdog that does not react. The command dies with it, or becomes our child.
    pub(super) fn kill_watchdog(&mut self) {
        let _ = self.watchdog.kill();
    }

    /// Reaps the watchdog after its last event, without waiting for its end: it has nothing left to do.
    pub(super) fn close(&mut self) {
        let _ = self.watchdog.try_wait();
    }
}
