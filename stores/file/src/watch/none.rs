//! Systems without inotify: waiters poll.

use std::convert::Infallible;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

use super::{WatchEvent, WatchScope};

/// Never constructed.
#[derive(Debug)]
pub(super) struct Inotify(Infallible);

impl Inotify {
    pub(super) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn add(&self, _: &Path, _: WatchScope) -> io::Result<i32> {
        match self.0 {}
    }

    pub(super) fn descriptor(&self) -> RawFd {
        match self.0 {}
    }

    pub(super) fn remove(&self, _: i32) {
        match self.0 {}
    }

    pub(super) fn interrupt(&self) {
        match self.0 {}
    }

    pub(super) fn wait(&self, _: Duration) -> Vec<WatchEvent> {
        match self.0 {}
    }
}
