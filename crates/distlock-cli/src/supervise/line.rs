//! The line to the watchdog: starts it, tells it, hears from it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Child;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};

use crate::orders::{News, Order};
use crate::startup;
use crate::watchdog::{WORD, this_program};

/// A watchdog and the line to it.
#[derive(Debug)]
pub(super) struct Line {
    watchdog: Child,
    orders: UnixStream,
    news: Lines<BufReader<tokio::net::UnixStream>>,
}

impl Line {
    /// Starts a watchdog for this command, with these variables added to its environment. The store's URL is not among
    /// them, nor in any argument: a password stays with `distlock`. Nor is the command in the arguments: a `pkill -f` that
    /// is meant for `distlock` or for the command must not hit the watchdog too.
    pub(super) fn open(
        command: &[OsString],
        variables: &[(&str, String)],
        lock: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let watchdog = this_program()?
            .arg(WORD)
            .envs(variables.iter().map(|(name, value)| (*name, value)))
            .stdin(OwnedFd::from(theirs))
            .process_group(0)
            .spawn()?;
        startup::send(&ours, command, lock)?;
        ours.set_nonblocking(true)?;
        let news = tokio::net::UnixStream::from_std(ours.try_clone()?)?;
        Ok(Line { watchdog, orders: ours, news: BufReader::new(news).lines() })
    }

    /// Gives an order. A watchdog that is frozen reads nothing: better lose a line than wait for it. It then acts on
    /// the last moments it knows, which is too early rather than too late.
    pub(super) fn order(&self, order: &Order) {
        let _ = (&self.orders).write(order.to_line().as_bytes());
    }

    /// The next news; `None` when the watchdog is gone.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<News> {
        loop {
            let line = self.news.next_line().await.ok()??;
            if let Some(news) = News::parse(&line) {
                return Some(news);
            }
        }
    }

    /// The process id of the watchdog.
    pub(super) fn watchdog(&self) -> i32 {
        i32::try_from(self.watchdog.id()).unwrap_or(0)
    }

    /// Ends a watchdog that does not answer. The command then dies with it, or becomes our child.
    pub(super) fn kill_watchdog(&mut self) {
        let _ = self.watchdog.kill();
    }

    /// Takes leave of a watchdog that said its last word. Its end is not waited for: it has nothing left to do.
    pub(super) fn close(&mut self) {
        let _ = self.watchdog.try_wait();
    }
}
